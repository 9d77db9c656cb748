// src/kernels/sm80/select_entries.cpp
#include "kernels/sm80/select_entries.h"

#include <string>

#include "base/check.h"
#include "kernels/sm80/top_k_params.h"

namespace keyhole::sm80 {
namespace {

std::string top_k_objection(const SelectRequest& request) {
  if (top_k_capacity(request.k, request.entries) <= kMostListed) return {};
  return say("lists at most ", kMostListed, " scores of a row, too few for ", request.k, " of ",
             request.entries);
}

template <DType kType>
SelectKernel top_k_entry() {
  SelectKernel made{};
  made.name = std::string("sm80.top_k.") + to_string(kType);
  made.backend = "sm80";
  made.device = Device::Kind::cuda;
  made.operation = SelectOperation::top_k;
  made.dtype = kType;
  made.tile = {128, 128};  // a tile of attention's, so that a plan is compiled once for both
  made.min_compute_capability = 80;
  made.objection = top_k_objection;
  made.top_k = run_top_k<kType>;
  made.top_k_workspace = top_k_workspace;
  return made;
}

}  // namespace

std::vector<SelectKernel> select_entries() {
  return {top_k_entry<DType::f32>(), top_k_entry<DType::f16>(), top_k_entry<DType::bf16>()};
}

}  // namespace keyhole::sm80
