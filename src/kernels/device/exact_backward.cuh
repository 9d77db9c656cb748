// src/kernels/device/exact_backward.cuh
// The cold path of the backward pass: one row of dq, or of dk and dv, by one warp, in fp64. It
// visits only the pairs that attend, over all parts of the plan. The kernels multiply whole tiles,
// and 0 x NaN is NaN, so rows that are not finite are recomputed here. A NaN that is not attended
// then reaches no gradient; an attended one reaches every gradient it should. The same sums as
// src/kernels/cpu/exact.cpp.
#pragma once

#include "kernels/device/bitmap.cuh"
#include "kernels/device/key_list.cuh"
#include "kernels/device/pair_gradient.cuh"
#include "kernels/device/rows.cuh"

namespace keyhole::device {

// All parts of a plan: arrays of views, themselves in device memory.
struct DevicePlan {
  const TileView* tiles = nullptr;
  const GatherView* gathers = nullptr;
  int32_t num_tiles = 0, num_gathers = 0;
};

// The class of a query or a key, and its index there; -1: no class has it.
struct ClassRow {
  int32_t class_index;
  int64_t row;
};
__device__ inline ClassRow class_row_of(const TileView& view, int64_t index, bool is_key) {
  for (int32_t c = 0; c < view.classes; ++c) {
    const ResidueClass& residue = view.residues[c];
    const int64_t steps = index - (is_key ? residue.first_k : residue.first_q);
    const int64_t count = is_key ? residue.num_k : residue.num_q;
    if (steps >= 0 && steps % view.stride == 0 && steps / view.stride < count) {
      return {c, steps / view.stride};
    }
  }
  return {-1, 0};
}

// row, col: in the tile as its list sees it; in a transposed list rows are keys.
template <BitmapLayout kLayout, bool kTransposed>
__device__ bool tile_attends(const TileView& view, int32_t bitmap, int32_t row, int32_t col) {
  if constexpr (!kTransposed) {
    return attends<kLayout>(view.bitmaps, bitmap, view.tile.q, view.tile.k, row, col);
  } else if constexpr (kLayout == BitmapLayout::row_major) {
    return attends<kLayout>(view.bitmaps, bitmap, view.tile.q, view.tile.k, col, row);
  } else {
    return attends<kLayout>(view.t_bitmaps, bitmap, view.tile.k, view.tile.q, row, col);
  }
}

// Calls visit(list) for every list of a group that names a key, once per mention. Stops and returns
// false when visit returns false. Without lists by key (a table, in a pass that scatters) all lists
// are searched. The whole warp calls, and visit is called by the whole warp.
template <class Visit>
__device__ bool for_each_list_of_key(const GatherView& view, int32_t group, int64_t key,
                                     Visit visit) {
  if (view.t_list_begin != nullptr) {
    const int64_t t_list = group * view.k_len + key;
    const int32_t* lists = view.t_lists + view.t_list_begin[t_list];
    for (int32_t i = 0; i < view.t_list_count[t_list]; ++i) {
      if (!visit(int64_t{lists[i]})) return false;
    }
    return true;
  }
  for (int64_t list = 0; list < view.lists; ++list) {
    const KeyList entries = key_list(view, group, list);
    for (int32_t first = 0; first < entries.count; first += 32) {
      const bool is_hit = entries.at(uint32_t(first) + threadIdx.x % 32) == key;
      for (int32_t left = __popc(__ballot_sync(~0u, is_hit)); left > 0; --left) {
        if (!visit(list)) return false;
      }
    }
  }
  return true;
}

// Calls visit(key) for every key that query `index` of a head attends to; with kTransposed,
// visit(query) for every query that attends to key `index`. Stops when visit returns false. The
// whole warp calls, and visit is called by the whole warp.
template <BitmapLayout kLayout, bool kTransposed, class Visit>
__device__ void for_each_partner(const DevicePlan& plan, int32_t head_index, int64_t index,
                                 Visit visit) {
  const int32_t lane = int32_t(threadIdx.x % 32);
  for (int32_t part = 0; part < plan.num_tiles; ++part) {
    const TileView& view = plan.tiles[part];
    const int32_t group = view.group_of[head_index];
    const ClassRow place = class_row_of(view, index, /*is_key=*/kTransposed);
    if (group < 0 || place.class_index < 0) continue;
    const ResidueClass residue = view.residues[place.class_index];
    const int32_t rows = kTransposed ? view.tile.k : view.tile.q;
    const int32_t cols = kTransposed ? view.tile.q : view.tile.k;
    const int64_t first = kTransposed ? residue.first_q : residue.first_k;
    const int64_t count = kTransposed ? residue.num_q : residue.num_k;
    const int64_t tiles_per_class = kTransposed ? view.k_tiles : view.q_tiles;
    const int64_t list =
        (int64_t{group} * view.classes + place.class_index) * tiles_per_class + place.row / rows;
    const TileRun* runs =
        kTransposed ? view.t_runs + view.t_list_begin[list] : view.runs + view.list_begin[list];
    const int32_t num_runs = kTransposed ? view.t_list_count[list] : view.list_count[list];
    for (int32_t i = 0; i < num_runs; ++i) {
      const TileRun run = runs[i];
      for (int32_t tile = run.tile; tile < run.tile + run.count; ++tile) {
        for (int32_t col = 0; col < cols; col += 32) {
          const int64_t partner = int64_t{tile} * cols + col;
          const bool is_inside = col + lane < cols && partner + lane < count;
          const bool is_hit =
              is_inside && tile_attends<kLayout, kTransposed>(
                               view, run.bitmap, int32_t(place.row % rows), col + lane);
          for (uint32_t hits = __ballot_sync(~0u, is_hit); hits != 0; hits &= hits - 1) {
            if (!visit(first + view.stride * (partner + __ffs(int(hits)) - 1))) return;
          }
        }
      }
    }
  }
  for (int32_t part = 0; part < plan.num_gathers; ++part) {
    const GatherView& view = plan.gathers[part];
    const int32_t group = view.group_of_head(head_index);
    if (group < 0) continue;
    if constexpr (kTransposed) {
      const bool goes_on = for_each_list_of_key(view, group, index, [&](int64_t list) {
        const int64_t end = view.first_query(list + 1);
        for (int64_t query = view.first_query(list); query < end; ++query) {
          if (!visit(query)) return false;
        }
        return true;
      });
      if (!goes_on) return;
    } else {
      const KeyList list = key_list(view, group, index / view.rows_per_list);
      for (int32_t i = 0; i < list.count; ++i) {
        const int32_t key = list.at(uint32_t(i));
        if (key >= 0 && !visit(int64_t{key})) return;
      }
    }
  }
}

// Whether two heads have the same lists in every part.
__device__ inline bool share_lists(const DevicePlan& plan, int32_t head_index, int32_t other) {
  for (int32_t part = 0; part < plan.num_tiles; ++part) {
    const TileView& view = plan.tiles[part];
    if (view.group_of[head_index] != view.group_of[other]) return false;
  }
  for (int32_t part = 0; part < plan.num_gathers; ++part) {
    const GatherView& view = plan.gathers[part];
    if (view.group_of_head(head_index) != view.group_of_head(other)) return false;
  }
  return true;
}

template <BitmapLayout kLayout>
__device__ __noinline__ bool attends_to_nothing(const DevicePlan& plan, int32_t head_index,
                                                int64_t query) {
  bool is_empty = true;
  for_each_partner<kLayout, false>(plan, head_index, query, [&](int64_t) {
    is_empty = false;
    return false;
  });
  return is_empty;
}

// A row in fp64. Lane l has columns l, l + 32, ...
struct ExactRow {
  static constexpr int32_t kSteps = 18;  // x 32 = 576, the widest head
  double sum[kSteps] = {};

