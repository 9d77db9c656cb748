// include/keyhole/error.h
// The one exception the library throws. Its text says what was passed, what is accepted and, where
// there is one, the way out.
#pragma once

#include <stdexcept>
#include <string>

namespace keyhole {

enum class ErrorKind {
  usage,        // the caller's mistake: a wrong shape, a bad pattern text, a broken file
  unsupported,  // a sound request that no kernel here can serve
  device,       // the device refused: out of memory, a failed launch, no driver
  internal,     // ours: an invariant of the library does not hold
};

const char* to_string(ErrorKind kind);

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace keyhole
