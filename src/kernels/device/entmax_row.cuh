// src/kernels/device/entmax_row.cuh
// One row of entmax or top_k by one warp, whatever the plan, in fp32 or in fp64.
//
//   scan     q . k with every key that is attended to; what may have weight goes into a list, which
//            is made shorter when it is full (score_list.cuh)
//   solve    top_k of the list, and its lambda
//   store    out, of the values of the keys that have weight; lambda; the support
//
// A row that has more keys of weight than a list has room for reads its keys again in each step
// instead: once per digit of top_k and once per step towards lambda, which are bounded.
#pragma once

#include "kernels/device/key_products.cuh"
#include "kernels/device/key_walk.cuh"
#include "kernels/device/score_list.cuh"

namespace keyhole::device {

// What a warp has in shared memory.
struct RowMemory {
  static constexpr int32_t kCols = 576;  // of the widest head
  float q[kCols];                        // with zeros after head_dim
  int32_t histogram[kDigits];
  int32_t support[kSupportKeys];
};

// A row, as all steps see it.
template <class T>
struct EntmaxRow {
  const EntmaxParams& p;
  BitmapLayout layout;
  RowMemory& memory;
  int32_t batch, head, kv_head, head_index;
  int64_t query;
  KeyShare share;  // of this warp
  HeadRows<T> k;

  __device__ EntmaxRow(const EntmaxParams& params, BitmapLayout of_bitmaps, RowMemory& of_warp,
                       int64_t row, KeyShare of_row = {})
      : p(params), layout(of_bitmaps), memory(of_warp), share(of_row) {
    head_index = int32_t(row / p.sizes.q_len);
    query = row - head_index * p.sizes.q_len;
    batch = head_index / p.sizes.heads;
    head = head_index % p.sizes.heads;
    kv_head = p.sizes.kv_head_of(head);
    k = {p.k.row<T>(batch, kv_head, 0), p.k.row_stride, p.sizes.head_dim,
         is_in_vectors<T>(p.k, p.sizes.head_dim)};
    const T* q = p.q.row<T>(batch, head, query);
    __syncwarp();  // the row before this one has been read
    for (int32_t col = int32_t(threadIdx.x % 32); col < RowMemory::kCols; col += 32) {
      memory.q[col] = col < p.sizes.head_dim ? value_of(q[col]) : 0.f;
    }
    __syncwarp();
  }

