// src/kernels/select_contract.cpp
#include "kernels/select_contract.h"

namespace keyhole {

const char* to_string(SelectOperation operation) {
  switch (operation) {
    case SelectOperation::scores:
      return "index_scores";
    case SelectOperation::top_k:
      return "top_k";
    case SelectOperation::select:
      return "select_keys";
    case SelectOperation::loss:
      return "index_loss_forward";
    case SelectOperation::gradients:
      return "index_loss_backward";
  }
  return "unknown";
}

}  // namespace keyhole
