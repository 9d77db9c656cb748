// src/kernels/sm90/select_entries.cpp
#include "kernels/sm90/select_entries.h"

#include <string>

#include "base/check.h"
#include "kernels/device/index_scores.h"
#include "kernels/sm90/index_scores_launch.h"

namespace keyhole::sm90 {
namespace {

std::string scores_objection(const SelectRequest& request) {
  if (request.head_dim > kIndexMostHeadDim) return say("has head_dim up to ", kIndexMostHeadDim);
  const int64_t heads = request.groups == 0 ? 0 : request.index_heads / request.groups;
  if (heads > kIndexMostHeads) return say("has up to ", kIndexMostHeads, " index heads of a group");
  if (!request.is_aligned) return "reads rows that begin at multiples of 16 bytes";
  return request.why_no_tma;
}

template <DType kType>
void run_by_heads(const ScoreArgs& args) {
  const int64_t groups = args.k.shape[1], heads = groups == 0 ? 0 : args.q.shape[1] / groups;
  if (heads <= 16) return run_index_scores<kType, 16>(args);
  if (heads <= 32) return run_index_scores<kType, 32>(args);
  run_index_scores<kType, 64>(args);
}

template <DType kType>
SelectKernel scores_entry() {
  SelectKernel made{};
  made.name = std::string("sm90.index_scores.") + to_string(kType);
  made.backend = "sm90";
  made.device = Device::Kind::cuda;
  made.operation = SelectOperation::scores;
  made.dtype = kType;
  made.tile = {128, 128};  // a tile of attention's, so that a plan is compiled once for both
  made.min_compute_capability = made.max_compute_capability = 90;
  made.product_error = kType == DType::e4m3 ? 0x1p-12 : 0;
  made.objection = scores_objection;
  made.scores = run_by_heads<kType>;
  made.scores_workspace = device::index_score_bits_bytes;
  return made;
}

}  // namespace

std::vector<SelectKernel> select_entries() {
  return {scores_entry<DType::e4m3>(), scores_entry<DType::bf16>(), scores_entry<DType::f16>()};
}

}  // namespace keyhole::sm90