  __device__ KeyWalk walk() const { return KeyWalk(p.plan, layout, head_index, query, share); }
  template <class Number>
  __device__ Number sink() const {
    return p.sink == nullptr ? -std::numeric_limits<Number>::infinity()
                             : Number(p.sink[head * p.sink_stride]);
  }
};

template <class Number>
using ScoreRule = SoftmaxRule<BaseEMath<Number>>;

template <class Number>
__device__ Number warp_largest(Number x) {  // not for NaN
#pragma unroll
  for (int32_t step = 16; step > 0; step /= 2) {
    const Number other = __shfl_xor_sync(~0u, x, step);
    x = other > x ? other : x;
  }
  return x;
}

enum class RowKind : uint8_t {
  listed,     // the list has all keys that have weight
  unlisted,   // there are too many
  not_finite  // fp32: a score is not finite. fp64: it is NaN or +inf, and there are no weights
};

template <class Number>
struct ScannedRow {
  RowKind kind = RowKind::listed;
  int32_t count = 0;     // entries of the list
  int32_t attended = 0;  // keys with a score above -inf
  RowBounds<Number> bounds;
};

template <class Number, class T>
__device__ __forceinline__ ScannedRow<Number> scan(const EntmaxRow<T>& row,
                                                   const ScoreList<Number>& list) {
  constexpr bool kIsExact = std::is_same_v<Number, double>;
  constexpr Number kInfinity = std::numeric_limits<Number>::infinity();
  constexpr Number kLargest = std::numeric_limits<Number>::max();
  constexpr int32_t kFirstLimit = 128;  // of a list, before it is made shorter
  const EntmaxParams& p = row.p;
  const auto rule = ScoreRule<Number>::of(rule_of(p.sizes));
  const Number sink = row.template sink<Number>();
  ScannedRow<Number> scanned;
  RowBounds<Number> bounds = {sink, sink, lowest_score(p.power, sink)};
  const int32_t most = list.capacity - 32;
  int32_t limit = most < kFirstLimit ? most : kFirstLimit;
  int32_t count = 0;
  bool is_bad = !(sink <= kLargest);
  KeyWalk walk = row.walk();
  for (int32_t key = -1; walk.next(key);) {
    const Number product = product_with_key<Number>(row.memory.q, row.k, key);
    const Number score = rule.score(rule.bend(product));
    bool is_there = key >= 0;
    if constexpr (kIsExact) {
      is_bad = is_bad || (is_there && !(score <= kLargest));
      is_there = is_there && score != -kInfinity;
    } else {
      const bool is_finite = fabsf(product) <= kLargest && fabsf(score) <= kLargest;
      is_bad = is_bad || (is_there && !is_finite);
    }
    scanned.attended += __popc(__ballot_sync(~0u, is_there));
    if (!__any_sync(~0u, is_bad || (is_there && score >= bounds.lowest))) continue;
    if (__any_sync(~0u, is_bad)) {
      scanned.kind = RowKind::not_finite;
      scanned.attended = 1;
      return scanned;
    }
    const Number largest = warp_largest(is_there ? score : -kInfinity);
    if (largest > bounds.top) {
      bounds.top = largest;
      const Number lowest = lowest_score(p.power, largest);
      if (lowest > bounds.lowest) bounds.lowest = lowest;
    }
    if (scanned.kind == RowKind::unlisted) continue;
    const bool is_taken = is_there && score >= bounds.lowest;
    const uint32_t taken = __ballot_sync(~0u, is_taken);
    const int32_t before = __popc(taken & ((1u << (threadIdx.x % 32)) - 1));
    if (is_taken) list.entries[count + before] = {score, key};
    count += __popc(taken);
    if (count <= limit) continue;
    __syncwarp();
    RowBounds<Number> raised = bounds;  // a copy: what a function is given lies in memory
    count = shorten(p, list, count, row.memory.histogram, sink, raised);
    bounds = raised;
    limit = 2 * count + kFirstLimit < most ? 2 * count + kFirstLimit : most;
    if (count > most) scanned.kind = RowKind::unlisted;
  }
  if (is_bad) scanned.kind = RowKind::not_finite;  // the sink alone
  __syncwarp();
  scanned.count = count;
  scanned.bounds = bounds;
  return scanned;
}

// The scores of a row after its scan: listed, or computed again.
template <class Number, class T>
struct RowScores {
  const EntmaxRow<T>& row;
  ScoreRule<Number> rule;
  ScoreList<Number> list;
  int32_t count;  // -1: not listed

  // Calls visit(is there, score, key) for 32 keys at a time, one per lane. No score is NaN.
  template <class Visit>
  __device__ __forceinline__ void for_each(Visit visit) const {
    KeyWalk walk = row.walk();
    for (int32_t place = int32_t(threadIdx.x % 32);; place += 32) {
      int32_t key = -1;
      Number score = -std::numeric_limits<Number>::infinity();
      if (count < 0) {
        if (!walk.next(key)) return;
        const Number product = rare_product_with_key<Number>(row.memory.q, row.k, key);
        if (key >= 0) score = rule.score(rule.bend(product));
      } else {
        if (place - int32_t(threadIdx.x % 32) >= count) return;
        if (place < count) {
          score = list.entries[place].score;
          key = list.entries[place].key;
        }
        __syncwarp();
      }
      visit(score > -std::numeric_limits<Number>::infinity(), score, key);
    }
  }
};

// Weighted values of keys. Lane l has columns l, l + 32, ...
template <class Number>
struct ValueSum {
  static constexpr int32_t kSteps = RowMemory::kCols / 32;
  Number sum[kSteps] = {};

