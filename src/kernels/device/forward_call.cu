// src/kernels/device/forward_call.cu
#include <algorithm>

#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/combine.h"
#include "kernels/device/forward_call.h"
#include "kernels/device/gather_forward.h"
#include "kernels/device/row_target.cuh"

namespace keyhole::device {
namespace {

// The share of the L2 cache that the keys and values of a section may fill when every item has its
// own CTA. Queries, outputs and the last items of other sections need the rest. Smaller sections
// would cost such a grid more load balance than they save in memory traffic
// (docs/performance-log.md).
constexpr double kCacheShare = 0.6;
constexpr int64_t kAlignment = 256;
constexpr int32_t kFilledRowsPerCta = 8;

// Offsets in the workspace, in bytes.
struct ForwardLayout {
  int64_t state_out = 0, state_lse = 0;
  int64_t slot_out = 0, slot_max = 0, slot_sum = 0;
  bool has_states = false, has_slots = false;
  int64_t bytes = 0;
};

ForwardLayout layout_of(const ForwardArgs& args) {
  const int64_t num_heads = args.q.shape[0] * args.q.shape[1], cols = args.v.shape[3];
  const int64_t rows = checked_mul(num_heads, args.q.shape[2], "attention: rows of the workspace");
  int64_t slot_rows = 0;  // for the part that needs most: parts share them
  for (const TileView& view : args.plan.tiles) {
    slot_rows = std::max(slot_rows, num_heads * view.work.slots_per_group * view.tile.q);
  }
  ForwardLayout layout;
  const auto take = [&](int64_t num_rows, int64_t floats_per_row) {
    const int64_t begin = layout.bytes;
    const int64_t bytes = checked_mul(num_rows, floats_per_row * int64_t(sizeof(float)),
                                      "attention: bytes of the workspace");
    layout.bytes = checked_add(begin, round_up(bytes, kAlignment), "attention: the workspace");
    return begin;
  };
  layout.has_states = args.plan.tiles.size() + args.plan.gathers.size() > 1;
  if (layout.has_states) {
    layout.state_out = take(rows, cols);
    layout.state_lse = take(rows, 1);
  }
  layout.has_slots = slot_rows > 0;
  if (layout.has_slots) {
    layout.slot_out = take(slot_rows, cols);
    layout.slot_max = take(slot_rows, 1);
    layout.slot_sum = take(slot_rows, 1);
  }
  return layout;
}

// What ForwardParams and GatherForwardParams share.
template <class Params>
Params params_of(const ForwardArgs& args, const Sizes& sizes, const ForwardLayout& layout) {
  Params params{};
  params.sizes = sizes;
  params.q = device_tensor(args.q);
  params.k = device_tensor(args.k);
  params.v = device_tensor(args.v);
  params.out = device_tensor(args.out);
  if (args.lse.is_given()) params.lse = device_tensor(args.lse);
  params.sink = static_cast<const float*>(args.sink.data);
  params.sink_stride = args.sink.strides[0];
  auto* const memory = static_cast<std::byte*>(args.launch.workspace);
  if (layout.has_states) {
    params.states = {.out = reinterpret_cast<float*>(memory + layout.state_out),
                     .lse = reinterpret_cast<float*>(memory + layout.state_lse)};
  }
  if constexpr (std::is_same_v<Params, ForwardParams>) {
    if (layout.has_slots) {
      params.slots = {.out = reinterpret_cast<float*>(memory + layout.slot_out),
                      .max = reinterpret_cast<float*>(memory + layout.slot_max),
                      .sum = reinterpret_cast<float*>(memory + layout.slot_sum)};
    }
    params.heads_per_section = heads_per_section(args, kCacheShare);
  }
  return params;
}

// A plan without parts: every row is empty. One warp per row.
template <class T>
__global__ void __launch_bounds__(32 * kFilledRowsPerCta)
    fill_empty_rows(const __grid_constant__ ForwardParams p) {
  const int64_t row = int64_t{blockIdx.x} * kFilledRowsPerCta + threadIdx.x / 32;
  if (row >= p.sizes.num_heads() * p.sizes.q_len) return;
  const int32_t head_index = int32_t(row / p.sizes.q_len);
  const int64_t query = row - head_index * p.sizes.q_len;
  const RowFinish finish = finish_row(p, head_index, query, -INFINITY, 0);
  const RowTarget<T> target = row_target<T>(p, head_index, query, finish);
  for (int32_t col = int32_t(threadIdx.x % 32); col < p.sizes.v_head_dim; col += 32) {
    target.store(col, 0);
  }
  if (threadIdx.x % 32 == 0) store_lse(p, head_index, query, finish.lse2);
}

void launch_fill(const ForwardParams& params, DType dtype, cudaStream_t stream) {
  const int64_t rows = params.sizes.num_heads() * params.sizes.q_len;
  const uint32_t grid =
      uint32_t(narrow(ceil_div(rows, kFilledRowsPerCta), "attention: CTAs of the fill launch"));
  with_device_storage(dtype, [&](auto storage) {
    fill_empty_rows<decltype(storage)><<<grid, 32 * kFilledRowsPerCta, 0, stream>>>(params);
  });
  check_cuda(cudaGetLastError(), "launching the fill of empty rows");
}

}  // namespace

int64_t forward_workspace_bytes(const ForwardArgs& args) { return layout_of(args).bytes; }

// Sections of nearly equal size: a last section of one head would leave the GPU half empty.
int32_t heads_per_section(const ForwardArgs& args, double cache_share) {
  const Sizes sizes = sizes_of(args);
  const int64_t kv_heads = int64_t{sizes.batch} * sizes.kv_heads;
  const double kv_head_bytes = double(sizes.k_len) * double(sizes.head_dim + sizes.v_head_dim) *
                               double(bytes_of(args.q.dtype));
  const double fitting =
      cache_share * double(args.launch.l2_cache_bytes) / std::max(1.0, kv_head_bytes);
  const int64_t at_most = std::max<int64_t>(1, int64_t(std::min(double(kv_heads), fitting)));
  const int64_t sections = ceil_div(kv_heads, at_most);
  return int32_t(ceil_div(kv_heads, sections) * (sizes.heads / sizes.kv_heads));
}

void run_forward_parts(const ForwardArgs& args, LaunchTiles launch_tiles,
                       LaunchGather launch_gather) {
  if (args.q.shape[0] == 0 || args.q.shape[1] == 0 || args.q.shape[2] == 0) return;
  const Sizes sizes = sizes_of(args);
  narrow(int64_t{sizes.batch} * sizes.heads, "attention: batch x heads");
  const ForwardLayout layout = layout_of(args);
  KEYHOLE_ASSERT(args.launch.workspace_bytes >= layout.bytes, "a forward pass was given ",
                 args.launch.workspace_bytes, " of ", layout.bytes, " bytes of workspace");
  const auto stream = static_cast<cudaStream_t>(args.launch.stream);
  const DType dtype = args.q.dtype;
  const size_t num_tiles = args.plan.tiles.size(), num_parts = num_tiles + args.plan.gathers.size();

  auto params = params_of<ForwardParams>(args, sizes, layout);
  if (num_parts == 0) return launch_fill(params, dtype, stream);
  for (size_t part = 0; part < num_tiles; ++part) {
    params.view = args.plan.tiles[part];
    params.is_first = part == 0;
    params.is_last = part + 1 == num_parts;
    launch_tiles(params, stream);
    if (params.view.work.slots_per_group > 0) launch_combine(params, dtype, stream);
  }
  if (num_tiles == num_parts) return;
  auto gather = params_of<GatherForwardParams>(args, sizes, layout);
  for (size_t part = num_tiles; part < num_parts; ++part) {
    gather.view = args.plan.gathers[part - num_tiles];
    gather.is_first = part == 0;
    gather.is_last = part + 1 == num_parts;
    if (launch_gather != nullptr) {
      launch_gather(gather, stream);
    } else {
      launch_gather_forward(gather, dtype, stream);
    }
  }
}

}  // namespace keyhole::device
