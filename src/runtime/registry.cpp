// src/runtime/registry.cpp
#include "runtime/registry.h"

#include "base/check.h"
#include "kernels/cpu/entries.h"
#include "kernels/sm90/tma_tensors.h"
#include "runtime/dispatch.h"
#include "runtime/gpu.h"

#ifdef KEYHOLE_HAVE_CUDA
#include "kernels/simple/backward_entries.h"
#include "kernels/simple/entmax_entries.h"
#include "kernels/simple/forward_entries.h"
#include "kernels/sm80/backward_entries.h"
#include "kernels/sm80/entmax_entries.h"
#include "kernels/sm80/forward_entries.h"
#endif
#ifdef KEYHOLE_HAVE_SM90
#include "kernels/sm90/backward_entries.h"
#include "kernels/sm90/entmax_entries.h"
#include "kernels/sm90/forward_entries.h"
#endif

namespace keyhole {
namespace {

std::vector<KernelEntry> all_entries() {
  std::vector<KernelEntry> table;
  const auto add = [&](std::vector<KernelEntry> entries) {
    table.insert(table.end(), std::make_move_iterator(entries.begin()),
                 std::make_move_iterator(entries.end()));
  };
#ifdef KEYHOLE_HAVE_CUDA
#ifdef KEYHOLE_HAVE_SM90
  add(sm90::forward_entries());
  add(sm90::backward_entries());
  add(sm90::entmax_entries());
#endif
  add(sm80::forward_entries());
  add(sm80::backward_entries());
  add(sm80::entmax_entries());
  add(simple::forward_entries());
  add(simple::entmax_entries());
  add(simple::backward_entries());
#endif
  add(cpu::entries());
  return table;
}

}  // namespace

std::span<const KernelEntry> kernel_table() {
  static const std::vector<KernelEntry> table = all_entries();
  return table;
}

std::vector<std::string> backends_of(std::span<const KernelEntry> kernels) {
  std::vector<std::string> names;
  for (const KernelEntry& kernel : kernels) {
    if (names.empty() || kernel.backend != names.back()) names.push_back(kernel.backend);
  }
  return names;
}

std::string why_not_here(const KernelEntry& kernel) {
  return why_not_here(kernel.device, kernel.min_compute_capability, kernel.max_compute_capability);
}

std::string why_not_here(Device::Kind device, int min_compute_capability,
                         int max_compute_capability) {
  if (device == Device::Kind::cpu) return {};
  if (!why_no_gpu().empty()) return why_no_gpu();
  std::string here;
  for (const Gpu& gpu : gpus()) {
    if (gpu.compute_capability >= min_compute_capability &&
        gpu.compute_capability <= max_compute_capability) {
      return {};
    }
    here += say(here.empty() ? "sm_" : ", sm_", gpu.compute_capability);
  }
  const bool has_end = max_compute_capability != INT_MAX;
  return say("needs a GPU of sm_", min_compute_capability,
             has_end ? say(" to sm_", max_compute_capability) : " or newer", "; here is ", here);
}

std::vector<std::string> objections_of(const KernelEntry& kernel) {
  const Request plain{.backend = "auto",
                      .operation = kernel.operation,
                      .dtype = kernel.dtype,
                      .head_dim = kernel.max_head_dim,
                      .v_head_dim = kernel.max_head_dim,
                      .device = {kernel.device, 0},
                      .compute_capability = kernel.min_compute_capability,
                      .shared_bytes = INT64_MAX,
                      .normalizer = kernel.weights == Weights::sparse ? entmax(1.5) : softmax(),
                      .has_softcap = kernel.bend == Bend::softcap};
  Request with_softcap = plain, in_order = plain, unaligned = plain, repeated = plain;
  with_softcap.has_softcap = true;
  in_order.deterministic = kernel.operation == Operation::backward;
  unaligned.is_aligned = false;
  // Heads that share memory, as expanded tensors have.
  repeated.why_no_tma =
      sm90::why_no_tma(TensorView(nullptr, kernel.dtype, {1, 2, 1, 8}, {8, 0, 8, 1}));
  std::vector<std::string> objections;
  for (const Request& request : {with_softcap, in_order, unaligned, repeated}) {
    std::string objection = objection_to(kernel, request);
    if (!objection.empty()) objections.push_back(std::move(objection));
  }
  return objections;
}

}  // namespace keyhole
