// src/kernels/device/entmax_forward_call.cu
#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/entmax_forward_call.h"
#include "kernels/device/entmax_left_rows.h"
#include "kernels/device/entmax_rows.h"
#include "kernels/device/store_plan.h"

namespace keyhole::device {
namespace {

bool can_scan(const ForwardArgs& args) {
  const float scale = float(args.rule.scale);
  return args.plan.tiles.size() == 1 && args.plan.gathers.empty() && scale > 0 &&
         std::isfinite(scale) && args.rule.normalizer.top_k <= kSupportKeys;
}

// The layout of the workspace. Without memory only the sizes are meaningful.
struct ScanWorkspace {
  TileView* tiles = nullptr;
  GatherView* gathers = nullptr;
  RowScratch rows;
  CandidateLists candidates;
  RoundedRows rounded;  // fp32
  int64_t bytes = 0;
};
ScanWorkspace lay_out_scan(const ForwardArgs& args, bool scans) {
  const Sizes sizes = sizes_of(args);
  ScanWorkspace w;
  const auto take = [&]<class Element>(Element*& pointer, int64_t count) {
    pointer = reinterpret_cast<Element*>(static_cast<char*>(args.launch.workspace) + w.bytes);
    const int64_t bytes = checked_mul(count, int64_t(sizeof(Element)), "attention: the workspace");
    w.bytes = checked_add(w.bytes, round_up(bytes, int64_t{256}), "attention: the workspace");
  };
  take(w.tiles, int64_t(args.plan.tiles.size()));
  take(w.gathers, int64_t(args.plan.gathers.size()));
  const int num_processors = args.launch.num_processors;
  w.rows =
      scans ? left_row_scratch_for(sizes, num_processors) : row_scratch_for(sizes, num_processors);
  char* lists = nullptr;
  take(lists, w.rows.bytes());
  w.rows.lists = lists;
  if (!scans) return w;
  const int64_t rows =
      checked_mul(int64_t{sizes.num_heads()}, sizes.q_len, "attention: rows of the workspace");
  w.candidates.capacity = kCandidatesPerRow;
  take(w.candidates.entries, checked_mul(rows, kCandidatesPerRow, "attention: the workspace"));
  // From here on what is cleared before the scan.
  take(w.candidates.count, rows);
  const bool is_rounded = args.q.dtype == DType::f32;
  if (is_rounded) take(w.rounded.largest, int64_t{sizes.batch} * sizes.kv_heads);
  take(w.candidates.num_left, 1);
  // To here.
  take(w.candidates.lambda_bound, rows);
  if (!is_rounded) return w;
  take(w.rounded.margin, rows);
  const auto take_rows = [&](DeviceTensor& tensor, int64_t heads, int64_t length) {
    const int64_t of_head =
        checked_mul(length, int64_t{sizes.head_dim}, "attention: the workspace");
    const int64_t of_batch = checked_mul(heads, of_head, "attention: the workspace");
    BFloat16* numbers = nullptr;
    take(numbers, checked_mul(int64_t{sizes.batch}, of_batch, "attention: the workspace"));
    tensor = {numbers, of_batch, of_head, sizes.head_dim};
  };
  take_rows(w.rounded.q, sizes.heads, sizes.q_len);
  take_rows(w.rounded.k, sizes.kv_heads, sizes.k_len);
  return w;
}

EntmaxParams params_of(const ForwardArgs& args, const ScanWorkspace& w) {
  EntmaxParams params;
  params.sizes = sizes_of(args);
  params.q = device_tensor(args.q);
  params.k = device_tensor(args.k);
  params.v = device_tensor(args.v);
  params.out = device_tensor(args.out);
  if (args.lse.is_given()) params.lse = device_tensor(args.lse);
  params.sink = static_cast<const float*>(args.sink.data);
  params.sink_stride = args.sink.strides[0];
  params.power = EntmaxPower::of(args.rule.normalizer.alpha);
  params.top_k = args.rule.normalizer.top_k;
  params.support = {args.support.keys, args.support.batch_stride, args.support.head_stride,
                    args.support.row_stride};
  params.candidates = w.candidates;
  return params;
}

}  // namespace

int64_t entmax_rows_workspace_bytes(const ForwardArgs& args) {
  return lay_out_scan(args, false).bytes;
}
int64_t entmax_scan_workspace_bytes(const ForwardArgs& args) {
  return lay_out_scan(args, can_scan(args)).bytes;
}

void run_entmax_forward(const ForwardArgs& args, BitmapLayout bitmaps,
                        const EntmaxLaunches& launches) {
  if (args.q.shape[0] == 0 || args.q.shape[1] == 0 || args.q.shape[2] == 0) return;
  const bool scans = launches.scan != nullptr && can_scan(args);
  KEYHOLE_ASSERT(!scans || (launches.round != nullptr) == (args.q.dtype == DType::f32),
                 "a scan of ", to_string(args.q.dtype));
  const ScanWorkspace w = lay_out_scan(args, scans);
  KEYHOLE_ASSERT(args.launch.workspace_bytes >= w.bytes, "a forward pass was given ",
                 args.launch.workspace_bytes, " of ", w.bytes, " bytes of workspace");
  const auto stream = static_cast<cudaStream_t>(args.launch.stream);
  const DType dtype = args.q.dtype;
  EntmaxParams params = params_of(args, w);
  narrow(int64_t{params.sizes.batch} * params.sizes.heads, "attention: batch x heads");
  params.plan = store_plan(args.plan, w.tiles, w.gathers, stream);
  if (!scans) return launch_entmax_rows(params, dtype, bitmaps, w.rows, stream);
  const TileView& part = args.plan.tiles[0];
  const bool only_tiles = launches.prefers_tiles != nullptr && launches.prefers_tiles(params, part);
  const auto counts = reinterpret_cast<char*>(params.candidates.count);
  const auto counts_end = reinterpret_cast<char*>(params.candidates.num_left + 1);
  static_assert(kAlone == -1);  // all bits set
  check_cuda(cudaMemsetAsync(counts, only_tiles ? 0xff : 0, size_t(counts_end - counts), stream),
             "clearing the counts of candidates");
  if (!only_tiles) {
    if (launches.round != nullptr) launches.round(params, w.rounded, stream);
    launches.scan(params, w.rounded, part, stream);
    launches.solve(params, w.rounded, dtype, stream);
  }
  if (launches.tiles != nullptr) launches.tiles(params, part, !only_tiles, stream);
  launch_entmax_left_rows(params, dtype, bitmaps, w.rows, stream);
}

}  // namespace keyhole::device
