// src/kernels/sm90/backward_entries.cpp
#include "kernels/sm90/backward_entries.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/row_objection.h"
#include "kernels/device/span_lists.h"
#include "kernels/sm90/backward_config.h"
#include "kernels/sm90/backward_launch.h"
#include "kernels/sm90/latent_backward_launch.h"
#include "kernels/sm90/latent_forward_launch.h"

namespace keyhole::sm90 {
namespace {

double cost(const TileShape& tile, double num_tiles, double /*num_lists*/) {
  return num_tiles * tile.q * tile.k;
}

// The fixed cost of a list, in steps. Estimated, not measured: nothing hides the first scores and
// weights of a list, nor the stores of dk and dv.
constexpr double kStepsPerList = 1;

Persistence persistence(const TileShape& /*tile*/) {
  return {.ctas_per_processor = 1,
          .tiles_per_item = kStepsPerList,
          .cache_share = device::kBackwardCacheShare};
}

// The widest heads of run_backward; the others have run_wide_backward.
constexpr int kNarrow = KeysDim128::head_dim;

bool visits_queries_once(const Request& request, const TileShape& tile) {
  return request.lists != nullptr && request.lists->visits_queries_once(tile);
}

template <class C>
std::string objection(const Request& request) {
  // Narrower heads have kernels of their own, and what this one costs them is not measured.
  if (C::head_dim > kNarrow && std::max(request.head_dim, request.v_head_dim) <= kNarrow) {
    return say("is for head_dim above ", kNarrow);
  }
  if (!request.why_no_tma.empty()) return request.why_no_tma;
  return device::row_objection(request, kKeysSharedBytes);
}

BackwardSchedule schedule(const Request& request, const TileShape& tile) {
  // The kernel that writes dq adds up dk and dv of query heads in any order.
  const bool has_turns = request.deterministic && request.shares_kv_heads;
  const bool is_written = visits_queries_once(request, tile) && !has_turns;
  // Key lists with a softcap, or with a fixed order, use the launches that run on any GPU.
  const bool scatters = !request.deterministic && !request.has_softcap;
  return {.dq = is_written              ? DqOrder::written
                : request.deterministic ? DqOrder::by_turns
                                        : DqOrder::atomic,
          .heads = has_turns                 ? SumOrder::by_turns
                   : request.shares_kv_heads ? SumOrder::atomic
                                             : SumOrder::fixed,
          .key_lists = scatters ? KeyListOrder::atomic : device::key_lists_in_order(request),
          .splits_lists = !has_turns};
}

struct Padded {
  int64_t head_dim;
  TileShape tile;
  std::string (*objection)(const Request& request);
  void (*backward)(const BackwardArgs& args);
};
template <class C, DType kType, Bend kBend>
Padded padded_kernel() {
  Padded padded = {C::head_dim, {C::tile_q, C::tile_k}, objection<C>, nullptr};
  if constexpr (C::head_dim > kNarrow) {
    padded.backward = run_wide_backward<kType, C::head_dim, kBend>;
  } else {
    padded.backward = run_backward<kType, C::head_dim, kBend>;
  }
  return padded;
}

template <DType kType, Bend kBend, class... Configs>
void add_entries(std::vector<KernelEntry>& entries) {
  const Padded all[] = {padded_kernel<Configs, kType, kBend>()...};
  for (const Padded& padded : all) {
    entries.push_back({.name = say("sm90.backward.", to_string(kType), ".d", padded.head_dim,
                                   kBend == Bend::softcap ? ".softcap" : ""),
                       .backend = "sm90",
                       .device = Device::Kind::cuda,
                       .operation = Operation::backward,
                       .dtype = kType,
                       .max_head_dim = padded.head_dim,
                       .tiles = {padded.tile},
                       .cost = cost,
                       .forward = nullptr,
                       .backward = padded.backward,
                       .bend = kBend,
                       .schedule = schedule,
                       .bitmaps = BitmapLayout::mma,
                       .min_compute_capability = 90,
                       .max_compute_capability = 90,
                       .rounds_weights = true,
                       .objection = padded.objection,
                       .persistence = persistence,
                       .forward_workspace = nullptr,
                       .backward_workspace = device::backward_workspace_bytes});
  }
}

std::string latent_objection(const Request& request) {
  if (!request.why_not_latent.empty()) return request.why_not_latent;
  if (request.v_head_dim > kLatentValueDim) return say("has head_dim of v up to ", kLatentValueDim);
  if (request.deterministic) return "adds up dk and dv in no fixed order";
  return device::row_objection(request, kKeysSharedBytes);
}

BackwardSchedule latent_schedule(const Request& /*request*/, const TileShape& /*tile*/) {
  return {.key_lists = KeyListOrder::atomic};
}

// Latent form has no tiles, so there is one choice, whatever it costs.
template <DType kType>
KernelEntry latent_entry() {
  return {.name = say("sm90.backward.", to_string(kType), ".latent"),
          .backend = "sm90",
          .device = Device::Kind::cuda,
          .operation = Operation::backward,
          .dtype = kType,
          .max_head_dim = kLatentHeadDim,
          .tiles = {{128, 128}},
          .cost = cost,
          .forward = nullptr,
          .backward = run_latent_backward<kType>,
          .bend = Bend::none,
          .schedule = latent_schedule,
          .bitmaps = BitmapLayout::mma,
          .min_compute_capability = 90,
          .max_compute_capability = 90,
          .rounds_weights = true,
          .objection = latent_objection,
          .forward_workspace = nullptr,
          .backward_workspace = device::backward_workspace_bytes};
}

// For every dtype, without a softcap and with one.
template <class... Configs>
void add_all(std::vector<KernelEntry>& entries) {
  add_entries<DType::bf16, Bend::none, Configs...>(entries);
  add_entries<DType::f16, Bend::none, Configs...>(entries);
  add_entries<DType::bf16, Bend::softcap, Configs...>(entries);
  add_entries<DType::f16, Bend::softcap, Configs...>(entries);
}

}  // namespace

// Smallest padded head_dim first: dispatch takes the first entry without an objection. Latent form
// comes after narrow heads, since its kernel multiplies 576 columns, however few there are,
// and before wide ones, whose launches over key lists do not know that v is a part of k.
std::vector<KernelEntry> backward_entries() {
  std::vector<KernelEntry> entries;
  add_all<KeysDim64, KeysDim96, KeysDim128>(entries);
  entries.push_back(latent_entry<DType::bf16>());
  entries.push_back(latent_entry<DType::f16>());
  add_all<WideDim192, WideDim256>(entries);
  return entries;
}

}  // namespace keyhole::sm90
