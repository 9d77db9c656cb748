// src/runtime/dispatch.cpp
// Chooses a kernel by asking each for its objection, and a tile by asking the plan what it would
// cost.
#include "runtime/dispatch.h"

#include <algorithm>
#include <deque>
#include <limits>

#include "base/check.h"
#include "base/int_math.h"
#include "kernels/sm90/row_boxes.h"
#include "plan/plan_state.h"
#include "runtime/gpu.h"
#include "runtime/index_lists.h"
#include "runtime/registry.h"

namespace keyhole {

std::string to_string(const Request& request) {
  std::string text = say("attention ", to_string(request.operation), ", ", to_string(request.dtype),
                         ", head_dim ", request.head_dim);
  if (request.v_head_dim != request.head_dim) text += say(" (v ", request.v_head_dim, ")");
  if (request.device.kind == Device::Kind::cuda) {
    text += say(", GPU ", request.device.ordinal, " (sm_", request.compute_capability, ")");
  }
  return text + ", on " + request.backend;
}

bool rows_are_aligned(std::initializer_list<const TensorView*> tensors) {
  for (const TensorView* tensor : tensors) {
    if (!tensor->is_given()) continue;
    const int64_t bytes = bytes_of(tensor->dtype);
    if (reinterpret_cast<uintptr_t>(tensor->data) % 16 != 0) return false;
    for (int d = 0; d + 1 < tensor->rank; ++d) {
      if (tensor->shape[d] > 1 && tensor->strides[d] * bytes % 16 != 0) return false;
    }
  }
  return true;
}

std::string why_no_boxes(std::initializer_list<const TensorView*> tensors) {
  for (const TensorView* tensor : tensors) {
    if (!tensor->is_given()) continue;
    if (std::string why = sm90::why_no_boxes(*tensor); !why.empty()) return why;
  }
  return {};
}

std::string refusal(const KernelEntry& kernel, const Request& request) {
  if (request.backend != "auto" && kernel.backend != request.backend) {
    return say("runs on ", kernel.backend);
  }
  if (kernel.device != request.device.kind) {
    return kernel.device == Device::Kind::cpu ? "reads host memory" : "reads the memory of a GPU";
  }
  if (kernel.operation != request.operation) return say("computes ", to_string(kernel.operation));
  if (kernel.dtype != request.dtype) return say("reads ", to_string(kernel.dtype));
  const int64_t widest = std::max(request.head_dim, request.v_head_dim);
  if (widest > kernel.max_head_dim) return say("has head_dim up to ", kernel.max_head_dim);
  if (request.compute_capability < kernel.min_compute_capability) {
    return say("needs a GPU of sm_", kernel.min_compute_capability, " or newer");
  }
  if (request.compute_capability > kernel.max_compute_capability) {
    return say("needs a GPU of sm_", kernel.max_compute_capability, " or older");
  }
  return kernel.objection != nullptr ? kernel.objection(request) : std::string();
}

namespace {

// What the kernels of a backend object, each objection once. Those that read other numbers are
// asked only where none reads these.
std::string objections(const std::string& backend, std::span<const KernelEntry> kernels,
                       const Request& request) {
  std::vector<std::string> reasons;
  for (const bool is_any_dtype : {false, true}) {
    if (!reasons.empty()) break;
    for (const KernelEntry& kernel : kernels) {
      if (kernel.backend != backend || kernel.operation != request.operation) continue;
      if (!is_any_dtype && kernel.dtype != request.dtype) continue;
      const std::string reason = refusal(kernel, request);
      if (std::ranges::find(reasons, reason) == reasons.end()) reasons.push_back(reason);
    }
  }
  std::string text;
  for (const std::string& reason : reasons) text += (text.empty() ? "" : ", ") + reason;
  return text.empty() ? say("has no ", to_string(request.operation)) : text;
}

[[noreturn]] void throw_objections(std::span<const KernelEntry> kernels, const Request& request) {
  std::string accepted = "auto", reasons;
  bool is_known = request.backend == "auto";
  for (const std::string& backend : backends_of(kernels)) {
    accepted += ", " + backend;
    if (request.backend != "auto" && backend != request.backend) continue;
    is_known = true;
    reasons += say("\n  ", backend, ": ", objections(backend, kernels, request));
  }
  KEYHOLE_CHECK(is_known, "attention: backend is \"", request.backend, "\"; accepted are ",
                accepted);
  throw Error(ErrorKind::unsupported, say("no kernel for ", to_string(request), reasons));
}

}  // namespace

const KernelEntry& choose(std::span<const KernelEntry> kernels, const Request& request) {
  for (const KernelEntry& kernel : kernels) {
    // Most of the table, passed over without a word: every call comes by here.
    const bool is_of_kind = kernel.device == request.device.kind &&
                            kernel.operation == request.operation && kernel.dtype == request.dtype;
    if (is_of_kind && refusal(kernel, request).empty()) return kernel;
  }
  throw_objections(kernels, request);
}

std::vector<std::string> passed_over(std::span<const KernelEntry> kernels, const Request& request) {
  std::vector<std::string> better;
  for (const KernelEntry& kernel : kernels) {
    const std::string why_not = refusal(kernel, request);
    if (why_not.empty()) return better;
    const bool is_own = kernel.objection != nullptr && kernel.objection(request) == why_not;
    if (is_own) better.push_back(say(kernel.name, ": ", why_not));
  }
  return {};  // there is none to run at all
}

TileShape pick_tile(const KernelEntry& kernel, const Plan& plan) {
  TileShape best = kernel.tiles.front();
  double best_cost = std::numeric_limits<double>::infinity();
  for (const TileShape& tile : kernel.tiles) {
    const double num_tiles = plan.state().estimate_tiles(tile);
    if (num_tiles < 0) continue;  // a plan from a file that has no lists of this shape
    const Shape& shape = plan.shape();
    const double num_lists =
        double(shape.batch * shape.heads) * double(ceil_div(shape.q_len, tile.q));
    const double cost = kernel.cost(tile, num_tiles, num_lists);
    if (cost < best_cost) {
      best_cost = cost;
      best = tile;
    }
  }
  return best;
}

namespace {

// A plan made for one head of one batch entry serves every head: its views then need a group_of
// that names the same group for each of them.
class ViewForHeads {
 public:
  ViewForHeads(const Plan& plan, TileShape tile, bool with_transposed, const TensorView& q)
      : view_(plan.state().view(tile, with_transposed)) {
    const Shape& shape = plan.shape();
    const int64_t heads = q.shape[0] * q.shape[1];
    if (shape.batch * shape.heads == heads) return;
    tiles_.assign(view_.tiles.begin(), view_.tiles.end());
    gathers_.assign(view_.gathers.begin(), view_.gathers.end());
    const auto repeat = [&](auto& part) {
      part.group_of = groups_.emplace_back(size_t(heads), part.group_of[0]).data();
    };
    for (TileView& part : tiles_) repeat(part);
    for (GatherView& part : gathers_) repeat(part);
    view_ = {tiles_, gathers_};
  }
  const PlanView& get() const { return view_; }

