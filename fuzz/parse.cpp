// fuzz/parse.cpp
// libFuzzer entry: any bytes as pattern text. They are refused with an Error(usage), or they make a
// pattern that prints, parses to itself and can be drawn.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "keyhole/error.h"
#include "keyhole/pattern.h"

using namespace keyhole;

namespace {

[[noreturn]] void report(const char* law, const std::string& text) {
  std::fprintf(stderr, "%s\n  %s\n", law, text.c_str());
  std::abort();
}

Pattern parse_again(const std::string& text) {
  try {
    return parse(text);
  } catch (const Error& error) {
    report("what was printed cannot be parsed", error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const Pattern pattern = parse({reinterpret_cast<const char*>(data), size});
    const std::string printed = pattern.text();
    const Pattern again = parse_again(printed);
    if (!(again == pattern)) report("printed and parsed, it is another pattern", printed);
    if (again.text() != printed) report("printing is not stable", printed);
    picture(pattern, 5, 7);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) report("not the caller's mistake", error.what());
    const std::string_view message = error.what();
    if (message.size() > 2000) report("a message too long to read", error.what());
  }
  return 0;
}
