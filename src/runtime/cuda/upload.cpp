// src/runtime/cuda/upload.cpp
// All arrays of a scheduled plan go into one block of memory, with one copy.
#include "runtime/cuda/upload.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/int_math.h"
#include "base/recent_map.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/gpu_context.h"
#include "plan/plan_state.h"
#include "runtime/cuda/call.h"
#include "runtime/cuda/kept_by_graphs.h"

namespace keyhole {
namespace {

constexpr int64_t kAlignment = 256;

// Collects arrays on the host. Their device addresses are known once the block is allocated.
class Block {
 public:
  template <class T>
  void add(const T* data, int64_t count, const T** place) {
    *place = nullptr;
    if (data == nullptr || count == 0) return;
    const int64_t begin = round_up(int64_t(bytes_.size()), kAlignment);
    bytes_.resize(size_t(begin + count * int64_t(sizeof(T))));
    std::memcpy(bytes_.data() + begin, data, size_t(count) * sizeof(T));
    places_.push_back({reinterpret_cast<const void**>(place), begin});
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  void point_into(const void* memory) const {
    for (const auto& [place, offset] : places_) {
      *place = static_cast<const std::byte*>(memory) + offset;
    }
  }

 private:
  struct Placed {
    const void** place;
    int64_t offset;
  };
  std::vector<std::byte> bytes_;
  std::vector<Placed> places_;
};

template <class T>
void add(Block& block, const std::vector<T>& array, const T** place) {
  block.add(array.data(), int64_t(array.size()), place);
}

void add_work(Block& block, const ScheduledWork& from, bool is_one_group, WorkView& to) {
  to.items_per_group = from.work.items_per_group;
  to.splits_per_group = from.work.splits_per_group;
  to.slots_per_group = from.work.slots_per_group;
  to.is_one_group = is_one_group;
  to.shares.num_ctas = from.shares.num_ctas;
  to.shares.num_items = int32_t(from.shares.items.size());
  add(block, from.work.items, &to.items);
  add(block, from.work.splits, &to.splits);
  add(block, from.shares.items, &to.shares.items);
}

int64_t num_runs(const int64_t* begin, const int32_t* count, int64_t lists) {
  int64_t end = 0;
  for (int64_t i = 0; i < lists; ++i) end = std::max(end, begin[i] + count[i]);
  return end;
}

void add_tiles(Block& block, const TileView& host, const Target& target, const ScheduledTiles& made,
               TileView& to) {
  const int64_t lists = int64_t{host.groups} * host.classes * host.q_tiles;
  const int64_t t_lists = int64_t{host.groups} * host.classes * host.k_tiles;
  block.add(host.residues, host.classes, &to.residues);
  add(block, made.group_of, &to.group_of);
  block.add(host.list_begin, lists, &to.list_begin);
  block.add(host.list_count, lists, &to.list_count);
  block.add(host.runs, num_runs(host.list_begin, host.list_count, lists), &to.runs);
  to.order = nullptr;  // the work items contain it
  add(block, made.bitmaps, &to.bitmaps);
  add(block, made.t_bitmaps, &to.t_bitmaps);
  add_work(block, made.forward, made.is_one_group, to.work);
  if (!target.with_transposed) return;
  block.add(host.t_list_begin, t_lists, &to.t_list_begin);
  block.add(host.t_list_count, t_lists, &to.t_list_count);
  block.add(host.t_runs, num_runs(host.t_list_begin, host.t_list_count, t_lists), &to.t_runs);
  add_work(block, made.transposed, made.is_one_group, to.t_work);
}

void add_gather(Block& block, const GatherView& host, const Target& target,
                const std::vector<int32_t>& group_of, GatherView& to) {
  const int64_t lists = host.groups * host.lists, t_lists = host.groups * host.k_len;
  add(block, group_of, &to.group_of);
  block.add(host.list_begin, lists, &to.list_begin);
  block.add(host.list_count, lists, &to.list_count);
  block.add(host.keys, num_runs(host.list_begin, host.list_count, lists), &to.keys);
  if (!target.with_transposed) return;
  block.add(host.t_list_begin, t_lists, &to.t_list_begin);
  block.add(host.t_list_count, t_lists, &to.t_list_count);
  block.add(host.t_lists, num_runs(host.t_list_begin, host.t_list_count, t_lists), &to.t_lists);
}

cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  return event;
}

struct OwnStream {
  cudaStream_t stream = nullptr;
  OwnStream() {
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  }
  ~OwnStream() { cudaStreamDestroy(stream); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
};

bool is_default(cudaStream_t stream) { return stream == nullptr || stream == cudaStreamLegacy; }

// Makes `waiting` wait for what is queued on the default stream now. False if that is impossible,
// for example while a stream is captured that the default stream would have to wait for; trying
// does not invalidate the capture.
bool wait_for_default_stream(cudaStream_t waiting) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(cudaStreamLegacy, &status) != cudaSuccess) return false;
  cudaEvent_t event = nullptr;
  if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) return false;
  const bool will_wait = cudaEventRecord(event, cudaStreamLegacy) == cudaSuccess &&
                         cudaStreamWaitEvent(waiting, event, 0) == cudaSuccess;
  cudaEventDestroy(event);  // destroyed once it has been reached
  return will_wait;
}

