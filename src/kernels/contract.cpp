// src/kernels/contract.cpp
// The names of operations, as they appear in kernel names and messages.
#include "kernels/contract.h"

namespace keyhole {

const char* to_string(Operation operation) {
  return operation == Operation::forward ? "forward" : "backward";
}

}  // namespace keyhole
