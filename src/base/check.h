// src/base/check.h
// How the library says that something is wrong: say(...) builds the text, KEYHOLE_CHECK throws the
// caller's mistakes, KEYHOLE_ASSERT our own.
#pragma once

#include <sstream>
#include <string>

#include "keyhole/error.h"

namespace keyhole {

// Everything streamed into one string.
template <class... Parts>
std::string say(const Parts&... parts) {
  std::ostringstream text;
  text.imbue(std::locale::classic());  // 1048576, never 1.048.576
  (text << ... << parts);
  return text.str();
}

}  // namespace keyhole

// The caller's mistake; always on.
#define KEYHOLE_CHECK(condition, ...)                                                   \
  do {                                                                                  \
    if (!(condition)) [[unlikely]]                                                      \
      throw ::keyhole::Error(::keyhole::ErrorKind::usage, ::keyhole::say(__VA_ARGS__)); \
  } while (false)

// Ours; on in every build, because each is cheap beside the work it guards.
#define KEYHOLE_ASSERT(condition, ...)                                                             \
  do {                                                                                             \
    if (!(condition)) [[unlikely]]                                                                 \
      throw ::keyhole::Error(::keyhole::ErrorKind::internal,                                       \
                             ::keyhole::say("internal error: ", __VA_ARGS__,                       \
                                            "; please report it with the command that led here")); \
  } while (false)
