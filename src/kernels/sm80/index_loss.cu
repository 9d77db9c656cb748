// src/kernels/sm80/index_loss.cu
// The launches of an index loss, and of its gradients:
//
//   bits     device/row_bits.h       what is listed
//   lists    index_loss_lists.cu     the keys of every row
//   pairs    index_loss_pairs.cuh    sums of the loss; or dw and the gradients of q . k
//   dq       index_loss_dq.cuh
//   sums     mma/gather_spans.cuh    dk, by spans of keys
//
// for as many queries at a time as fit the scratch memory.
#include <algorithm>
#include <utility>

#include "base/int_math.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/grid_loop.cuh"
#include "kernels/device/launch.h"
#include "kernels/device/loss_sums.cuh"
#include "kernels/device/rows.cuh"
#include "kernels/device/storage.h"
#include "kernels/mma/gather_launch.h"
#include "kernels/sm80/index_loss.h"
#include "kernels/sm80/index_loss_launch.h"

namespace keyhole::sm80 {

using device::kMostLossBytes, device::LossSums;

namespace {

constexpr int32_t kSegmentKeys = 8 * kLossKeys;  // of a CTA, at least

LossHeads heads_of(const IndexLossArgs& args) {
  const device::IndexLossParams p = device::index_loss_params(args);
  return {p.heads, p.head_dim, p.target_heads, p.target_dim, p.heads_per_key};
}
bool has_few_heads(const LossHeads& of) {
  const int32_t shared = std::min(of.heads_per_key, of.target_heads);
  return std::max(of.heads, shared) <= kFewHeads;
}

// The keys of a row, at most.
int64_t room_of(const IndexLossArgs& args) {
  const int64_t entries = args.k.shape[2];
  return lists_alone(args) ? std::min<int64_t>(entries, args.lists.gathers[0].table.room())
                           : entries;
}

// CTAs that share a row: two for every SM are enough.
int32_t segments_of(const IndexLossArgs& args, int64_t room, int64_t rows) {
  const int64_t wanted =
      ceil_div(int64_t{2} * std::max(1, args.launch.num_processors), std::max<int64_t>(1, rows));
  return int32_t(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, room / kSegmentKeys)));
}

