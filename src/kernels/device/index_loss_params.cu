// src/kernels/device/index_loss_params.cu
#include <algorithm>

#include "base/int_math.h"
#include "kernels/device/grid_loop.cuh"
#include "kernels/device/index_loss_params.h"
#include "kernels/device/launch.h"
#include "kernels/device/loss_sums.cuh"
#include "kernels/device/math.cuh"
#include "kernels/device/rows.cuh"

namespace keyhole::device {

AnyTensor any_tensor(const TensorView& tensor) {
  const DeviceTensor at = device_tensor(tensor);
  const int64_t cols = tensor.shape[tensor.rank - 1];
  const int64_t address = int64_t(reinterpret_cast<uintptr_t>(at.data));
  const bool in_fours = (at.batch_stride | at.head_stride | at.row_stride | cols) % 4 == 0 &&
                        address % (4 * bytes_of(tensor.dtype)) == 0;
  return {at, tensor.dtype, in_fours};
}

IndexLossParams index_loss_params(const IndexLossArgs& args) {
  constexpr const char* kWho = "index_loss";
  const auto optional = [](const TensorView& tensor) {
    return tensor.is_given() ? device_tensor(tensor) : DeviceVector{};
  };
  const int64_t* const q = args.q.shape;
  const int64_t* const target = args.target_q.shape;
  const int64_t groups = args.k.shape[1], divisor = std::max<int64_t>(1, groups);
  IndexLossParams p;
  p.q = any_tensor(args.q), p.k = any_tensor(args.k);
  p.w = optional(args.w), p.k_scale = optional(args.k_scale);
  p.target_q = any_tensor(args.target_q), p.target_k = any_tensor(args.target_k);
  p.target_lse = any_tensor(args.target_lse);
  p.rule = numbers_of<CarefulMath>(args.rule);
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
  p.k_len = args.target_k.shape[2];
  p.keys_per_entry = args.keys_per_entry;
  p.picked = args.has_rows ? args.rows : nullptr;
  return p;
}

RowChunks row_chunks(const IndexLossArgs& args, int64_t row_bytes, int64_t most_bytes) {
  constexpr int64_t kMostCtas = int64_t{1} << 24;  // of a launch with one for each row
  const int64_t units = std::max<int64_t>(1, args.q.shape[0] * args.k.shape[1]);
  const int64_t bits = chunk_bits_bytes(args, 1);
  const int64_t rows = args.has_rows ? args.num_rows : args.q.shape[2];
  const int64_t fitting = most_bytes / std::max<int64_t>(1, row_bytes + bits);
  const int64_t most = std::min(fitting, kMostCtas / units);
  return {rows, std::clamp<int64_t>(most, 1, std::max<int64_t>(1, rows))};
}

int64_t chunk_bits_bytes(const IndexLossArgs& args, int64_t rows) {
  const int64_t units = args.q.shape[0] * args.k.shape[1];
  const int64_t bits = row_bits_bytes(units, rows, args.k.shape[2]);
  if (args.keys_per_entry == 1) return bits;
  return bits + row_bits_bytes(units, rows, args.target_k.shape[2]);
}

namespace {

// A word of entries from the bits of their keys.
__global__ void __launch_bounds__(kLoopThreads)
    pool_bits(RowBits keys, uint32_t* entries, int64_t words, int64_t count, int64_t k_len,
              int64_t keys_per_entry) {
  for_each_index(count, [&](int64_t i) {
    const uint32_t* const row = keys.bits + i / words * keys.words;
    const int64_t first = i % words * 32 * keys_per_entry;
    uint32_t bits = 0;
    for (int32_t entry = 0; entry < 32; ++entry) {
      const int64_t begin = first + entry * keys_per_entry;
      const int64_t end = min(begin + keys_per_entry, k_len);
      bool is_listed = false;
      for (int64_t key = begin; key < end && !is_listed; ++key) {
        is_listed = (row[key / 32] >> (key % 32) & 1) != 0;
      }
      bits |= uint32_t(is_listed) << entry;
    }
    entries[i] = bits;
  });
}

__global__ void __launch_bounds__(kLoopThreads)
    store_no_losses(const __grid_constant__ IndexLossParams p) {
  for_each_index(p.units * p.q_len, [&](int64_t i) {
    store_loss(p, int32_t(i / p.q_len), i % p.q_len, 0, -INFINITY, 0);
  });
}

}  // namespace

void clear_losses(const IndexLossParams& p, cudaStream_t stream) {
  launch("clearing index losses", store_no_losses, {loop_ctas(p.units * p.q_len), kLoopThreads, 0},
         stream, p);
}

void draw_chunk(const IndexLossArgs& args, IndexLossParams& p, int64_t first_row, int64_t num_rows,
                void* memory) {
  p.first_row = first_row, p.num_rows = num_rows;
  const auto stream = static_cast<cudaStream_t>(args.launch.stream);
  const auto draw = [&](int64_t columns, void* to) {
    return draw_row_bits(args.lists, p.units, {first_row, num_rows}, columns, to, stream, p.picked);
  };
  if (p.keys_per_entry == 1) {
    p.listed = draw(p.entries, memory);
    return;
  }
  auto* const keys =
      static_cast<unsigned char*>(memory) + row_bits_bytes(p.units, num_rows, p.entries);
  p.listed_keys = draw(p.k_len, keys);
  const bool is_shared = p.listed_keys.head_stride == 0;  // by all units
  const int64_t words = row_words(p.entries);
  const int64_t count = words * num_rows * (is_shared ? std::min(p.units, 1) : p.units);
  p.listed = {static_cast<uint32_t*>(memory), words, is_shared ? 0 : words * num_rows};
  if (count == 0) return;
  launch("the bits of entries", pool_bits, {loop_ctas(count), kLoopThreads, 0}, stream,
         p.listed_keys, static_cast<uint32_t*>(memory), words, count, p.k_len, p.keys_per_entry);
}

}  // namespace keyhole::device
