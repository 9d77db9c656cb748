// fuzz/plan.cpp
// libFuzzer: the plan loader. The checksum is repaired first, so that the checks behind it are
// reached; what loads must verify, and compiling another tile shape from the texts of its parts
// must not crash either.
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/hash.h"
#include "keyhole/error.h"
#include "plan/plan_file.h"
#include "plan/plan_state.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  if (size >= 8) {
    const uint64_t checksum = keyhole::fnv1a64(bytes.data(), size - 8);
    std::memcpy(bytes.data() + size - 8, &checksum, 8);
  }
  try {
    const keyhole::Plan plan = keyhole::load_plan(bytes, "fuzz");
    plan.verify();
    const keyhole::Shape& shape = plan.shape();
    // A small file may claim a long sequence; following that up is the caller's wish, not the
    // loader's.
    if (shape.batch * shape.heads <= 16 && shape.q_len <= 256 && shape.k_len <= 256) {
      plan.state().view({16, 16}, /*with_transposed=*/true);
    }
  } catch (const keyhole::Error& error) {
    if (error.kind() == keyhole::ErrorKind::internal) __builtin_trap();
  }
  return 0;
}