  // Adds the value of each lane's key. Loads several rows before the first one is needed. The whole
  // warp calls.
  template <class T>
  __device__ __forceinline__ void add(const HeadRows<T>& v, Number weight, int32_t key,
                                      uint32_t lanes) {
    constexpr int kRowsAtOnce = 4;
    const int32_t lane = int32_t(threadIdx.x % 32);
    while (lanes != 0) {
      Number his_weight[kRowsAtOnce];
      const T* his_row[kRowsAtOnce];  // null: there are no more
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r, lanes &= lanes - 1) {
        const int32_t from = lanes != 0 ? __ffs(int(lanes)) - 1 : 0;
        his_weight[r] = __shfl_sync(~0u, weight, from);
        const int32_t his_key = __shfl_sync(~0u, key, from);
        his_row[r] = lanes != 0 ? v.data + his_key * v.stride : nullptr;
      }
#pragma unroll
      for (int32_t i = 0; i < kSteps; ++i) {
        const int32_t col = lane + 32 * i;
        if (32 * i >= v.cols) break;
        T element[kRowsAtOnce];
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          if (his_row[r] != nullptr && col < v.cols) element[r] = his_row[r][col];
        }
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          if (his_row[r] != nullptr && col < v.cols) {
            sum[i] += his_weight[r] * Number(value_of(element[r]));
          }
        }
      }
    }
  }

  template <class T>
  __device__ void store(T* out, int32_t cols) const {
#pragma unroll
    for (int32_t i = 0; i < kSteps; ++i) {
      const int32_t col = int32_t(threadIdx.x % 32) + 32 * i;
      if (col < cols) out[col] = stored_as<T>(float(sum[i]));
    }
  }
};

// Sorts the keys of a support in shared memory, ascending. The whole warp calls.
__device__ inline void sort_support(int32_t* keys) {
  static_assert(kSupportKeys == 64, "a lane compares one pair at a time");
  const int32_t lane = int32_t(threadIdx.x % 32);
  for (int32_t size = 2; size <= 64; size *= 2) {
    for (int32_t step = size / 2; step > 0; step /= 2) {
      const int32_t low = 2 * lane - (lane & (step - 1)), high = low + step;
      const bool is_ascending = (low & size) == 0;
      const int32_t a = keys[low], b = keys[high];
      if ((a > b) == is_ascending) {
        keys[low] = b;
        keys[high] = a;
      }
      __syncwarp();
    }
  }
}

// count: of the support, whose keys are in shared memory in any order, unless there are too many.
template <class T>
__device__ void store_support(const EntmaxRow<T>& row, int32_t count) {
  if (row.p.support.data == nullptr) return;
  int32_t* const keys = row.memory.support;
  int32_t* const to = row.p.support.template row<int32_t>(row.batch, row.head, row.query);
  const int32_t lane = int32_t(threadIdx.x % 32);
  const bool is_long = count > kSupportKeys;
  __syncwarp();
  for (int32_t i = lane; i < kSupportKeys; i += 32) {
    if (is_long || i >= count) keys[i] = INT_MAX;
  }
  __syncwarp();
  sort_support(keys);
  for (int32_t i = lane; i < kSupportKeys; i += 32) to[i] = keys[i] == INT_MAX ? -1 : keys[i];
  __syncwarp();
  if (is_long && lane == 0) to[0] = kLongSupport;
}

template <class T>
__device__ void store_lambda(const EntmaxRow<T>& row, float lambda) {
  if (row.p.lse.data == nullptr || threadIdx.x % 32 != 0) return;
  *row.p.lse.template row<float>(row.batch, row.head, row.query) = lambda;
}

// A row that has no weights, because a score or the sink is NaN or +inf.
template <class T>
__device__ void store_nan(const EntmaxRow<T>& row, bool has_keys) {
  T* const out = row.p.out.template row<T>(row.batch, row.head, row.query);
  const T value = stored_as<T>(has_keys ? NAN : 0.f);
  for (int32_t col = int32_t(threadIdx.x % 32); col < row.p.sizes.v_head_dim; col += 32) {
    out[col] = value;
  }
  store_lambda(row, NAN);
  store_support(row, INT_MAX);
}

