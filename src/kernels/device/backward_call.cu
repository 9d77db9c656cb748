// src/kernels/device/backward_call.cu
#include <algorithm>
#include <vector>

#include "base/int_math.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/backward_rows.cuh"
#include "kernels/device/check_cuda.h"
#include "kernels/device/combine_keys.h"
#include "kernels/device/finish_queries.h"
#include "kernels/device/gather_backward.h"
#include "kernels/device/invert_lists.h"
#include "kernels/device/launch.h"
#include "kernels/device/math.cuh"
#include "kernels/device/store_plan.h"

namespace keyhole::device {
namespace {

// Which gradients are summed in fp32 before they are stored.
struct Summed {
  bool dq, dk_dv;
};
Summed summed_by(const BackwardArgs& args) {
  const PlanView& plan = args.plan;
  const BackwardSchedule& schedule = args.schedule;
  if (plan.tiles.size() + plan.gathers.size() > 1) return {true, true};
  if (plan.tiles.empty()) {
    return {false, schedule.key_lists != KeyListOrder::by_key && !plan.gathers.empty()};
  }
  return {is_added_up(schedule.dq), schedule.heads != SumOrder::fixed};
}

// Rows of slots for the part that needs most: parts run one after another and share them.
int64_t num_slot_rows(const BackwardArgs& args, int64_t num_heads) {
  int64_t rows = 0;
  for (const TileView& view : args.plan.tiles) {
    rows = std::max(rows, num_heads * view.t_work.slots_per_group * view.tile.k);
  }
  return rows;
}

// A table has no lists by key; launches that scatter nothing need them.
bool needs_lists_by_key(const GatherView& view, const BackwardSchedule& schedule) {
  return view.table.is_given() && schedule.key_lists == KeyListOrder::by_key;
}

bool follows_spans(const BackwardArgs& args) {
  return args.schedule.key_lists == KeyListOrder::by_span && !args.plan.gathers.empty();
}

// What BackwardParams::turns points to.
int64_t num_turns(const Sizes& sizes, const TileView& view) {
  const int64_t kv_heads = int64_t{sizes.batch} * sizes.kv_heads;
  return 1 +
         view.classes * (int64_t{sizes.num_heads()} * view.q_tiles + 2 * kv_heads * view.k_tiles);
}

// The layout of the workspace. Without memory only the sizes are meaningful.
struct Workspace {
  TileView* tiles = nullptr;
  GatherView* gathers = nullptr;
  float *delta = nullptr, *lse2 = nullptr;  // [batch * heads][q_len]
  KeySlots slots;
  std::vector<char*> lists_by_key;  // per gather part; null: the part has its own or needs none
  char* span_lists = nullptr;       // of the gather part, in a pass by spans
  // Contiguous, cleared before the launches:
  int32_t* found_nonfinite = nullptr;
  Accumulators sums;
  std::vector<int32_t*> turns;  // per tiles part; null: dq is added up in any order
  int64_t dq_rows_per_class = 0;
  int64_t zeros_begin = 0, bytes = 0;
};
Workspace lay_out(const BackwardArgs& args) {
  const Summed summed = summed_by(args);
  Workspace w;
  const auto take = [&]<class Element>(Element*& pointer, int64_t count) {
    pointer = reinterpret_cast<Element*>(static_cast<char*>(args.launch.workspace) + w.bytes);
    w.bytes += round_up(checked_mul(count, int64_t(sizeof(Element)), "workspace"), 256);
  };
  const Sizes sizes = sizes_of(args);
  const int64_t queries = int64_t{sizes.batch} * sizes.heads * sizes.q_len;
  const int64_t keys = int64_t{sizes.batch} * sizes.kv_heads * sizes.k_len;
  take(w.tiles, int64_t(args.plan.tiles.size()));
  take(w.gathers, int64_t(args.plan.gathers.size()));
  take(w.delta, queries);
  take(w.lse2, queries);
  const int64_t slot_rows = num_slot_rows(args, sizes.num_heads());
  if (slot_rows > 0) take(w.slots.dk, slot_rows * sizes.head_dim);
  if (slot_rows > 0) take(w.slots.dv, slot_rows * sizes.v_head_dim);
  for (const GatherView& view : args.plan.gathers) {
    char*& place = w.lists_by_key.emplace_back(nullptr);
    if (needs_lists_by_key(view, args.schedule)) take(place, inverted_lists_bytes(view));
  }
  if (follows_spans(args)) take(w.span_lists, span_lists(sizes, args.plan.gathers[0]).bytes());
  w.zeros_begin = w.bytes;
  take(w.found_nonfinite, 1);
  w.dq_rows_per_class = dq_rows_per_class(args);
  const int64_t dq_rows = w.dq_rows_per_class == 0 ? queries
                                                   : sizes.num_heads() * w.dq_rows_per_class *
                                                         args.plan.tiles[0].classes;
  if (summed.dq) take(w.sums.dq, dq_rows * sizes.head_dim);
  for (const TileView& view : args.plan.tiles) {
    int32_t*& turns = w.turns.emplace_back(nullptr);
    if (args.schedule.dq == DqOrder::by_turns) take(turns, num_turns(sizes, view));
  }
  if (summed.dk_dv) take(w.sums.dk, keys * sizes.head_dim);
  if (summed.dk_dv) take(w.sums.dv, keys * sizes.v_head_dim);
  return w;
}

BackwardParams params_of(const BackwardArgs& args, const Workspace& w) {
  BackwardParams p;
  p.sizes = sizes_of(args);
  p.dout = device_tensor(args.dout);
  p.q = device_tensor(args.q);
  p.k = device_tensor(args.k);
  p.v = device_tensor(args.v);
  p.out = device_tensor(args.out);
  p.dq = device_tensor(args.dq);
  p.dk = device_tensor(args.dk);
  p.dv = device_tensor(args.dv);
  p.lse = device_tensor(args.lse);
  p.delta = w.delta;
  p.lse2 = w.lse2;
  p.view = {};
  p.rule = numbers_of<FastMath>(args.rule);
  p.dq_order = args.schedule.dq;
  p.sums = w.sums;
  p.slots = w.slots;
  p.dq_rows_per_class = w.dq_rows_per_class;
  p.found_nonfinite = w.found_nonfinite;
  p.heads_per_section = heads_per_section(args, kBackwardCacheShare);
  return p;
}

// The gather parts, with lists by key where those are built here.
std::vector<GatherView> gathers_to_follow(const BackwardArgs& args, const Workspace& w,
                                          cudaStream_t stream) {
  std::vector<GatherView> views(args.plan.gathers.begin(), args.plan.gathers.end());
  for (size_t i = 0; i < views.size(); ++i) {
    if (w.lists_by_key[i] != nullptr) views[i] = invert_lists(views[i], w.lists_by_key[i], stream);
  }
  return views;
}

unsigned ctas_for(int64_t rows) {  // the kernels loop over the rest
  return unsigned(std::clamp<int64_t>(ceil_div(rows, kRowWarps), 1, int64_t{1} << 24));
}

void find_sink_gradients(const BackwardArgs& args, const BackwardParams& p, cudaStream_t stream) {
  if (!args.dsink.is_given() || p.sizes.heads == 0) return;
  const SinkParams sink = {p.delta,
                           p.lse2,
                           static_cast<const float*>(args.sink.data),
                           static_cast<float*>(args.dsink.data),
                           args.sink.strides[0],
                           args.dsink.strides[0]};
  sum_sink_gradients<<<unsigned(p.sizes.heads), kSinkThreads, 0, stream>>>(p.sizes, sink);
  check_cuda(cudaGetLastError(), "launching the gradient of the sink");
}

// The query heads that share lists together, and as many lists at a time as have room.
void follow_spans(const SpanLaunches& launches, const BackwardParams& p, const GatherView& view,
                  void* memory, cudaStream_t stream) {
  SpanLists lists = span_lists(p.sizes, view);
  lists.place(memory);
  const int32_t heads_per_kv = p.sizes.heads / p.sizes.kv_heads;
  for (; lists.first_head < heads_per_kv; lists.first_head += lists.heads) {
    for (lists.first = 0; lists.first < lists.lists; lists.first += lists.chunk) {
      lists.count = std::min(lists.chunk, lists.lists - lists.first);
      cut_span_lists(p.sizes, view, lists, stream);
      launches.weights(p, view, lists, stream);
      launches.sums(p, view, lists, stream);
    }
  }
}

void follow_parts(const BackwardArgs& args, const BackwardLaunches& launches, BackwardParams p,
                  const Workspace& w, cudaStream_t stream) {
  const size_t num_parts = args.plan.tiles.size() + args.plan.gathers.size();
  size_t part = 0;
  const auto begin_part = [&] {
    p.is_first = part == 0;
    p.is_last = ++part == num_parts;
  };
  for (const TileView& view : args.plan.tiles) {
    begin_part();
    p.view = view;
    p.turns = w.turns[part - 1];
    launches.keys(p, stream);
    if (view.t_work.slots_per_group > 0) launch_combine_keys(p, args.q.dtype, stream);
    if (launches.queries != nullptr) launches.queries(p, stream);
  }
  for (const GatherView& view : args.plan.gathers) {
    begin_part();
    if (w.span_lists != nullptr) {
      follow_spans(launches.spans, p, view, w.span_lists, stream);
    } else if (launches.gather != nullptr) {
      launches.gather(p, view, stream);
    } else {
      launch_gather_backward(p, view, args.q.dtype, stream);
    }
  }
}

// Calls launch with std::true_type if rows can be read in vectors, else with std::false_type.
template <class Launch>
void with_vectors(bool are_in_vectors, Launch launch) {
  if (are_in_vectors) {
    launch(std::true_type());
  } else {
    launch(std::false_type());
  }
}

// Also clears the accumulators.
template <class Storage, BitmapLayout kLayout>
void prepare(const BackwardParams& p, const DevicePlan& plan, const Workspace& w,
             cudaStream_t stream) {
  const int32_t cols = p.sizes.v_head_dim;
  const Clearing clearing = {reinterpret_cast<uint4*>(w.found_nonfinite),
                             (w.bytes - w.zeros_begin) / int64_t(sizeof(uint4)),
                             num_row_blocks(p.sizes.num_heads(), p.sizes.q_len)};
  const int64_t ctas = clearing.row_ctas + ceil_div(clearing.vectors, kClearedPerCta);
  with_vectors(is_in_vectors<Storage>(p.dout, cols) && is_in_vectors<Storage>(p.out, cols),
               [&](auto in_vectors) {
                 prepare_rows<Storage, kLayout, in_vectors()>
                     <<<uint32_t(narrow(ctas, "attention: CTAs of a backward pass")), kBlockThreads,
                        0, stream>>>(p, plan, w.delta, w.lse2, clearing);
               });
  check_cuda(cudaGetLastError(), "launching the preparation of a backward pass");
}

// sums null: writes zeros.
template <class Storage>
void finish_one(const BackwardParams& p, const DeviceTensor& to, const float* sums, int32_t heads,
                int64_t length, int32_t cols, cudaStream_t stream) {
  if (p.sizes.batch * heads * length == 0) return;
  const FinishParams params = {to, sums, length, heads, cols, p.found_nonfinite};
  with_vectors(is_in_vectors<Storage>(to, cols), [&](auto in_vectors) {
    finish_gradient<Storage, in_vectors()>
        <<<num_row_blocks(int64_t{p.sizes.batch} * heads, length), kBlockThreads, 0, stream>>>(
            params);
  });
  check_cuda(cudaGetLastError(), "launching the end of a gradient");
}
template <class Storage>
void finish_dq(const BackwardParams& p, cudaStream_t stream) {
  const Sizes& sizes = p.sizes;
  finish_one<Storage>(p, p.dq, p.sums.dq, sizes.heads, sizes.q_len, sizes.head_dim, stream);
}
// is_zero: the plan has no parts, so no launch wrote anything.
template <class Storage>
void finish(const BackwardParams& p, cudaStream_t stream, bool is_zero) {
  const Sizes& sizes = p.sizes;
  if (p.dq_rows_per_class == 0 && (is_zero || p.sums.dq != nullptr)) finish_dq<Storage>(p, stream);
  if (!is_zero && p.sums.dk == nullptr) return;
  finish_one<Storage>(p, p.dk, p.sums.dk, sizes.kv_heads, sizes.k_len, sizes.head_dim, stream);
  finish_one<Storage>(p, p.dv, p.sums.dv, sizes.kv_heads, sizes.k_len, sizes.v_head_dim, stream);
}

template <class Storage, BitmapLayout kLayout>
void run(BackwardArgs args, const BackwardLaunches& launches) {
  const cudaStream_t stream = static_cast<cudaStream_t>(args.launch.stream);
  const Workspace w = lay_out(args);
  KEYHOLE_ASSERT(args.launch.workspace_bytes >= w.bytes, "a backward pass needs ", w.bytes,
                 " bytes of workspace and got ", args.launch.workspace_bytes);
  const std::vector<GatherView> gathers = gathers_to_follow(args, w, stream);
  args.plan.gathers = gathers;
  const BackwardParams p = params_of(args, w);
  const int64_t queries = int64_t{p.sizes.num_heads()} * p.sizes.q_len;
  const int64_t keys = int64_t{p.sizes.batch} * p.sizes.kv_heads * p.sizes.k_len;
  constexpr int kThreads = 32 * kRowWarps;

  const DevicePlan plan = store_plan(args.plan, w.tiles, w.gathers, stream);
  prepare<Storage, kLayout>(p, plan, w, stream);
  find_sink_gradients(args, p, stream);
  if (queries + keys == 0) return;
  const bool leaves_some = args.schedule.dq == DqOrder::written &&  // query tiles without keys
                           !args.plan.tiles.empty() && args.plan.tiles[0].lengths.fewest == 0;
  if (leaves_some) finish_dq<Storage>(p, stream);
  follow_parts(args, launches, p, w, stream);

  if (p.dq_rows_per_class != 0 && queries > 0) {
    BackwardParams only_part = p;
    only_part.view = args.plan.tiles[0];
    launch_finish_queries(only_part, args.q.dtype, launches.begin_early, stream);
  }
  finish<Storage>(p, stream, /*is_zero=*/plan.num_tiles + plan.num_gathers == 0);
  // Few CTAs: they exit at once unless something is not finite.
  const int64_t most = int64_t{4} * std::max(args.launch.num_processors, 64) * kRowWarps;
  const unsigned ctas = ctas_for(std::min(most, std::max(queries, keys)));
  launch("the exact path of a backward pass", recompute_rows<Storage, kLayout>,
         {ctas, kThreads, 0, launches.begin_early}, stream, p, plan);
}

}  // namespace

// A power of two, so that the last section rarely has a single head.
int32_t heads_per_section(const BackwardArgs& args, double cache_share) {
  const Sizes sizes = sizes_of(args);
  const int64_t head_bytes =
      sizes.q_len * (sizes.head_dim + sizes.v_head_dim) * bytes_of(args.q.dtype);
  const auto room = int64_t(cache_share * double(args.launch.l2_cache_bytes));
  int32_t heads = 1;
  while (heads < sizes.num_heads() && 2 * heads * head_bytes <= room) heads *= 2;
  return std::max(1, std::min(heads, sizes.num_heads()));
}

// Blocks pad each class to whole tiles of every kernel, which is not worth it for many short
// classes.
int64_t dq_rows_per_class(const BackwardArgs& args) {
  const bool has_one_part = args.plan.tiles.size() == 1 && args.plan.gathers.empty();
  if (!has_one_part || !is_added_up(args.schedule.dq)) return 0;
  constexpr int64_t kLargestTile = 128;
  const TileView& view = args.plan.tiles[0];
  const int64_t rows = round_up(ceil_div(view.q_len, int64_t{view.classes}), kLargestTile);
  return view.classes * rows <= 2 * view.q_len + kLargestTile ? rows : 0;
}

int64_t backward_workspace_bytes(const BackwardArgs& args) { return lay_out(args).bytes; }

void run_backward_parts(const BackwardArgs& args, const BackwardLaunches& launches) {
  with_device_storage(args.q.dtype, [&](auto storage) {
    using Storage = decltype(storage);
    if (launches.bitmaps == BitmapLayout::row_major) {
      run<Storage, BitmapLayout::row_major>(args, launches);
    } else {
      run<Storage, BitmapLayout::mma>(args, launches);
    }
  });
}

}  // namespace keyhole::device
