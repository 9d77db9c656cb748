// src/runtime/cuda/gather_call.cpp
// One call on a GPU over an index tensor: there is nothing to copy, and nothing to wait for.
#include "kernels/device/find_bad_entry.h"
#include "runtime/cuda/call.h"

namespace keyhole {
namespace {

template <class Args>
void follow(const GatherView& lists, Args& args) {
  describe_gpu(args.q.device, args.launch);
  args.plan = {{}, {&lists, 1}};
}

int64_t workspace_of(const KernelEntry& kernel, const ForwardArgs& args) {
  return kernel.forward_workspace != nullptr ? kernel.forward_workspace(args) : 0;
}
int64_t workspace_of(const KernelEntry& kernel, const BackwardArgs& args) {
  return kernel.backward_workspace != nullptr ? kernel.backward_workspace(args) : 0;
}

template <class Number>
Number wait_for(const void* on_gpu, cudaStream_t stream) {
  Number number;
  check_cuda(cudaMemcpyAsync(&number, on_gpu, sizeof(Number), cudaMemcpyDeviceToHost, stream),
             "copying what was found in the indices");
  check_cuda(cudaStreamSynchronize(stream), "looking at the indices");
  return number;
}

}  // namespace

int64_t forward_workspace_on_gpu(const KernelEntry& kernel, const GatherView& lists,
                                 ForwardArgs args) {
  const OnGpu here(args.q.device.ordinal);
  follow(lists, args);
  return workspace_of(kernel, args);
}

int64_t backward_workspace_on_gpu(const KernelEntry& kernel, const GatherView& lists,
                                  BackwardArgs args) {
  const OnGpu here(args.q.device.ordinal);
  follow(lists, args);
  return workspace_of(kernel, args);
}

void run_forward_on_gpu(const KernelEntry& kernel, const GatherView& lists, ForwardArgs args) {
  const OnGpu here(args.q.device.ordinal);
  forget_old_errors();
  follow(lists, args);
  with_workspace(args.launch, workspace_of(kernel, args),
                 static_cast<cudaStream_t>(args.launch.stream), [&] { kernel.forward(args); });
}

void run_backward_on_gpu(const KernelEntry& kernel, const GatherView& lists, BackwardArgs args) {
  const OnGpu here(args.q.device.ordinal);
  forget_old_errors();
  follow(lists, args);
  with_workspace(args.launch, workspace_of(kernel, args),
                 static_cast<cudaStream_t>(args.launch.stream), [&] { kernel.backward(args); });
}

std::optional<BadEntry> find_bad_entry_on_gpu(const GatherView& lists, const Device& device,
                                              void* on_stream) {
  const OnGpu here(device.ordinal);
  const auto stream = static_cast<cudaStream_t>(on_stream);
  KEYHOLE_CHECK(!is_capturing(stream),
                "attention: check_indices waits for the GPU, which cannot be done while a CUDA "
                "graph is captured; check the indices before, or leave it out");
  if (lists.groups * lists.lists * lists.table.count == 0) return {};
  forget_old_errors();
  const PoolMemory found(sizeof(uint64_t), "what is found in the indices", stream);
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
