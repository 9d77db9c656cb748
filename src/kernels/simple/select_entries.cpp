// src/kernels/simple/select_entries.cpp
#include "kernels/simple/select_entries.h"

#include <string>

#include "kernels/device/index_scores.h"
#include "kernels/device/top_k_by_digits.h"
#include "kernels/simple/index_loss.h"
#include "kernels/simple/index_scores.h"

namespace keyhole::simple {
namespace {

SelectKernel entry(SelectOperation operation, DType dtype) {
  SelectKernel made{};
  made.name = std::string("simple.") + to_string(operation) + "." + to_string(dtype);
  made.backend = "simple";
  made.device = Device::Kind::cuda;
  made.operation = operation;
  made.dtype = dtype;
  made.tile = {128, 128};  // a tile of attention's, so that a plan is compiled once for both
  made.min_compute_capability = 75;
  return made;
}

template <DType kType>
void run_top_k(const TopKArgs& args) {
  const auto stream = static_cast<cudaStream_t>(args.launch.stream);
  device::launch_top_k_by_digits(kType, device::top_k_rows(args, args.launch.workspace, stream),
                                 nullptr, stream);
}

template <DType kType>
void add_top_k(std::vector<SelectKernel>& entries) {
  SelectKernel& made = entries.emplace_back(entry(SelectOperation::top_k, kType));
  made.top_k = run_top_k<kType>;
  made.top_k_workspace = device::top_k_bits_bytes;
}

template <DType kType>
void add_scores(std::vector<SelectKernel>& entries) {
  SelectKernel& made = entries.emplace_back(entry(SelectOperation::scores, kType));
  made.scores = run_index_scores<kType>;
  made.scores_workspace = device::index_score_bits_bytes;
}

// One kernel reads all dtypes.
void add_losses(std::vector<SelectKernel>& entries) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3}) {
    SelectKernel& made = entries.emplace_back(entry(SelectOperation::loss, dtype));
    made.loss = run_index_loss;
    made.loss_workspace = index_loss_bytes;
  }
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    SelectKernel& made = entries.emplace_back(entry(SelectOperation::gradients, dtype));
    made.gradients = run_index_gradients;
    made.gradients_workspace = index_gradient_bytes;
  }
}

}  // namespace

std::vector<SelectKernel> select_entries() {
  std::vector<SelectKernel> entries;
  add_scores<DType::f32>(entries);
  add_scores<DType::f16>(entries);
  add_scores<DType::bf16>(entries);
  add_scores<DType::e4m3>(entries);
  add_top_k<DType::f32>(entries);
  add_top_k<DType::f16>(entries);
  add_top_k<DType::bf16>(entries);
  add_losses(entries);
  return entries;
}

}  // namespace keyhole::simple
