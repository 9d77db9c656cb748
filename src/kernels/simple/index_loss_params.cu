// src/kernels/simple/index_loss_params.cu
#include <algorithm>

#include "base/int_math.h"
#include "kernels/device/math.cuh"
#include "kernels/device/rows.cuh"
#include "kernels/simple/index_loss_params.h"

namespace keyhole::simple {

AnyTensor any_tensor(const TensorView& tensor) {
  const DeviceTensor at = device::device_tensor(tensor);
  const int64_t cols = tensor.shape[tensor.rank - 1];
  const int64_t address = int64_t(reinterpret_cast<uintptr_t>(at.data));
  const bool in_fours = (at.batch_stride | at.head_stride | at.row_stride | cols) % 4 == 0 &&
                        address % (4 * bytes_of(tensor.dtype)) == 0;
  return {at, tensor.dtype, in_fours};
}

IndexLossParams index_loss_params(const IndexLossArgs& args) {
  constexpr const char* kWho = "index_loss";
  const auto optional = [](const TensorView& tensor) {
    return tensor.is_given() ? device::device_tensor(tensor) : DeviceVector{};
  };
  const int64_t* const q = args.q.shape;
  const int64_t* const target = args.target_q.shape;
  const int64_t groups = args.k.shape[1], divisor = std::max<int64_t>(1, groups);
  IndexLossParams p;
  p.q = any_tensor(args.q), p.k = any_tensor(args.k);
  p.w = optional(args.w), p.k_scale = optional(args.k_scale);
  p.target_q = any_tensor(args.target_q), p.target_k = any_tensor(args.target_k);
  p.target_lse = any_tensor(args.target_lse);
  p.rule = numbers_of<device::CarefulMath>(args.rule);
  p.loss = optional(args.loss), p.stats = optional(args.stats);
  p.units = narrow(checked_mul(q[0], groups, kWho), kWho);
  p.groups = narrow(groups, kWho);
  p.heads = narrow(q[1] / divisor, kWho);
  p.head_dim = narrow(q[3], kWho);
  p.target_heads = narrow(target[1] / divisor, kWho);
  p.target_dim = narrow(target[3], kWho);
  p.heads_per_key = narrow(target[1] / std::max<int64_t>(1, args.target_k.shape[1]), kWho);
  p.q_len = q[2];
  p.entries = args.k.shape[2];
  p.picked = args.has_rows ? args.rows : nullptr;
  return p;
}

RowChunks row_chunks(const IndexLossArgs& args, int64_t row_bytes, int64_t most_bytes) {
  constexpr int64_t kMostCtas = int64_t{1} << 24;  // of a launch with one for each row
  const int64_t units = std::max<int64_t>(1, args.q.shape[0] * args.k.shape[1]);
  const int64_t bits = device::row_bits_bytes(units, 1, args.k.shape[2]);
  const int64_t rows = args.has_rows ? args.num_rows : args.q.shape[2];
  const int64_t fitting = most_bytes / std::max<int64_t>(1, row_bytes + bits);
  const int64_t most = std::min(fitting, kMostCtas / units);
  return {rows, std::clamp<int64_t>(most, 1, std::max<int64_t>(1, rows))};
}

void draw_chunk(const IndexLossArgs& args, IndexLossParams& p, int64_t first_row, int64_t num_rows,
                void* memory) {
  p.first_row = first_row, p.num_rows = num_rows;
  p.listed = device::draw_row_bits(args.lists, p.units, {first_row, num_rows}, p.entries, memory,
                                   static_cast<cudaStream_t>(args.launch.stream), p.picked);
}

}  // namespace keyhole::simple
