// src/select/requests.cpp
#include "select/requests.h"

#include <algorithm>

#include "runtime/dispatch.h"
#include "runtime/gpu.h"

namespace keyhole {
namespace {

// Asks the GPU only if some kernel could use it.
void describe_device(SelectRequest& request, std::initializer_list<const TensorView*> tensors) {
  request.is_aligned = rows_are_aligned(tensors);
  if (request.device.kind != Device::Kind::cuda) return;
  const bool has_kernels = std::ranges::any_of(select_table(), [](const SelectKernel& kernel) {
    return kernel.device == Device::Kind::cuda;
  });
  if (!has_kernels) return;
  request.compute_capability = gpu(request.device).compute_capability;
  request.why_no_tma = why_no_tma(tensors);
}

}  // namespace

SelectRequest request_of(SelectOperation operation, const IndexerView& indexer, int64_t k,
                         const std::string& backend) {
  SelectRequest request{.backend = backend,
                        .operation = operation,
                        .dtype = indexer.q.dtype,
                        .device = indexer.q.device,
                        .index_heads = indexer.q.shape[1],
                        .groups = indexer.k.shape[1],
                        .head_dim = indexer.q.shape[3],
                        .entries = indexer.k.shape[2],
                        .k = k};
  describe_device(request, {&indexer.q, &indexer.k});
  return request;
}

SelectRequest request_of(SelectOperation operation, const IndexerView& indexer,
                         const AttentionTarget& target, const std::string& backend) {
  SelectRequest request = request_of(operation, indexer, 0, backend);
  request.target_dtype = target.q.dtype;
  request.target_heads = target.q.shape[1];
  request.target_dim = target.q.shape[3];
  request.keys_per_entry = target.keys_per_entry;
  request.is_aligned = request.is_aligned && rows_are_aligned({&target.q, &target.k});
  return request;
}

SelectRequest request_of(const TensorView& scores, const SelectOptions& options) {
  SelectRequest request{.backend = options.backend,
                        .operation = SelectOperation::top_k,
                        .dtype = scores.dtype,
                        .device = scores.device,
                        .groups = scores.shape[1],
                        .entries = scores.shape[3],
                        .k = options.k};
  describe_device(request, {&scores});
  return request;
}

}  // namespace keyhole
