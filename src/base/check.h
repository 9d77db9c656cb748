// src/base/check.h
// How the library reports errors: say(...) builds the text, KEYHOLE_CHECK throws for mistakes of
// the caller, KEYHOLE_ASSERT for our own.
#pragma once

#include <charconv>
#include <string>
#include <string_view>
#include <type_traits>

#include "keyhole/error.h"

namespace keyhole {

// As a stream in the classic locale writes it: 0.1, 1e+06.
void append_to(std::string& text, double number);

// Formats like a stream in the classic locale (1048576, never 1.048.576), and needs none: making
// one takes longer than the text of a whole sentence.
template <class Part>
void append_to(std::string& text, const Part& part) {
  if constexpr (std::is_convertible_v<const Part&, std::string_view>) {
    text += std::string_view(part);
  } else if constexpr (std::is_same_v<Part, bool>) {
    text += part ? '1' : '0';
  } else if constexpr (std::is_integral_v<Part> && sizeof(Part) == 1) {
    text += static_cast<char>(part);  // int8_t too is a letter in a stream
  } else if constexpr (std::is_integral_v<Part>) {
    char digits[24];
    text.append(digits, std::to_chars(digits, digits + sizeof digits, part).ptr);
  } else {
    static_assert(std::is_floating_point_v<Part>);
    append_to(text, static_cast<double>(part));
  }
}

// Concatenates all parts.
template <class... Parts>
std::string say(const Parts&... parts) {
  std::string text;
  (append_to(text, parts), ...);
  return text;
}

}  // namespace keyhole

// The caller's mistake; always on.
#define KEYHOLE_CHECK(condition, ...)                                                   \
  do {                                                                                  \
    if (!(condition)) [[unlikely]]                                                      \
      throw ::keyhole::Error(::keyhole::ErrorKind::usage, ::keyhole::say(__VA_ARGS__)); \
  } while (false)

// Our own mistake; on in every build, because each check is cheap beside the work it guards.
#define KEYHOLE_ASSERT(condition, ...)                                                             \
  do {                                                                                             \
    if (!(condition)) [[unlikely]]                                                                 \
      throw ::keyhole::Error(::keyhole::ErrorKind::internal,                                       \
                             ::keyhole::say("internal error: ", __VA_ARGS__,                       \
                                            "; please report it with the command that led here")); \
  } while (false)
