// src/runtime/cuda/find_bad_entry.cpp
// Checks every entry of an index tensor, for callers that accept the wait.
#include "kernels/device/find_bad_entry.h"

#include "runtime/cuda/call.h"

namespace keyhole {
namespace {

template <class Number>
Number wait_for(const void* on_gpu, cudaStream_t stream) {
  Number number;
  check_cuda(cudaMemcpyAsync(&number, on_gpu, sizeof(Number), cudaMemcpyDeviceToHost, stream),
             "copying what was found in the indices");
  check_cuda(cudaStreamSynchronize(stream), "looking at the indices");
  return number;
}

}  // namespace

std::optional<BadEntry> find_bad_entry_on_gpu(const GatherView& lists, const Device& device,
                                              void* on_stream) {
  const OnGpu here(device.ordinal);
  const auto stream = static_cast<cudaStream_t>(on_stream);
  KEYHOLE_CHECK(!is_capturing(stream),
                "attention: check_indices waits for the GPU, which cannot be done while a CUDA "
                "graph is captured; check the indices before, or leave it out");
  if (lists.groups * lists.lists * lists.table.count == 0) return {};
  forget_old_errors();
  const PoolMemory found(sizeof(uint64_t), "what is found in the indices", stream,
                         workspace_pool());
  device::launch_find_bad_entry(lists, static_cast<uint64_t*>(found.data()), stream);
  const auto number = wait_for<uint64_t>(found.data(), stream);
  if (number == device::kNoBadEntry) return {};
  BadEntry bad = entry_of(lists, int64_t(number));
  const KeyTable& table = lists.table;
  const int64_t at = table.begin_of(bad.group, bad.list) + bad.place * table.entry_stride;
  bad.value = table.is_wide
                  ? wait_for<int64_t>(static_cast<const int64_t*>(table.entries) + at, stream)
                  : wait_for<int32_t>(static_cast<const int32_t*>(table.entries) + at, stream);
  return bad;
}

}  // namespace keyhole