// The uploads a plan keeps. Their number is bounded: calls with ever new batch sizes would fill the
// GPU.
class Uploads {
 public:
  std::shared_ptr<UploadedPlan> of(const Plan& plan, const UploadKey& key, cudaStream_t stream) {
    std::optional<std::shared_ptr<UploadedPlan>> evicted;  // destroyed after the lock is released
    const std::lock_guard lock(mutex_);
    if (const auto* found = plans_.find(key)) return *found;
    const auto made = std::make_shared<UploadedPlan>(plan, key, stream);
    evicted = plans_.insert(key, made);
    return made;
  }

 private:
  std::mutex mutex_;
  RecentMap<UploadKey, std::shared_ptr<UploadedPlan>> plans_{kMostUploads};
};

}  // namespace

UploadedPlan::UploadedPlan(const Plan& plan, const UploadKey& key, cudaStream_t stream)
    : ordinal_(key.ordinal), context_(key.context) {
  if (is_capturing(stream)) {
    throw Error(
        ErrorKind::usage,
        say("attention: the plan ", plan.pattern_text(),
            " is not yet on the GPU, and lists cannot be copied there while a CUDA graph is "
            "captured; call once before the capture (a plan keeps the lists of its ",
            kMostUploads, " most recent kinds of calls)"));
  }
  const Target& target = key.target;
  const int64_t planned_heads = plan.shape().batch * plan.shape().heads;
  const PlanView host = plan.state().view(key.tile, target.with_transposed);
  tiles_.assign(host.tiles.begin(), host.tiles.end());
  gathers_.assign(host.gathers.begin(), host.gathers.end());
  Block block;
  for (size_t i = 0; i < tiles_.size(); ++i) {
    add_tiles(block, host.tiles[i], target, schedule(host.tiles[i], planned_heads, target),
              tiles_[i]);
  }
  for (size_t i = 0; i < gathers_.size(); ++i) {
    const std::span planned_of(host.gathers[i].group_of, size_t(planned_heads));
    add_gather(block, host.gathers[i], target, groups_of_heads(planned_of, target.num_heads),
               gathers_[i]);
  }
  const size_t bytes = block.bytes().size();
  if (bytes == 0) return;
  // A stream of its own: the one wait here is for this copy and nothing else. Afterwards the lists
  // are there for every stream.
  const OwnStream own;
  // Freed on that stream if the copy fails.
  PoolMemory memory(bytes, "the lists of a plan", own.stream);
  check_cuda(cudaMemcpyAsync(memory.data(), block.bytes().data(), bytes, cudaMemcpyHostToDevice,
                             own.stream),
             "copying the lists of a plan to the GPU");
  check_cuda(cudaStreamSynchronize(own.stream), "copying the lists of a plan to the GPU");
  memory_ = memory.release();
  block.point_into(memory_);
}

// If a stream cannot be waited for, the memory is freed when the process ends.
UploadedPlan::~UploadedPlan() {
  on_gpu_quietly(ordinal_, [this] {
    // After a reset the memory and the events are gone, and their addresses may belong to others.
    if (device::living_context(ordinal_) != context_) return;
    cudaStream_t last = nullptr;
    if (memory_ != nullptr &&
        cudaStreamCreateWithFlags(&last, cudaStreamNonBlocking) == cudaSuccess) {
      for (const Use& use : uses_) cudaStreamWaitEvent(last, use.last, 0);
      if (!is_used_on_default_ || wait_for_default_stream(last)) cudaFreeAsync(memory_, last);
      cudaStreamDestroy(last);  // its queued work still runs
    }
    for (const Use& use : uses_) cudaEventDestroy(use.last);
  });
}

void UploadedPlan::was_used_on(cudaStream_t stream) {
  if (!is_default(stream) && is_capturing(stream)) return stay_for_graph_of(stream);
  // PerThread is one handle for the streams of all threads; the default stream waits for all of
  // them.
  if (is_default(stream) || stream == cudaStreamPerThread) {
    is_used_on_default_.store(true, std::memory_order_relaxed);
    return;
  }
  const std::lock_guard lock(mutex_);
  auto use = std::find_if(uses_.begin(), uses_.end(),
                          [stream](const Use& known) { return known.stream == stream; });
  if (use == uses_.end()) use = uses_.insert(use, {stream, make_event()});
  check_cuda(cudaEventRecord(use->last, stream), "recording the use of a plan");
}

void UploadedPlan::stay_for_graph_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0;  // unique per capture
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamGetCaptureInfo(stream, &status, &capture, &graph),
             "asking for the graph that is captured");
  if (status != cudaStreamCaptureStatusActive)
    return;  // the capture failed: there will be no graph
  const std::lock_guard lock(mutex_);
  if (last_capture_ == capture) return;
  keep_in_graph(graph, shared_from_this());
  last_capture_ = capture;
}

std::shared_ptr<UploadedPlan> uploaded(const Plan& plan, const UploadKey& key,
                                       cudaStream_t stream) {
  free_what_graphs_left(stream);
  const auto uploads = std::static_pointer_cast<Uploads>(
      plan.state().attached("gpu uploads", [] { return std::make_shared<Uploads>(); }));
  return uploads->of(plan, key, stream);
}

}  // namespace keyhole