// Takes pieces of the scratch memory of a call, or only adds up their sizes.
class Scratch {
 public:
  explicit Scratch(void* memory) : begin_(static_cast<char*>(memory)) {}
  template <class T>
  T* take(int64_t count) {
    T* const piece = begin_ == nullptr ? nullptr : reinterpret_cast<T*>(begin_ + bytes_);
    bytes_ += round_up(checked_mul(count, int64_t(sizeof(T)), "index_loss: memory"), 256);
    return piece;
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* begin_;
  int64_t bytes_ = 0;
};

// All that the launches over a chunk of rows need, and where it is.
struct Layout {
  device::RowChunks chunks;
  LossPairs pairs;
  void* bits = nullptr;
  void* queries = nullptr;  // of picked rows, one beside the other: [batch][heads][rows][head_dim]
  float* dk = nullptr;      // [units][entries][head_dim]
  int64_t bytes = 0;
};

Layout lay_out(const IndexLossArgs& args, bool with_gradients, void* memory) {
  Layout l;
  const LossHeads heads = heads_of(args);
  const int64_t units = args.q.shape[0] * args.k.shape[1], entries = args.k.shape[2];
  const int64_t dk_count = checked_mul(units * entries, heads.head_dim, "index_loss: dk");
  const int64_t row_tiles = ceil_div(heads.heads, device::kPairRows);
  LossLists& lists = l.pairs.lists;
  lists.room = room_of(args);
  lists.spans = int32_t(ceil_div(entries, int64_t{device::kSpanKeys}));
  const int64_t query_bytes = args.has_rows ? 2 * int64_t{heads.heads} * heads.head_dim : 0;
  const int64_t pair_bytes = 4 + (with_gradients ? row_tiles * device::kPairBytes : 0);
  const int64_t of_row = lists.room * pair_bytes + 4 + int64_t(sizeof(LossSums)) +
                         (with_gradients ? 4 * (lists.spans + 1) + query_bytes : 0);
  const int64_t of_dk = with_gradients ? 4 * dk_count : 0;
  l.chunks = device::row_chunks(args, checked_mul(units, of_row, "index_loss: rows"),
                                std::max(kMostLossBytes / 4, kMostLossBytes - of_dk));
  const int64_t rows = units * l.chunks.at_once;
  LossParts& parts = l.pairs.parts;
  parts.segments = segments_of(args, lists.room, rows);

  Scratch scratch(memory);
  l.bits = scratch.take<char>(device::chunk_bits_bytes(args, l.chunks.at_once));
  lists.keys = scratch.take<int32_t>(rows * lists.room);
  lists.counts = scratch.take<int32_t>(rows);
  if (with_gradients) {
    lists.begin = scratch.take<int32_t>((lists.spans + 1) * rows);
    l.pairs.d_scores = scratch.take<char>(rows * row_tiles * lists.room * device::kPairBytes);
    l.queries = scratch.take<char>(rows * query_bytes);
    l.dk = scratch.take<float>(dk_count);
    parts.dw = scratch.take<float>(parts.segments > 1 ? rows * parts.segments * heads.heads : 0);
  } else {
    parts.sums = scratch.take<LossSums>(parts.segments > 1 ? rows * parts.segments : 0);
  }
  l.bytes = scratch.bytes();
  l.pairs.heads = heads;
  l.pairs.row_tiles = int32_t(row_tiles);
  return l;
}

template <DType kType, LossResult kResult>
void launch_pairs(LossPairs& pairs, const IndexLossArgs& args, cudaStream_t stream) {
  const auto launch = [&]<int kHeads>(std::integral_constant<int, kHeads>) {
    pairs.memory =
        loss_memory<LossShape<kHeads>>(pairs.heads, pairs.loss.groups, args.launch.shared_bytes);
    launch_index_loss_pairs<kType, kHeads, kResult>(pairs, stream);
  };
  if (has_few_heads(pairs.heads)) {
    launch(std::integral_constant<int, kFewHeads>());
  } else {
    launch(std::integral_constant<int, kManyHeads>());
  }
}

// Adds up the parts of rows that several CTAs shared.
__global__ void __launch_bounds__(device::kLoopThreads)
    join_parts(const __grid_constant__ LossPairs p) {
  device::for_each_index(int64_t{p.loss.units} * p.loss.num_rows, [&](int64_t row) {
    const auto unit = int32_t(row / p.loss.num_rows);
    const int64_t query = device::query_at(p.loss, row - unit * p.loss.num_rows);
    if (query < 0) return;
    const auto* const parts = static_cast<const LossSums*>(p.parts.sums) + row * p.parts.segments;
    LossSums sums = parts[0];
    for (int32_t segment = 1; segment < p.parts.segments; ++segment) sums.add(parts[segment]);
    device::store_loss(p.loss, unit, query, sums);
  });
}

// Gradients of queries that do not count are 0; those that do are stored later.
template <class T>
__global__ void __launch_bounds__(device::kLoopThreads)
    clear_gradients(const __grid_constant__ LossPairs p,
                    const __grid_constant__ device::DeviceTensor dq) {
  const int64_t heads = int64_t{p.loss.groups} * p.heads.heads;
  const int64_t rows = p.loss.units / p.loss.groups * heads * p.loss.q_len;
  device::for_each_index(rows * p.heads.head_dim, [&](int64_t i) {
    const int64_t col = i % p.heads.head_dim, row = i / p.heads.head_dim;
    const int64_t query = row % p.loss.q_len, head = row / p.loss.q_len;
    dq.row<T>(head / heads, head % heads, query)[col] = device::stored_as<T>(0);
    if (col == 0 && p.dw.data != nullptr) *p.dw.row<float>(head / heads, head % heads, query) = 0;
  });
}

// The picked queries, 16 bytes at a time; zeros where none is.
template <class T>
__global__ void __launch_bounds__(device::kLoopThreads)
    copy_picked(const __grid_constant__ LossPairs p, uint4* to) {
  const int64_t heads = int64_t{p.loss.groups} * p.heads.heads, vectors = p.heads.head_dim / 8;
  const int64_t batch = p.loss.units / p.loss.groups;
  device::for_each_index(batch * heads * p.loss.num_rows * vectors, [&](int64_t i) {
    const int64_t row = i / vectors, head = row / p.loss.num_rows;
    const int64_t query = device::query_at(p.loss, row % p.loss.num_rows);
    const device::AnyTensor& q = p.loss.q;
    uint4 vector = {};
    if (query >= 0) {
      const T* const from =
          static_cast<const T*>(q.at.data) + q.offset(head / heads, head % heads, query);
      vector = __ldg(reinterpret_cast<const uint4*>(from) + i % vectors);
    }
    to[i] = vector;
  });
}

template <class T>
__global__ void __launch_bounds__(device::kLoopThreads)
    store_dk(const __grid_constant__ LossPairs p, const __grid_constant__ device::DeviceTensor dk,
             const float* sums) {
  const int64_t entries = p.loss.entries, cols = p.heads.head_dim;
  device::for_each_index(p.loss.units * entries * cols, [&](int64_t i) {
    const int64_t col = i % cols, row = i / cols, unit = row / entries;
    dk.row<T>(unit / p.loss.groups, unit % p.loss.groups, row % entries)[col] =
        device::stored_as<T>(sums[i]);
  });
}

// dk, from the gradients of q . k of the rows at hand.
void add_dk(const Layout& l, DType dtype, const IndexLossArgs& args, cudaStream_t stream) {
  const LossPairs& pairs = l.pairs;
  const device::IndexLossParams& loss = pairs.loss;
  const int64_t rows = loss.num_rows, heads = int64_t{loss.groups} * pairs.heads.heads;
  device::BackwardParams params;
  params.sizes = {.batch = loss.units / loss.groups,
                  .heads = int32_t(heads),
                  .kv_heads = loss.groups,
                  .head_dim = pairs.heads.head_dim,
                  .v_head_dim = 0,
                  .q_len = rows,
                  .k_len = loss.entries};
  params.q = loss.q.at;
  if (args.has_rows) {
    const int64_t of_head = rows * pairs.heads.head_dim;
    params.q = {l.queries, heads * of_head, of_head, pairs.heads.head_dim};
  } else {
    params.q.data = static_cast<char*>(params.q.data) + 2 * loss.first_row * params.q.row_stride;
  }
  params.sums.dk = l.dk;
  GatherView view{};
  view.q_len = rows;
  view.k_len = loss.entries;
  view.groups = loss.units;
  view.rows_per_list = 1;
  view.lists = rows;
  device::SpanLists lists;
  lists.lists = lists.chunk = lists.count = loss.units * rows;
  lists.heads = pairs.heads.heads;
  lists.spans = pairs.lists.spans;
  lists.room = int32_t(pairs.lists.room);
  lists.row_tiles = pairs.row_tiles;
  lists.keys = pairs.lists.keys;
  lists.begin = pairs.lists.begin;
  lists.gradients = pairs.d_scores;
  if (lists.count == 0) return;
  mma::span_sums_launch(dtype, args.launch.shared_bytes)(params, view, lists, stream);
}

template <class T>
void launch_loop(const char* name, void (*kernel)(T), int64_t count, cudaStream_t stream,
                 const T& params) {
  if (count > 0) {
    device::launch(name, kernel, {device::loop_ctas(count), device::kLoopThreads, 0}, stream,
                   params);
  }
}

}  // namespace

