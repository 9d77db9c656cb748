// src/kernels/device/entmax_backward_call.cu
#include <algorithm>
#include <bit>
#include <vector>

#include "base/int_math.h"
#include "kernels/device/backward_rows.cuh"
#include "kernels/device/check_cuda.h"
#include "kernels/device/entmax_backward_alone.h"
#include "kernels/device/entmax_backward_call.h"
#include "kernels/device/entmax_backward_collect.h"
#include "kernels/device/entmax_backward_count.h"
#include "kernels/device/entmax_backward_lists.h"
#include "kernels/device/entmax_backward_long.h"
#include "kernels/device/entmax_backward_tiles.h"
#include "kernels/device/entmax_sink_gradient.h"
#include "kernels/device/invert_lists.h"
#include "kernels/device/order_busy_keys.h"
#include "kernels/device/store_plan.h"

namespace keyhole::device {
namespace {

// A table has no lists by key. Without supports every key asks for its queries.
bool needs_entmax_lists(const GatherView& view, bool has_support) {
  return view.table.is_given() && !has_support;
}

EntryPlaces places_of(const Sizes& sizes) {
  const auto bits_of = [](int64_t count) {
    return int32_t(std::bit_width(uint64_t(std::max<int64_t>(count - 1, 0))));
  };
  const int64_t group = sizes.kv_heads > 0 ? sizes.heads / sizes.kv_heads : 1;
  EntryPlaces places;
  places.query_bits = bits_of(sizes.q_len);
  places.bits = places.query_bits + bits_of(group) + EntryPlaces::kSlotBits;
  KEYHOLE_CHECK(places.bits <= 32,
                "attention: this backward pass numbers the rows that share a kv "
                "head, ",
                group, " heads x ", sizes.q_len, " queries, with ", 32 - EntryPlaces::kSlotBits,
                " bits; split the queries");
  return places;
}

// Entries of keys, per pair of a list that this pass makes, for calls with a support.
constexpr int64_t kEntriesPerLongPair = 4;

// The layout of the workspace. Without memory only the sizes are meaningful.
struct EntmaxWorkspace {
  TileView* tiles = nullptr;
  GatherView* gathers = nullptr;
  std::vector<char*> lists_by_key;  // per gather part; null: the part has its own or needs none
  EntmaxBackwardParams params;      // its scratch pointers
  // Contiguous, cleared before the launches.
  int64_t zeros_begin = 0, zeros_end = 0, bytes = 0;
};
EntmaxWorkspace lay_out_entmax(const BackwardArgs& args) {
  EntmaxWorkspace w;
  const auto take = [&]<class Element>(Element*& pointer, int64_t count) {
    pointer = reinterpret_cast<Element*>(static_cast<char*>(args.launch.workspace) + w.bytes);
    w.bytes = checked_add(w.bytes,
                          round_up(checked_mul(count, int64_t(sizeof(Element)), "workspace"), 256),
                          "workspace");
  };
  EntmaxBackwardParams& p = w.params;
  p.sizes = sizes_of(args);
  const Sizes& sizes = p.sizes;
  const bool has_support = args.support.is_given();
  const int64_t rows = checked_mul(sizes.num_heads(), sizes.q_len, "attention: rows");
  const int64_t keys = checked_mul(p.num_units(), sizes.k_len, "attention: keys");
  take(w.tiles, int64_t(args.plan.tiles.size()));
  take(w.gathers, int64_t(args.plan.gathers.size()));
  for (const GatherView& view : args.plan.gathers) {
    char*& place = w.lists_by_key.emplace_back(nullptr);
    if (needs_entmax_lists(view, has_support)) take(place, inverted_lists_bytes(view));
  }
  take(p.delta, rows);
  take(p.is_alone, rows);
  if (args.rule.normalizer.top_k > 0) take(p.last_rank, rows);
  const bool has_tiles = follows_tiles(args);
  if (has_tiles) {
    p.tiled = tiled_rows_of(args);
    take(p.tiled.base, rows);
    // These sums, and the next two, are cleared together.
    const int64_t dq_rows =
        checked_mul(checked_mul(sizes.num_heads(), p.tiled.classes, "workspace"),
                    p.tiled.dq_rows_per_class, "workspace");
    take(p.tiled.dq, checked_mul(dq_rows, sizes.head_dim, "workspace"));
  }
  take(p.dk_unlisted, checked_mul(keys, sizes.head_dim, "workspace"));
  take(p.dv_unlisted, checked_mul(keys, sizes.v_head_dim, "workspace"));
  const int64_t entries = checked_mul(rows, kSupportKeys, "workspace");
  take(p.keys.entries, entries);
  take(p.keys.end, keys);
  // A busy key has at most this share of all entries per item, and per slot.
  take(p.keys.busy, entries / kMostOfWarp + 1);
  const int64_t slots = 2 * entries / kBusyChunk + 1;
  take(p.keys.busy_sums, checked_mul(slots, sizes.head_dim + sizes.v_head_dim, "workspace"));
  // Rows with a support of their own leave few to the lists that this pass makes.
  const int64_t pairs = has_support ? entries / kEntriesPerLongPair : entries;
  LongRows& long_rows = p.long_rows;
  long_rows.pairs_of_unit = p.num_units() > 0 ? pairs / p.num_units() : 0;
  take(long_rows.queue, rows);
  take(long_rows.pairs, pairs);
  take(long_rows.dvalue, pairs);
  w.zeros_begin = w.bytes;
  take(p.counters, 1);
  take(p.keys.taken, p.num_units());
  take(p.keys.count, keys);
  take(long_rows.listed, p.num_units());
  take(long_rows.taken, p.num_units());
  take(long_rows.count, keys);
  if (has_tiles) take(p.tiled.chosen, p.tiled.num_words(sizes.num_heads()));
  w.zeros_end = w.bytes;
  return w;
}

// All but the scratch pointers.
void describe(const BackwardArgs& args, EntmaxBackwardParams& p) {
  p.dout = device_tensor(args.dout);
  p.q = device_tensor(args.q);
  p.k = device_tensor(args.k);
  p.v = device_tensor(args.v);
  p.dq = device_tensor(args.dq);
  p.dk = device_tensor(args.dk);
  p.dv = device_tensor(args.dv);
  p.lambda = device_tensor(args.lse);
  if (args.dlse.is_given()) p.dlse = device_tensor(args.dlse);
  if (args.support.is_given()) {
    p.support = {args.support.keys, args.support.batch_stride, args.support.head_stride,
                 args.support.row_stride};
  }
  if (args.sink.is_given()) {
    p.sink = static_cast<const float*>(args.sink.data);
    p.sink_stride = args.sink.strides[0];
  }
  p.power = EntmaxPower::of(args.rule.normalizer.alpha);
  p.top_k = args.rule.normalizer.top_k;
  p.keys.places = places_of(p.sizes);
  p.keys.is_ordered = args.schedule.key_lists == KeyListOrder::by_key;
}

bool all_in_vectors(const EntmaxBackwardParams& p, DType dtype) {
  return with_device_storage(dtype, [&](auto storage) {
    using Storage = decltype(storage);
    const auto are = [](std::initializer_list<const DeviceTensor*> tensors, int32_t cols) {
      return std::all_of(tensors.begin(), tensors.end(), [&](const DeviceTensor* tensor) {
        return is_in_vectors<Storage>(*tensor, cols);
      });
    };
    return are({&p.q, &p.k, &p.dq, &p.dk}, p.sizes.head_dim) &&
           are({&p.dout, &p.v, &p.dv}, p.sizes.v_head_dim);
  });
}

DevicePlan store_plan_with_keys(const BackwardArgs& args, const EntmaxWorkspace& w,
                                cudaStream_t stream) {
  std::vector<GatherView> gathers(args.plan.gathers.begin(), args.plan.gathers.end());
  for (size_t i = 0; i < gathers.size(); ++i) {
    if (w.lists_by_key[i] == nullptr) continue;
    gathers[i] = invert_lists(gathers[i], w.lists_by_key[i], stream);
  }
  return store_plan({args.plan.tiles, gathers}, w.tiles, w.gathers, stream);
}

}  // namespace

int64_t entmax_backward_workspace_bytes(const BackwardArgs& args) {
  return lay_out_entmax(args).bytes;
}

void run_entmax_backward(const BackwardArgs& args, BitmapLayout layout,
                         const EntmaxListLaunches* list_launches,
                         const EntmaxTileLaunches* tile_launches) {
  constexpr EntmaxListLaunches kOfEveryGpu = {launch_entmax_backward_rows,
                                              launch_entmax_backward_keys};
  const EntmaxListLaunches& lists = list_launches != nullptr ? *list_launches : kOfEveryGpu;
  const cudaStream_t stream = static_cast<cudaStream_t>(args.launch.stream);
  EntmaxWorkspace w = lay_out_entmax(args);
  KEYHOLE_ASSERT(args.launch.workspace_bytes >= w.bytes, "a backward pass of entmax needs ",
                 w.bytes, " bytes of workspace and got ", args.launch.workspace_bytes);
  EntmaxBackwardParams& p = w.params;
  describe(args, p);
  const DType dtype = args.q.dtype;
  const bool in_vectors = all_in_vectors(p, dtype);
  const int32_t num_processors = args.launch.num_processors;
  KEYHOLE_ASSERT(p.tiled.base == nullptr || tile_launches != nullptr,
                 "a schedule with tiles for a backend that has no launches over them");

  check_cuda(cudaMemsetAsync(p.counters, 0, size_t(w.zeros_end - w.zeros_begin), stream),
             "clearing the counts of a backward pass");
  const DevicePlan plan = store_plan_with_keys(args, w, stream);
  if (p.tiled.base != nullptr) run_entmax_tiles(p, args, *tile_launches);
  launch_entmax_backward_count(p, stream);
  launch_entmax_backward_collect(p, plan, layout, dtype, in_vectors, num_processors, stream);
  launch_entmax_backward_room(p, stream);
  if (p.support.data != nullptr) lists.rows(p, dtype, in_vectors, stream);
  launch_entmax_backward_long(p, dtype, in_vectors, num_processors, stream);
  launch_entmax_backward_alone(p, plan, layout, dtype, in_vectors, num_processors, stream);
  if (p.keys.is_ordered && p.num_rows() > 0) order_busy_keys(p, num_processors, stream);
  lists.keys(p, dtype, in_vectors, num_processors, stream);
  if (args.dsink.is_given()) {
    launch_entmax_sink_gradient(p, static_cast<float*>(args.dsink.data), args.dsink.strides[0],
                                stream);
  }
}

}  // namespace keyhole::device
