// src/kernels/device/index_loss_params.h
// What the launches of an index loss receive. They follow bits: those of a plan or of an index
// tensor, drawn for as many queries at a time as fit the scratch memory. Where an entry stands for
// several keys, bits of keys are drawn first.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/device/params.h"
#include "kernels/device/row_bits.h"
#include "kernels/select_contract.h"

namespace keyhole::device {

// A tensor of any dtype. One kernel reads all of them: it decides once for many elements.
struct AnyTensor {
  DeviceTensor at;
  DType dtype = DType::f32;
  bool in_fours = false;  // rows can be read four elements at a time

  constexpr int64_t offset(int64_t batch, int64_t head, int64_t index) const {
    return batch * at.batch_stride + head * at.head_stride + index * at.row_stride;
  }
};

AnyTensor any_tensor(const TensorView& tensor);

struct IndexLossParams {
  AnyTensor q;                      // (batch, head, query)
  AnyTensor k;                      // (batch, group, entry)
  DeviceVector w, k_scale;          // like q and k, f32; data null: all are 1
  AnyTensor target_q, target_k;     // (batch, head, query), (batch, kv head, key)
  AnyTensor target_lse;             // (batch, head, query)
  RuleNumbers<float> rule;          // of CarefulMath
  DeviceVector loss;                // (batch, group, query)
  DeviceTensor stats;               // the same, two of each
  int32_t units = 0, groups = 0;    // units: batch x groups
  int32_t heads = 0, head_dim = 0;  // of a group
  int32_t target_heads = 0, target_dim = 0, heads_per_key = 1;  // target_heads: of a group
  int64_t q_len = 0, entries = 0, k_len = 0;
  int64_t keys_per_entry = 1;       // keys of target_k that an entry of k stands for
  const int32_t* picked = nullptr;  // the queries that count, ascending; null: all

  // The rows at hand: queries [first_row, first_row + num_rows) of those that count.
  int64_t first_row = 0, num_rows = 0;
  RowBits listed, listed_keys;  // listed_keys: given if an entry stands for several keys
};

IndexLossParams index_loss_params(const IndexLossArgs& args);

// How many queries count, and for how many of them there is room at once. row_bytes: of one query
// in all units, beside its bits. most_bytes: for all.
struct RowChunks {
  int64_t rows = 0, at_once = 0;

  template <class Visit>
  void for_each(Visit visit) const {  // visit(first row, rows); at least once
    int64_t first = 0;
    do {
      visit(first, std::min(at_once, rows - first));
      first += at_once;
    } while (first < rows);
  }
  bool is_one() const { return rows <= at_once; }
};
RowChunks row_chunks(const IndexLossArgs& args, int64_t row_bytes, int64_t most_bytes);

// The memory for the bits of a chunk of `rows` queries.
int64_t chunk_bits_bytes(const IndexLossArgs& args, int64_t rows);
// Queues the drawing of the bits of a chunk.
void draw_chunk(const IndexLossArgs& args, IndexLossParams& p, int64_t first_row, int64_t num_rows,
                void* memory);

// Queues the storing of losses of 0, for all rows: those that count are stored later.
void clear_losses(const IndexLossParams& p, cudaStream_t stream);

inline constexpr int64_t kMostLossBytes = int64_t{512} << 20;

}  // namespace keyhole::device
