// src/kernels/sm80/select_entries.cpp
#include "kernels/sm80/select_entries.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "kernels/sm80/index_loss.h"
#include "kernels/sm80/index_loss_config.h"
#include "kernels/sm80/top_k_params.h"

namespace keyhole::sm80 {
namespace {

std::string top_k_objection(const SelectRequest& request) {
  if (top_k_capacity(request.k, request.entries) <= kMostListed) return {};
  return say("lists at most ", kMostListed, " scores of a row, too few for ", request.k, " of ",
             request.entries);
}

std::string loss_objection(const SelectRequest& request) {
  if (request.keys_per_entry != 1) return "takes entries of one key";
  if (request.target_dtype != request.dtype) {
    return say("reads an attention in ", to_string(request.dtype), ", as the indexer");
  }
  if (!request.is_aligned) return "needs rows that begin at multiples of 16 bytes";
  if (request.head_dim % 8 != 0 || request.target_dim % 8 != 0) {
    return say("takes head_dim in multiples of 8, not ", request.head_dim, " and ",
               request.target_dim);
  }
  const int64_t groups = std::max<int64_t>(1, request.groups);
  if (request.index_heads < groups) return "takes one index head of a group or more";
  if ((request.index_heads + request.target_heads) / groups > kMostLossHeads) {
    return say("takes up to ", kMostLossHeads, " heads of a group");
  }
  return {};
}
// f16 has too small a range for gradients of scores, which are kept in 16 bits.
std::string gradients_objection(const SelectRequest& request) {
  if (std::string why = loss_objection(request); !why.empty()) return why;
  if (request.index_heads > kManyHeads * request.groups) {
    return say("takes up to ", kManyHeads, " index heads of a group");
  }
  if (request.head_dim > kMostLossColumns) {
    return say("takes index heads of up to ", kMostLossColumns);
  }
  return {};
}

SelectKernel entry(SelectOperation operation, DType dtype) {
  SelectKernel made{};
  made.name = say("sm80.", to_string(operation), ".", to_string(dtype));
  made.backend = "sm80";
  made.device = Device::Kind::cuda;
  made.operation = operation;
  made.dtype = dtype;
  made.tile = {128, 128};  // a tile of attention's, so that a plan is compiled once for both
  made.min_compute_capability = 80;
  return made;
}

template <DType kType>
SelectKernel loss_entry() {
  SelectKernel made = entry(SelectOperation::loss, kType);
  made.objection = loss_objection;
  made.loss = run_index_loss<kType>;
  made.loss_workspace = index_loss_bytes;
  return made;
}
SelectKernel gradients_entry() {
  SelectKernel made = entry(SelectOperation::gradients, DType::bf16);
  made.objection = gradients_objection;
  made.gradients = run_index_gradients<DType::bf16>;
  made.gradients_workspace = index_gradient_bytes;
  made.rounds_gradients = true;
  return made;
}

template <DType kType>
SelectKernel top_k_entry() {
  SelectKernel made = entry(SelectOperation::top_k, kType);
  made.objection = top_k_objection;
  made.top_k = run_top_k<kType>;
  made.top_k_workspace = top_k_workspace;
  return made;
}

}  // namespace

std::vector<SelectKernel> select_entries() {
  return {top_k_entry<DType::f32>(), top_k_entry<DType::f16>(), top_k_entry<DType::bf16>(),
          loss_entry<DType::f16>(),  loss_entry<DType::bf16>(), gradients_entry()};
}

}  // namespace keyhole::sm80
