// src/runtime/select_registry.cpp
#include "runtime/select_registry.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/select_entries.h"
#ifdef KEYHOLE_HAVE_CUDA
#include "kernels/simple/select_entries.h"
#include "kernels/sm80/select_entries.h"
#endif
#ifdef KEYHOLE_HAVE_SM90
#include "kernels/sm90/select_entries.h"
#endif

namespace keyhole {
namespace {

std::vector<SelectKernel> all_kernels() {
  std::vector<SelectKernel> table;
  const auto add = [&](std::vector<SelectKernel> kernels) {
    table.insert(table.end(), std::make_move_iterator(kernels.begin()),
                 std::make_move_iterator(kernels.end()));
  };
#ifdef KEYHOLE_HAVE_CUDA
#ifdef KEYHOLE_HAVE_SM90
  add(sm90::select_entries());
#endif
  add(sm80::select_entries());
  add(simple::select_entries());
#endif
  add(cpu::select_entries());
  return table;
}

std::vector<std::string> backends_of(std::span<const SelectKernel> kernels) {
  std::vector<std::string> names;
  for (const SelectKernel& kernel : kernels) {
    if (std::ranges::find(names, kernel.backend) == names.end()) names.push_back(kernel.backend);
  }
  return names;
}

// The objections of a backend's kernels, each once: those of the dtype, else of all.
std::string objections(const std::string& backend, std::span<const SelectKernel> kernels,
                       const SelectRequest& request) {
  std::vector<std::string> reasons;
  for (const bool any_dtype : {false, true}) {
    if (!reasons.empty()) break;
    for (const SelectKernel& kernel : kernels) {
      if (kernel.backend != backend || kernel.operation != request.operation) continue;
      if (!any_dtype && kernel.dtype != request.dtype) continue;
      const std::string reason = refusal(kernel, request);
      if (std::ranges::find(reasons, reason) == reasons.end()) reasons.push_back(reason);
    }
  }
  std::string text;
  for (const std::string& reason : reasons) text += (text.empty() ? "" : ", ") + reason;
  return text.empty() ? say("has no ", to_string(request.operation)) : text;
}

[[noreturn]] void throw_objections(std::span<const SelectKernel> kernels,
                                   const SelectRequest& request) {
  std::string accepted = "auto", reasons;
  bool is_known = request.backend == "auto";
  for (const std::string& backend : backends_of(kernels)) {
    accepted += ", " + backend;
    if (request.backend != "auto" && backend != request.backend) continue;
    is_known = true;
    reasons += say("\n  ", backend, ": ", objections(backend, kernels, request));
  }
  KEYHOLE_CHECK(is_known, "selection: backend is \"", request.backend, "\"; accepted are ",
                accepted);
  const bool is_on_gpu = request.device.kind == Device::Kind::cuda;
  throw Error(ErrorKind::unsupported,
              say("no kernel for ", to_string(request), reasons,
                  is_on_gpu ? "\n  the way out: copy the tensors to host memory" : ""));
}

}  // namespace

std::span<const SelectKernel> select_table() {
  static const std::vector<SelectKernel> table = all_kernels();
  return table;
}

std::string to_string(const SelectRequest& request) {
  std::string text = say(to_string(request.operation), ", ", to_string(request.dtype));
  if (request.head_dim > 0) {
    text += say(", ", request.index_heads, " index heads of ", request.head_dim);
  }
  if (request.k > 0) text += say(", k ", request.k);
  if (request.device.kind == Device::Kind::cuda) {
    text += say(", GPU ", request.device.ordinal);
    if (request.compute_capability > 0) text += say(" (sm_", request.compute_capability, ")");
  }
  if (request.deterministic) text += ", deterministic";
  return text + ", on " + request.backend;
}

std::string refusal(const SelectKernel& kernel, const SelectRequest& request) {
  if (request.backend != "auto" && kernel.backend != request.backend) {
    return say("runs on ", kernel.backend);
  }
  if (kernel.operation != request.operation) return say("computes ", to_string(kernel.operation));
  if (kernel.device != request.device.kind) {
    return kernel.device == Device::Kind::cpu ? "reads host memory" : "reads the memory of a GPU";
  }
  if (kernel.dtype != request.dtype) return say("reads ", to_string(kernel.dtype));
  if (request.compute_capability < kernel.min_compute_capability) {
    return say("needs a GPU of sm_", kernel.min_compute_capability, " or newer");
  }
  if (request.compute_capability > kernel.max_compute_capability) {
    return say("needs a GPU of sm_", kernel.max_compute_capability, " or older");
  }
  return kernel.objection != nullptr ? kernel.objection(request) : std::string();
}

const SelectKernel* find_select(std::span<const SelectKernel> kernels,
                                const SelectRequest& request) {
  const auto found = std::ranges::find_if(
      kernels, [&](const SelectKernel& kernel) { return refusal(kernel, request).empty(); });
  return found == kernels.end() ? nullptr : &*found;
}

const SelectKernel& choose_select(std::span<const SelectKernel> kernels,
                                  const SelectRequest& request) {
  const SelectKernel* kernel = find_select(kernels, request);
  if (kernel == nullptr) throw_objections(kernels, request);
  return *kernel;
}

}  // namespace keyhole
