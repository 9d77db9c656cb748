// src/kernels/device/top_k_rows.cu
#include <algorithm>

#include "base/int_math.h"
#include "kernels/device/top_k_rows.h"

namespace keyhole::device {
namespace {

int64_t bytes_of_bits(const PlanView* plan, const TopKArgs& args) {
  const int64_t* const n = args.scores.shape;
  return plan == nullptr ? 0 : row_bits_bytes(n[0] * n[1], n[2], n[3]);
}

}  // namespace

int64_t top_k_bits_bytes(const TopKArgs& args) {
  return checked_add(bytes_of_bits(args.visible, args), bytes_of_bits(args.always, args),
                     "top_k: bits of rows");
}

TopKRows top_k_rows(const TopKArgs& args, void* memory, cudaStream_t stream) {
  const TensorView& scores = args.scores;
  const int64_t heads = scores.shape[0] * scores.shape[1], entries = scores.shape[3];
  TopKRows rows;
  rows.scores = scores.data;
  rows.batch_stride = scores.strides[0];
  rows.group_stride = scores.strides[1];
  rows.row_stride = scores.strides[2];
  rows.entries = entries;
  rows.groups = std::max<int64_t>(1, scores.shape[1]);
  rows.rows = scores.shape[2];
  rows.num_rows = heads * scores.shape[2];
  rows.k = int32_t(std::min(args.k, entries));
  rows.indices = args.indices + args.queries.first * args.row_stride;
  rows.columns = args.columns;
  rows.index_batch_stride = args.batch_stride;
  rows.index_group_stride = args.group_stride;
  rows.index_row_stride = args.row_stride;
  if (args.counts != nullptr) {
    rows.counts = args.counts + args.queries.first * args.counts_row_stride;
    rows.count_batch_stride = args.counts_batch_stride;
    rows.count_group_stride = args.counts_group_stride;
    rows.count_row_stride = args.counts_row_stride;
  }
  rows.takes_short_rows = args.takes_short_rows;
  if (args.visible != nullptr) {
    rows.visible = draw_row_bits(*args.visible, heads, args.queries, entries, memory, stream);
    memory = static_cast<std::byte*>(memory) + bytes_of_bits(args.visible, args);
  }
  if (args.always != nullptr) {
    rows.always = draw_row_bits(*args.always, heads, args.queries, entries, memory, stream);
  }
  return rows;
}

}  // namespace keyhole::device
