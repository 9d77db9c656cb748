// src/runtime/dispatch.cpp
// Chooses a kernel by asking each for its objection, and a tile by its estimated cost for the
// lists.
#include "runtime/dispatch.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/int_math.h"
#include "kernels/sm90/tma_tensors.h"
#include "plan/plan_state.h"
#include "runtime/gpu.h"
#include "runtime/host_lists.h"
#include "runtime/index_lists.h"
#include "runtime/list_facts.h"
#include "runtime/registry.h"

namespace keyhole {

std::string to_string(const Request& request) {
  std::string text = say("attention ", to_string(request.operation), ", ", to_string(request.dtype),
                         ", head_dim ", request.head_dim);
  if (request.v_head_dim != request.head_dim) text += say(" (v ", request.v_head_dim, ")");
  if (request.device.kind == Device::Kind::cuda) {
    text += say(", GPU ", request.device.ordinal, " (sm_", request.compute_capability, ")");
  }
  if (!request.normalizer.is_plain_softmax()) text += ", " + to_string(request.normalizer);
  if (request.has_softcap) text += ", softcap";
  if (request.deterministic) text += ", deterministic";
  return text + ", on " + request.backend;
}

Request request_for(const Device& device, Operation operation, DType dtype, int64_t head_dim,
                    int64_t v_head_dim) {
  Request request{.backend = "auto",
                  .operation = operation,
                  .dtype = dtype,
                  .head_dim = head_dim,
                  .v_head_dim = v_head_dim,
                  .device = device};
  if (device.kind == Device::Kind::cuda) {
    request.compute_capability = gpu(device).compute_capability;
    request.shared_bytes = gpu(device).shared_bytes;
  }
  return request;
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

std::string why_not_latent(const TensorView& k, const TensorView& v, const Lists& lists) {
  bool is_part = v.data == k.data && v.shape[3] <= k.shape[3];
  for (int d = 0; d < 3; ++d)
    is_part = is_part && (v.shape[d] <= 1 || v.strides[d] == k.strides[d]);
  if (!is_part) return "takes v as the first columns of k";
  const auto* keys = std::get_if<KeyListView>(&lists.get());
  if (keys == nullptr) return "follows index tensors alone";
  const int64_t heads = keys->indices.shape[1];
  if (heads != 1 && heads != k.shape[1])
    return "takes lists that the query heads of a kv head share";
  return {};
}

KeyListSizes key_list_sizes(const GatherView& view, int64_t heads_per_kv) {
  const int32_t heads =
      view.heads_per_list(narrow(heads_per_kv, "attention: query heads of a kv head"));
  return {.rows = int64_t{view.rows_per_list} * heads,
          .room = view.room(),
          .keys = view.table.is_given() ? view.room() : view.planned.mean,
          .k_len = view.k_len};
}

KeyListSizes key_list_sizes(const TensorView& q, const TensorView& k, const Lists& lists) {
  if (k.shape[1] == 0) return {};
  const int64_t heads_per_kv = q.shape[1] / k.shape[1];
  if (const auto* keys = std::get_if<KeyListView>(&lists.get())) {
    return key_list_sizes(key_table(*keys, q, k), heads_per_kv);
  }
  const auto* plan = std::get_if<Plan>(&lists.get());
  if (plan == nullptr || !plan->state().forms().has_key_lists) return {};
  const std::vector<GatherView>& parts = plan->state().gather_views();
  // A plan has one part of key lists; a file might have more.
  return parts.size() == 1 ? key_list_sizes(parts[0], heads_per_kv) : KeyListSizes{};
}

std::string why_no_tma(std::initializer_list<const TensorView*> tensors) {
  for (const TensorView* tensor : tensors) {
    if (!tensor->is_given()) continue;
    if (std::string why = sm90::why_no_tma(*tensor); !why.empty()) return why;
  }
  return {};
}

std::string objection_to(const KernelEntry& kernel, const Request& request) {
  if (kernel.weights != weights_of(request.normalizer)) {
    return kernel.weights == Weights::sparse ? "is for entmax and top_k" : "softmax only";
  }
  if (kernel.bend == Bend::none && request.has_softcap) return "has no softcap";
  if (kernel.bend == Bend::softcap && !request.has_softcap) return "is for calls with a softcap";
  if (request.lists != nullptr && request.lists->has_tiles()) {
    const auto can_be_had = [&](const TileShape& tile) {
      return request.lists->num_tiles(tile) >= 0;
    };
    if (std::ranges::none_of(kernel.tiles, can_be_had)) {
      std::string tiles;
      for (const TileShape& tile : kernel.tiles)
        tiles += (tiles.empty() ? "" : ", ") + to_string(tile);
      return say("follows tiles of ", tiles, "; ", request.lists->shapes());
    }
  }
  return kernel.objection != nullptr ? kernel.objection(request) : std::string();
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
  return objection_to(kernel, request);
}

namespace {

// The objections of a backend's kernels, each once. Kernels for another dtype, or for calls with a
// softcap when this one has none (or the reverse), or with other weights, are asked only if there
// are no others.
std::string objections(const std::string& backend, std::span<const KernelEntry> kernels,
                       const Request& request) {
  std::vector<std::string> reasons;
  const Bend other = request.has_softcap ? Bend::none : Bend::softcap;
  struct Asked {
    bool any_dtype, any_call;
  };
  for (const Asked asked : {Asked{false, false}, {false, true}, {true, false}, {true, true}}) {
    if (!reasons.empty()) break;
    for (const KernelEntry& kernel : kernels) {
      if (kernel.backend != backend || kernel.operation != request.operation) continue;
      if (!asked.any_dtype && kernel.dtype != request.dtype) continue;
      const bool is_for_others =
          kernel.bend == other || kernel.weights != weights_of(request.normalizer);
      if (!asked.any_call && is_for_others) continue;
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

namespace {

bool is_of_kind(const KernelEntry& kernel, const Request& request) {
  return kernel.device == request.device.kind && kernel.operation == request.operation &&
         kernel.dtype == request.dtype && kernel.weights == weights_of(request.normalizer);
}

double cost_of(const KernelEntry& kernel, const ListFacts& lists, const TileShape& tile) {
  const double num_tiles = lists.num_tiles(tile);
  if (num_tiles < 0) return std::numeric_limits<double>::infinity();
  return kernel.cost(tile, num_tiles, lists.num_lists(tile));
}

}  // namespace

std::string to_string(const Choice& choice) {
  std::string text = choice.kernel->name;
  if (choice.follows_tiles) text += ", tiles " + to_string(choice.tile);
  if (choice.follows_key_lists) text += ", key lists";
  if (choice.kernel->operation == Operation::backward) text += ", " + to_string(choice.schedule);
  if (choice.workspace_bytes > 0) text += say(", workspace ", choice.workspace_bytes, " bytes");
  return text;
}

Choice choose_call(std::span<const KernelEntry> kernels, const Request& request) {
  const KernelEntry* best = nullptr;
  TileShape best_tile = {};
  double best_cost = 0;
  const std::string* backend = nullptr;  // the last backend that has its kernel
  for (const KernelEntry& kernel : kernels) {
    // Skips most of the table without building texts: every call comes through here.
    if (!is_of_kind(kernel, request) || (backend != nullptr && *backend == kernel.backend) ||
        (best != nullptr && kernel.rank > best->rank)) {
      continue;
    }
    if (!refusal(kernel, request).empty()) continue;
    backend = &kernel.backend;
    TileShape tile = kernel.tiles.empty() ? TileShape{} : kernel.tiles.front();
    double cost = 0;
    if (request.lists != nullptr && request.lists->has_tiles()) {
      tile = pick_tile(kernel, *request.lists);
      cost = cost_of(kernel, *request.lists, tile);
    }
    if (best == nullptr || kernel.rank < best->rank || cost < best_cost) {
      best = &kernel;
      best_tile = tile;
      best_cost = cost;
    }
  }
  if (best == nullptr) throw_objections(kernels, request);
  Choice choice{best, best_tile, schedule_of(*best, request, best_tile)};
  if (request.lists != nullptr) {
    choice.follows_tiles = request.lists->has_tiles();
    choice.follows_key_lists = request.lists->has_key_lists();
  }
  return choice;
}

const KernelEntry& choose(std::span<const KernelEntry> kernels, const Request& request) {
  return *choose_call(kernels, request).kernel;
}

std::vector<std::string> passed_over(std::span<const KernelEntry> kernels, const Request& request) {
  std::vector<std::string> better;
  for (const KernelEntry& kernel : kernels) {
    const std::string why_not = refusal(kernel, request);
    if (why_not.empty()) {
      // Another kernel of that backend takes the call: it was not passed over.
      std::erase_if(
          better, [&](const std::string& text) { return text.starts_with(kernel.backend + "."); });
      return better;
    }
    if (objection_to(kernel, request) == why_not) better.push_back(say(kernel.name, ": ", why_not));
  }
  return {};  // no kernel can run at all
}

TileShape pick_tile(const KernelEntry& kernel, const ListFacts& lists) {
  TileShape best = kernel.tiles.front();
  double best_cost = std::numeric_limits<double>::infinity();
  for (const TileShape& tile : kernel.tiles) {
    const double cost = cost_of(kernel, lists, tile);
    if (cost < best_cost) {
      best_cost = cost;
      best = tile;
    }
  }
  return best;
}
TileShape pick_tile(const KernelEntry& kernel, const Plan& plan) {
  return pick_tile(kernel, PlanFacts(plan));
}

BackwardSchedule schedule_of(const KernelEntry& kernel, const Request& request,
                             const TileShape& tile) {
  return kernel.schedule != nullptr ? kernel.schedule(request, tile) : BackwardSchedule{};
}

BackwardSchedule schedule_of(const KernelEntry& kernel, const Lists& lists, const TileShape& tile,
                             const BackwardArgs& args, bool deterministic) {
  const FactsOf facts(lists);
  Request request;
  request.operation = Operation::backward;
  request.normalizer = args.rule.normalizer;
  request.has_softcap = args.rule.bends_in_fp32();
  request.deterministic = deterministic;
  request.shares_kv_heads = args.q.shape[1] != args.k.shape[1];
  request.lists = &facts.get();
  if (deterministic) request.key_lists = key_list_sizes(args.q, args.k, lists);
  return schedule_of(kernel, request, tile);
}

void run_forward(const KernelEntry& kernel, const Lists& lists, TileShape tile, ForwardArgs args,
                 const AllocateWorkspace& allocate) {
  if (kernel.device == Device::Kind::cuda) {
    return run_forward_on_gpu(kernel, lists, tile, args, allocate);
  }
  const HostLists view(lists, tile, args.q, args.k, args.threads, /*with_transposed=*/false);
  args.plan = view.get();
  kernel.forward(args);
}

void run_backward(const KernelEntry& kernel, const Lists& lists, TileShape tile, BackwardArgs args,
                  const AllocateWorkspace& allocate) {
  if (kernel.device == Device::Kind::cuda) {
    return run_backward_on_gpu(kernel, lists, tile, args, allocate);
  }
  const HostLists view(lists, tile, args.q, args.k, args.threads, /*with_transposed=*/true);
  args.plan = view.get();
  kernel.backward(args);
}

int64_t forward_workspace(const KernelEntry& kernel, const Lists& lists, TileShape tile,
                          const ForwardArgs& args) {
  if (kernel.device == Device::Kind::cpu) return 0;
  return forward_workspace_on_gpu(kernel, lists, tile, args);
}
int64_t backward_workspace(const KernelEntry& kernel, const Lists& lists, TileShape tile,
                           const BackwardArgs& args) {
  if (kernel.device == Device::Kind::cpu) return 0;
  return backward_workspace_on_gpu(kernel, lists, tile, args);
}

}  // namespace keyhole
