// src/kernels/device/entmax_backward_tiles.cu
#include <algorithm>
#include <cmath>

#include "base/int_math.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/entmax_backward_tiles.h"
#include "kernels/device/entmax_pair.cuh"
#include "kernels/device/finish_queries.h"

namespace keyhole::device {
namespace {

constexpr int32_t kTileWarps = 8, kTileThreads = 32 * kTileWarps;
constexpr int32_t kWidestTile = 128;  // rows of a query tile
// A tile costs the same for one tiled row and for all: rows in tiles with fewer than one in so many
// long ones are listed.
constexpr int32_t kRowsPerLong = 8;

// One warp per query tile of a head.
__global__ void __launch_bounds__(kTileThreads)
    choose_rows(const __grid_constant__ EntmaxBackwardParams p,
                const __grid_constant__ TileView view, double bend, int32_t num_tiles) {
  const int32_t lane = int32_t(threadIdx.x % 32);
  const int32_t number = int32_t(blockIdx.x) * kTileWarps + int32_t(threadIdx.x / 32);
  if (number >= num_tiles) return;
  const int32_t class_number = number / view.q_tiles, tile = number - class_number * view.q_tiles;
  const int32_t head_index = class_number / view.classes;
  const int32_t class_index = class_number - head_index * view.classes;
  const int32_t batch = head_index / p.sizes.heads, head = head_index - batch * p.sizes.heads;
  const ResidueClass residue = view.residues[class_index];
  const int64_t first = int64_t{tile} * view.tile.q;
  const int32_t count = int32_t(min(int64_t{view.tile.q}, residue.num_q - first));

  float lambda[kWidestTile / 32];
  bool is_long[kWidestTile / 32];
  int32_t num_long = 0;
#pragma unroll
  for (int32_t i = 0; i < kWidestTile / 32; ++i) {
    is_long[i] = false;
    if (32 * i + lane < count) {
      const int64_t query = residue.first_q + view.stride * (first + 32 * i + lane);
      lambda[i] = *p.lambda.row<const float>(batch, head, query);
      is_long[i] =
          *p.support.row<const int32_t>(batch, head, query) == kLongSupport && is_finite(lambda[i]);
    }
    num_long += __popc(__ballot_sync(~0u, is_long[i]));
  }
  const bool is_chosen = num_long > 0 && num_long * kRowsPerLong >= count;
#pragma unroll
  for (int32_t i = 0; i < kWidestTile / 32; ++i) {
    if (32 * i + lane >= count) continue;
    const int64_t query = residue.first_q + view.stride * (first + 32 * i + lane);
    p.tiled.base[head_index * p.sizes.q_len + query] =
        is_chosen && is_long[i] ? float(1 - bend * double(lambda[i])) : -INFINITY;
  }
  if (!is_chosen || lane != 0) return;
  atomicOr(p.tiled.chosen_of(head_index, class_index) + tile / 32, 1u << tile % 32);
  p.counters->any_tiled = 1;
}

// All sums that tiled rows are added to: they are large, and seldom needed.
__global__ void __launch_bounds__(kTileThreads)
    clear_sums(const EntmaxCounters* counters, float4* sums, int64_t count) {
  if (counters->any_tiled == 0) return;
  for (int64_t i = int64_t{blockIdx.x} * kTileThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kTileThreads) {
    sums[i] = {0, 0, 0, 0};
  }
}

void launch_choice(const EntmaxBackwardParams& p, const TileView& view, cudaStream_t stream) {
  KEYHOLE_ASSERT(view.tile.q <= kWidestTile, "query tiles of ", view.tile.q, " rows");
  const int64_t per_head = int64_t{view.classes} * view.q_tiles;
  const int32_t tiles = narrow(checked_mul(p.sizes.num_heads(), per_head, "attention: query tiles"),
                               "attention: query tiles of all heads");
  choose_rows<<<unsigned(ceil_div(tiles, kTileWarps)), kTileThreads, 0, stream>>>(
      p, view, p.power.bend, tiles);
  check_cuda(cudaGetLastError(), "launching the choice of tiled rows");
}

void launch_clear(const EntmaxBackwardParams& p, int32_t num_processors, cudaStream_t stream) {
  // One after another in the workspace, padding included.
  const float* const end = p.dv_unlisted + p.num_units() * p.sizes.k_len * p.sizes.v_head_dim;
  const int64_t vectors = ceil_div(end - p.tiled.dq, int64_t{4});
  clear_sums<<<unsigned(4 * std::max(num_processors, 1)), kTileThreads, 0, stream>>>(
      p.counters, reinterpret_cast<float4*>(p.tiled.dq), vectors);
  check_cuda(cudaGetLastError(), "launching the clearing of sums over tiles");
}

BackwardParams keys_params(const EntmaxBackwardParams& p, const TileView& view) {
  BackwardParams keys;
  keys.sizes = p.sizes;
  keys.dout = p.dout;
  keys.q = p.q;
  keys.k = p.k;
  keys.v = p.v;
  keys.dq = p.dq;
  keys.delta = p.delta;
  keys.lse2 = p.tiled.base;
  keys.rule = {};
  keys.view = view;
  keys.dq_order = DqOrder::atomic;
  keys.sums = {p.tiled.dq, p.dk_unlisted, p.dv_unlisted};
  keys.dq_rows_per_class = p.tiled.dq_rows_per_class;
  keys.found_nonfinite = &p.counters->found_nonfinite;
  return keys;
}

}  // namespace

bool follows_tiles(const BackwardArgs& args) {
  const Normalizer& normalizer = args.rule.normalizer;
  if (normalizer.alpha <= 1 || normalizer.top_k != 0 || args.rule.has_softcap()) return false;
  const EntmaxPower power = EntmaxPower::of(normalizer.alpha);
  const double unit = power.bend * args.rule.scale;
  const bool is_usual = unit > 0 && std::isnormal(float(unit)) && power.power <= kLargestFastPower;
  return is_usual && args.support.is_given() && dq_rows_per_class(args) != 0;
}

TiledRows tiled_rows_of(const BackwardArgs& args) {
  const EntmaxPower power = EntmaxPower::of(args.rule.normalizer.alpha);
  const TileView& view = args.plan.tiles[0];
  TiledRows tiled;
  tiled.classes = view.classes;
  tiled.words_per_class = ceil_div(view.q_tiles, 32);
  tiled.unit = float(power.bend * args.rule.scale);
  tiled.power = float(power.power);
  tiled.whole = power.whole;
  tiled.dq_rows_per_class = dq_rows_per_class(args);
  return tiled;
}

void run_entmax_tiles(const EntmaxBackwardParams& params, const BackwardArgs& args,
                      const EntmaxTileLaunches& launches) {
  const cudaStream_t stream = static_cast<cudaStream_t>(args.launch.stream);
  const TileView& view = args.plan.tiles[0];
  if (params.num_rows() == 0) return;
  launch_choice(params, view, stream);
  if (params.sizes.k_len == 0) return;  // no row is long
  launch_clear(params, args.launch.num_processors, stream);
  launches.delta(params, view, heads_per_section(args, kBackwardCacheShare), stream);
  const BackwardParams keys = keys_params(params, view);
  launches.keys(params, keys, stream);
  launch_finish_tiled_queries(keys, params.tiled, params.counters, args.q.dtype, stream);
}

}  // namespace keyhole::device