  template <class Storage>
  __device__ void add(double weight, const Storage* row, int32_t cols) {
#pragma unroll
    for (int32_t i = 0; i < kSteps; ++i) {
      const int32_t col = int32_t(threadIdx.x % 32) + 32 * i;
      if (col < cols) sum[i] += weight * double(value_of(row[col]));
    }
  }
  template <class Storage>
  __device__ void store(Storage* row, int32_t cols) const {
#pragma unroll
    for (int32_t i = 0; i < kSteps; ++i) {
      const int32_t col = int32_t(threadIdx.x % 32) + 32 * i;
      if (col < cols) row[col] = stored_as<Storage>(float(sum[i]));
    }
  }
};

template <class Storage>
__device__ double exact_dot(const Storage* a, const Storage* b, int32_t size) {
  double sum = 0;
  for (int32_t col = int32_t(threadIdx.x % 32); col < size; col += 32) {
    sum += double(value_of(a[col])) * double(value_of(b[col]));
  }
  return warp_sum(sum);
}

struct ExactPair {
  double p, ds;
};
template <class Storage>
__device__ ExactPair exact_pair(const BackwardParams& params, const Storage* q, const Storage* k,
                                const Storage* v, const Storage* dout, const Storage* out,
                                double lse) {
  const Sizes& sizes = params.sizes;
  const auto rule = SoftmaxRule<ExactMath>::of(rule_of(sizes));
  const double bent = rule.bend(exact_dot(q, k, sizes.head_dim));
  const double p = rule.weight(rule.score(bent), lse * keyhole::kLog2E);
  const double dp = exact_dot(dout, v, sizes.v_head_dim);
  const double delta = exact_dot(dout, out, sizes.v_head_dim);
  return {p, rule.slope(p) * (dp - delta) * rule.steepness(bent)};
}

// dq of one query.
template <class Storage, BitmapLayout kLayout>
__device__ __noinline__ void exact_query_gradient(const BackwardParams& p, const DevicePlan& plan,
                                                  int32_t batch, int32_t head, int64_t query) {
  const int32_t kv_head = p.sizes.kv_head_of(head);
  const Storage* q = p.q.row<Storage>(batch, head, query);
  const Storage* dout = p.dout.row<Storage>(batch, head, query);
  const Storage* out = p.out.row<Storage>(batch, head, query);
  const double lse = *p.lse.row<float>(batch, head, query);
  ExactRow dq;
  if (lse != -INFINITY) {
    for_each_partner<kLayout, false>(plan, batch * p.sizes.heads + head, query, [&](int64_t key) {
      const Storage* k = p.k.row<Storage>(batch, kv_head, key);
      const Storage* v = p.v.row<Storage>(batch, kv_head, key);
      const ExactPair pair = exact_pair(p, q, k, v, dout, out, lse);
      dq.add(pair.ds, k, p.sizes.head_dim);
      return !isnan(pair.ds);  // NaN: every sum is NaN from here on
    });
  }
  dq.store(p.dq.row<Storage>(batch, head, query), p.sizes.head_dim);
}

// dk and dv of one key, from all query heads of its kv head.
template <class Storage, BitmapLayout kLayout>
__device__ __noinline__ void exact_key_gradient(const BackwardParams& p, const DevicePlan& plan,
                                                int32_t batch, int32_t kv_head, int64_t key) {
  const int32_t heads_per_kv = p.sizes.heads / p.sizes.kv_heads;
  const Storage* k = p.k.row<Storage>(batch, kv_head, key);
  const Storage* v = p.v.row<Storage>(batch, kv_head, key);
  ExactRow dk, dv;
  bool has_nan = false;
  const auto add_pair = [&](int32_t head, int64_t query) {
    const double lse = *p.lse.row<float>(batch, head, query);
    if (lse == -INFINITY) return;
    const Storage* q = p.q.row<Storage>(batch, head, query);
    const Storage* dout = p.dout.row<Storage>(batch, head, query);
    const Storage* out = p.out.row<Storage>(batch, head, query);
    const ExactPair pair = exact_pair(p, q, k, v, dout, out, lse);
    dv.add(pair.p, dout, p.sizes.v_head_dim);
    dk.add(pair.ds, q, p.sizes.head_dim);
    has_nan = isnan(pair.p) && isnan(pair.ds);
  };
  // Neighbouring heads with the same lists are processed together, because finding the queries of a
  // key may be a search.
  const int32_t end = (kv_head + 1) * heads_per_kv, first_index = batch * p.sizes.heads;
  for (int32_t head = kv_head * heads_per_kv, next = head; head < end && !has_nan; head = next) {
    for (++next; next < end && share_lists(plan, first_index + head, first_index + next);) ++next;
    for_each_partner<kLayout, true>(plan, first_index + head, key, [&](int64_t query) {
      for (int32_t sharing = head; sharing < next && !has_nan; ++sharing) add_pair(sharing, query);
      return !has_nan;
    });
  }
  dk.store(p.dk.row<Storage>(batch, kv_head, key), p.sizes.head_dim);
  dv.store(p.dv.row<Storage>(batch, kv_head, key), p.sizes.v_head_dim);
}

}  // namespace keyhole::device