 private:
  PlanView view_;
  std::vector<TileView> tiles_;
  std::vector<GatherView> gathers_;
  std::deque<std::vector<int32_t>> groups_;  // a deque: its elements stay where they are
};

}  // namespace

void run_forward(const KernelEntry& kernel, const Plan& plan, TileShape tile, ForwardArgs args) {
  if (kernel.device == Device::Kind::cuda) return run_forward_on_gpu(kernel, plan, tile, args);
  const ViewForHeads view(plan, tile, /*with_transposed=*/false, args.q);
  args.plan = view.get();
  kernel.forward(args);
}

void run_backward(const KernelEntry& kernel, const Plan& plan, TileShape tile, BackwardArgs args) {
  if (kernel.device == Device::Kind::cuda) return run_backward_on_gpu(kernel, plan, tile, args);
  const ViewForHeads view(plan, tile, /*with_transposed=*/true, args.q);
  args.plan = view.get();
  kernel.backward(args);
}

void run_forward(const KernelEntry& kernel, const GatherView& lists, ForwardArgs args) {
  if (kernel.device == Device::Kind::cuda) return run_forward_on_gpu(kernel, lists, args);
  const IndexLists looked_at(lists, args.threads, /*with_transposed=*/false);
  args.plan = looked_at.plan();
  kernel.forward(args);
}

void run_backward(const KernelEntry& kernel, const GatherView& lists, BackwardArgs args) {
  if (kernel.device == Device::Kind::cuda) return run_backward_on_gpu(kernel, lists, args);
  const IndexLists looked_at(lists, args.threads, /*with_transposed=*/true);
  args.plan = looked_at.plan();
  kernel.backward(args);
}

}  // namespace keyhole
