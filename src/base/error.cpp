// src/base/error.cpp
// The names of the error kinds.
#include "keyhole/error.h"

namespace keyhole {

const char* to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return "usage";
    case ErrorKind::unsupported:
      return "unsupported";
    case ErrorKind::device:
      return "device";
    case ErrorKind::internal:
      return "internal";
  }
  return "unknown";
}

}  // namespace keyhole