// Solves and stores a row after its scan.
template <class Number, class T>
__device__ __noinline__ void finish(const EntmaxRow<T>& row, const ScoreList<Number>& list,
                                    const ScannedRow<Number>& scanned) {
  const EntmaxParams& p = row.p;
  const Number sink = row.template sink<Number>();
  RowScores<Number, T> scores = {row, ScoreRule<Number>::of(rule_of(p.sizes)), list, -1};
  TopKeys<Number> top_keys;
  if (scanned.kind == RowKind::listed) {
    Number last_score = 0;
    scores.count = keep_top_keys(p, list, scanned.count, row.memory.histogram, &last_score);
  } else {
    top_keys = find_top_keys<Number>(p.top_k, p.sizes.k_len, row.memory.histogram,
                                     [&](auto visit) { scores.for_each(visit); });
  }
  const Number top = scanned.bounds.top;
  const auto for_each_taken = [&](auto visit) {
    TopKeys<Number> filter = top_keys;
    scores.for_each([&](bool is_there, Number score, int32_t key) {
      visit(filter.takes(is_there, score, key), score, key);
    });
  };
  Number above = 0;
  const bool is_empty = !(top >= -std::numeric_limits<Number>::max());
  if (!is_empty) {
    const Number least = scanned.bounds.lambda > top ? scanned.bounds.lambda - top : Number(0);
    const int32_t count = scores.count < 0 ? scanned.attended : scores.count;
    above = solve_lambda<Number>(p.power, count + 1, least, [&](Number at) {
      return warp_entmax_sums(p.power, top, at, sink, for_each_taken);
    });
  }
  const auto rule = EntmaxRule<EntmaxMath<Number>>::of(p.power);
  const HeadRows<T> v = {p.v.row<T>(row.batch, row.kv_head, 0), p.v.row_stride, p.sizes.v_head_dim,
                         false};
  ValueSum<Number> out;
  int32_t count = 0;  // of the support
  for_each_taken([&](bool is_there, Number score, int32_t key) {
    const Number weight = is_there ? rule.terms((score - top) - above).weight : Number(0);
    const bool has_weight = is_there && weight != 0;
    const uint32_t lanes = __ballot_sync(~0u, has_weight);
    const int32_t place = count + __popc(lanes & ((1u << (threadIdx.x % 32)) - 1));
    if (has_weight && place < kSupportKeys) row.memory.support[place] = key;
    count += __popc(lanes);
    out.add(v, weight, key, lanes);
  });
  out.store(p.out.row<T>(row.batch, row.head, row.query), p.sizes.v_head_dim);
  store_lambda(row, float(top + above));
  store_support(row, count);
}

// The list of a warp, for either arithmetic.
template <class Number>
__device__ ScoreList<Number> list_in(void* memory, int64_t bytes) {
  return {static_cast<Scored<Number>*>(memory), int32_t(bytes / int64_t(sizeof(Scored<Number>)))};
}

// The row in fp64, for scores beyond the range of fp32, infinite or NaN.
template <class T>
__device__ __noinline__ void solve_exactly(const EntmaxRow<T>& row, void* list_memory,
                                           int64_t list_bytes) {
  const auto list = list_in<double>(list_memory, list_bytes);
  const ScannedRow<double> scanned = scan(row, list);
  if (scanned.kind == RowKind::not_finite) return store_nan(row, scanned.attended > 0);
  finish(row, list, scanned);
}

// Computes row `index` of [batch, heads, q_len] and stores it. The whole warp calls.
template <class T>
__device__ __forceinline__ void solve_row(const EntmaxParams& p, BitmapLayout layout,
                                          RowMemory& memory, void* list_memory, int64_t list_bytes,
                                          int64_t index) {
  const EntmaxRow<T> row(p, layout, memory, index);
  const auto list = list_in<float>(list_memory, list_bytes);
  const ScannedRow<float> scanned = scan(row, list);
  if (scanned.kind == RowKind::not_finite) return solve_exactly(row, list_memory, list_bytes);
  finish(row, list, scanned);
}

}  // namespace keyhole::device
