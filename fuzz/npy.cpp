// fuzz/npy.cpp
// libFuzzer entry: any bytes as a .npy file. They are refused with an Error(usage), or they hold
// exactly the numbers their shape announces.
#include "base/npy.h"

#include <cstdint>
#include <cstdlib>
#include <span>

#include "keyhole/error.h"

using namespace keyhole;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const NpyArray array = parse_npy(std::as_bytes(std::span(data, size)), "fuzz.npy");
    int64_t expected = npy_item_bytes(array.dtype);
    for (const int64_t length : array.shape) expected *= length;
    if (expected != int64_t(array.data.size()) || array.shape.size() > 8) std::abort();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) std::abort();
  }
  return 0;
}