int64_t index_loss_bytes(const IndexLossArgs& args) {
  return lay_out(args, /*with_gradients=*/false, nullptr).bytes;
}
int64_t index_gradient_bytes(const IndexGradientArgs& args) {
  return lay_out(args.loss, /*with_gradients=*/true, nullptr).bytes;
}

template <DType kType>
void run_index_loss(const IndexLossArgs& args) {
  const auto stream = static_cast<cudaStream_t>(args.launch.stream);
  Layout l = lay_out(args, /*with_gradients=*/false, args.launch.workspace);
  LossPairs& pairs = l.pairs;
  pairs.loss = device::index_loss_params(args);
  if (pairs.loss.units == 0 || pairs.loss.q_len == 0) return;
  if (args.has_rows) device::clear_losses(pairs.loss, stream);
  l.chunks.for_each([&](int64_t first, int64_t rows) {
    if (rows == 0) return;
    device::draw_chunk(args, pairs.loss, first, rows, l.bits);
    list_loss_keys(pairs, /*with_gradients=*/false, stream);
    launch_pairs<kType, LossResult::loss>(pairs, args, stream);
    if (pairs.parts.segments > 1) {
      launch_loop("the loss of shared rows", join_parts, pairs.loss.units * rows, stream, pairs);
    }
  });
}

