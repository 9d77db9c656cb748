// tests/support/message_of.h
#pragma once

#include <functional>
#include <string>

#include "keyhole/error.h"

namespace keyhole::test {

// What an action complains of.
inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace keyhole::test