template <DType kType>
void run_index_gradients(const IndexGradientArgs& args) {
  using T = device::Storage<kType>;
  const auto stream = static_cast<cudaStream_t>(args.loss.launch.stream);
  Layout l = lay_out(args.loss, /*with_gradients=*/true, args.loss.launch.workspace);
  LossPairs& pairs = l.pairs;
  pairs.loss = device::index_loss_params(args.loss);
  const device::IndexLossParams& loss = pairs.loss;
  const device::DeviceTensor dq = device::device_tensor(args.dq),
                             dk = device::device_tensor(args.dk);
  pairs.dloss = device::device_tensor(args.dloss);
  if (args.dw.is_given()) pairs.dw = device::device_tensor(args.dw);
  const int64_t dk_count = loss.units * loss.entries * pairs.heads.head_dim;
  if (dk_count > 0) {
    check_cuda(cudaMemsetAsync(l.dk, 0, size_t(dk_count) * sizeof(float), stream),
               "clearing the sums of dk");
  }
  const int64_t heads = int64_t{loss.units} * pairs.heads.heads;
  if (args.loss.has_rows && heads * loss.q_len > 0) {
    device::launch(
        "clearing gradients of an indexer", clear_gradients<T>,
        {device::loop_ctas(heads * loss.q_len * pairs.heads.head_dim), device::kLoopThreads, 0},
        stream, pairs, dq);
  }
  l.chunks.for_each([&](int64_t first, int64_t rows) {
    if (loss.units * rows == 0) return;
    device::draw_chunk(args.loss, pairs.loss, first, rows, l.bits);
    list_loss_keys(pairs, /*with_gradients=*/true, stream);
    launch_pairs<kType, LossResult::gradients>(pairs, args.loss, stream);
    const auto launch_dq = [&]<int kHeadDim>(std::integral_constant<int, kHeadDim>) {
      launch_index_loss_dq<kType, kHeadDim>(pairs, dq, stream);
    };
    if (pairs.heads.head_dim <= 64) {
      launch_dq(std::integral_constant<int, 64>());
    } else if (pairs.heads.head_dim <= 128) {
      launch_dq(std::integral_constant<int, 128>());
    } else {
      launch_dq(std::integral_constant<int, kMostLossColumns>());
    }
    if (args.loss.has_rows) {
      const int64_t vectors = heads * rows * (pairs.heads.head_dim / 8);
      device::launch("copying the queries of an index loss", copy_picked<T>,
                     {device::loop_ctas(vectors), device::kLoopThreads, 0}, stream, pairs,
                     static_cast<uint4*>(l.queries));
    }
    add_dk(l, kType, args.loss, stream);
  });
  if (dk_count > 0) {
    device::launch("storing dk of an indexer", store_dk<T>,
                   {device::loop_ctas(dk_count), device::kLoopThreads, 0}, stream, pairs, dk, l.dk);
  }
}

template void run_index_loss<DType::f16>(const IndexLossArgs&);
template void run_index_loss<DType::bf16>(const IndexLossArgs&);
template void run_index_gradients<DType::bf16>(const IndexGradientArgs&);

}  // namespace keyhole::sm80
