// src/select/selection_cost.cpp
// explain_selection: from the sizes of a call to work, bytes, least times, and the length from
// which choosing is faster.
#include "keyhole/selection_cost.h"

#include <algorithm>
#include <cmath>

#include "base/int_math.h"
#include "plan/compile.h"
#include "select/visible_keys.h"

namespace keyhole {
namespace {

// ---- what is refused ----

void check_range(const char* name, int64_t value, int64_t least, int64_t most) {
  KEYHOLE_CHECK(value >= least && value <= most, "explain_selection: ", name, " is ", value,
                "; accepted are ", least, " to ", most);
}

void check_sizes(const SelectionCall& call) {
  constexpr int64_t kMost = 65536;  // heads, dimensions and batch entries
  check_range("batch", call.batch, 1, kMost);
  check_range("q_len", call.q_len, 0, kMaxPlanLength);
  check_range("k_len", call.k_len, 0, kMaxPlanLength);
  check_range("k, the keys to choose per query,", call.k, 1, kMaxPlanLength);
  check_range("q_heads", call.q_heads, 1, kMost);
  check_range("kv_heads", call.kv_heads, 1, kMost);
  check_range("head_dim", call.head_dim, 1, kMost);
  check_range("v_head_dim", call.v_head_dim, 1, kMost);
  check_range("latent_dim", call.latent_dim, 0, kMost);
  check_range("rope_head_dim", call.rope_head_dim, 0, kMost);
  check_range("index_heads", call.index_heads, 0, kMost);
  check_range("index_dim", call.index_dim, 1, kMost);
  check_range("groups", call.groups, 1, kMost);
  check_range("shared_by", call.shared_by, 1, kMost);
}

void check_heads(const SelectionCall& call) {
  KEYHOLE_CHECK(call.latent_dim == 0 || call.kv_heads == 1, "explain_selection: kv_heads is ",
                call.kv_heads, " and latent_dim ", call.latent_dim,
                "; latent heads share one key, so pass kv_heads 1, or latent_dim 0 for grouped "
                "heads");
  KEYHOLE_CHECK(call.q_heads % call.kv_heads == 0, "explain_selection: q_heads is ", call.q_heads,
                " and kv_heads ", call.kv_heads, "; the first must be a multiple of the second");
  KEYHOLE_CHECK(call.kv_heads % call.groups == 0, "explain_selection: groups is ", call.groups,
                " and kv_heads ", call.kv_heads,
                "; groups must divide the kv heads evenly: 1 for one list per query, ",
                call.kv_heads, " for one per kv head");
  KEYHOLE_CHECK(call.index_heads % call.groups == 0, "explain_selection: index_heads is ",
                call.index_heads, " and groups ", call.groups,
                "; the index heads must be a multiple of the groups");
}

void check_dtypes(const SelectionCall& call) {
  KEYHOLE_CHECK(call.dtype == DType::bf16 || call.dtype == DType::f16,
                "explain_selection: attention in ", to_string(call.dtype),
                "; accepted are bf16 and f16, for which rates of a GPU are stated");
  KEYHOLE_CHECK(call.index_dtype == DType::e4m3 || call.index_dtype == DType::bf16 ||
                    call.index_dtype == DType::f16,
                "explain_selection: an indexer in ", to_string(call.index_dtype),
                "; accepted are e4m3, bf16 and f16, for which rates of a GPU are stated");
}

void check_visible(const SelectionCall& call) {
  if (!call.visible) return;
  const Shape& shape = call.visible->shape();
  KEYHOLE_CHECK(shape.q_len == call.q_len && shape.k_len == call.k_len,
                "explain_selection: the plan of the visible keys is for ", shape.q_len,
                " queries and ", shape.k_len, " keys, the call has ", call.q_len, " and ",
                call.k_len, "; make a plan for these lengths");
  KEYHOLE_CHECK((shape.batch == call.batch || shape.batch == 1) &&
                    (shape.heads == call.groups || shape.heads == 1),
                "explain_selection: the plan of the visible keys is for ", shape.batch,
                " batch entries and ", shape.heads, " heads, the call has ", call.batch,
                " batch entries and ", call.groups,
                " groups; make a plan for one head of one batch entry, or for each of the groups");
}

void check_rates(const GpuRates& rates) {
  const auto check = [](const char* name, double rate) {
    KEYHOLE_CHECK(rate > 0 && std::isfinite(rate), "explain_selection: the rate ", name, " is ",
                  rate, "; it must be a positive number, per second");
  };
  check("flops_16bit", rates.flops_16bit);
  check("flops_8bit", rates.flops_8bit);
  check("memory", rates.memory);
  check("gathered", rates.gathered);
}

// ---- what it costs ----

// Of one group of one batch entry, on average.
struct Pairs {
  double visible, chosen;
};

struct Cost {
  SelectionStep indexer, chosen, dense;
  bool is_dense_latent = false;

  double choosing_seconds(const SelectionCall& call) const {
    return indexer.seconds / double(call.shared_by) + chosen.seconds;
  }
  double speedup(const SelectionCall& call) const {
    const double choosing = choosing_seconds(call);
    return choosing > 0 ? dense.seconds / choosing : 0;
  }
};

SelectionStep step_of(double flops, double flops_rate, double memory_bytes, double gathered_bytes,
                      const GpuRates& rates) {
  return {
      flops, memory_bytes, gathered_bytes,
      std::max({flops / flops_rate, memory_bytes / rates.memory, gathered_bytes / rates.gathered})};
}

SelectionStep indexer_of(const SelectionCall& call, const Pairs& pairs, const GpuRates& rates) {
  const double rate = call.index_dtype == DType::e4m3 ? rates.flops_8bit : rates.flops_16bit;
  const bool is_there = call.index_heads > 0;
  const double products = double(call.batch) * double(call.index_heads) * double(call.index_dim);
  const double keys = double(call.batch) * double(call.groups) * double(call.k_len);
  return step_of(2 * products * pairs.visible, rate,
                 is_there ? keys * double(call.index_dim * bytes_of(call.index_dtype)) : 0, 0,
                 rates);
}

// Elements of a stored key and its value; of latent heads the value is part of the key.
double row_elements(const SelectionCall& call) {
  return double(call.latent_dim > 0 ? call.latent_dim + call.rope_head_dim
                                    : call.head_dim + call.v_head_dim);
}

// Attention over `pairs` of each query head, on the keys as they are stored.
SelectionStep attention_of(const SelectionCall& call, double pairs, double rows_read,
                           double rows_gathered, const GpuRates& rates) {
  const double products = row_elements(call) + double(call.latent_dim);
  const double row_bytes = row_elements(call) * double(bytes_of(call.dtype));
  const double kv_heads = double(call.batch) * double(call.kv_heads);
  return step_of(2 * double(call.batch) * double(call.q_heads) * pairs * products,
                 rates.flops_16bit, kv_heads * rows_read * row_bytes,
                 kv_heads * rows_gathered * row_bytes, rates);
}

// Latent heads as ordinary heads. Keys that come with the queries cost one projection per token in
// either form; only keys of a cache must be expanded on top.
SelectionStep per_head_of(const SelectionCall& call, const Pairs& pairs, const GpuRates& rates) {
  const double heads = double(call.batch) * double(call.q_heads);
  const double products = double(call.head_dim + call.rope_head_dim + call.v_head_dim);
  const auto cached = double(std::max<int64_t>(0, call.k_len - call.q_len));
  const double expanding =
      cached * double(call.latent_dim) * double(call.head_dim + call.v_head_dim);
  const double bytes = heads * double(call.k_len) * products * double(bytes_of(call.dtype));
  return step_of(2 * heads * (pairs.visible * products + expanding), rates.flops_16bit, bytes, 0,
                 rates);
}

Cost cost_of(const SelectionCall& call, const Pairs& pairs, const GpuRates& rates) {
  Cost cost;
  cost.indexer = indexer_of(call, pairs, rates);
  // At best all queries choose the same keys, and memory is read for these alone.
  cost.chosen =
      attention_of(call, pairs.chosen, double(std::min(call.k, call.k_len)), pairs.chosen, rates);
  cost.dense = attention_of(call, pairs.visible, double(call.k_len), 0, rates);
  cost.is_dense_latent = call.latent_dim > 0;
  if (call.latent_dim > 0) {
    const SelectionStep per_head = per_head_of(call, pairs, rates);
    if (per_head.seconds < cost.dense.seconds) cost.dense = per_head, cost.is_dense_latent = false;
  }
  return cost;
}

// ---- from which length it pays ----

bool is_causal(const SelectionCall& call) {
  return !call.visible || (call.visible->pattern_text() == "causal" &&
                           call.visible->shape().q_offset() == call.k_len - call.q_len);
}

bool wins_at(int64_t length, SelectionCall call, const GpuRates& rates) {
  if (is_causal(call)) {
    if (call.q_len == call.k_len) call.q_len = length;
    call.k_len = length;
    const KeyCounts keys = causal_keys(call.q_len, call.k_len, call.k);
    return cost_of(call, {double(keys.visible), double(keys.chosen)}, rates).speedup(call) > 1;
  }
  call.k_len = std::max(call.k_len, length);
  const auto queries = double(call.q_len);
  const Pairs pairs{queries * double(length), queries * double(std::min(length, call.k))};
  return cost_of(call, pairs, rates).speedup(call) > 1;
}

// Up to k keys a selection takes all, and cannot win. Beyond, each further key costs dense
// attention more than the indexer, or it never will.
std::optional<int64_t> winning_length(const SelectionCall& call, const GpuRates& rates) {
  int64_t loses = std::min(call.k, kMaxPlanLength), wins = kMaxPlanLength;
  if (call.q_len == 0 || !wins_at(wins, call, rates)) return {};
  while (wins - loses > 1) {
    const int64_t middle = loses + (wins - loses) / 2;
    (wins_at(middle, call, rates) ? wins : loses) = middle;
  }
  return wins;
}

// ---- what would help ----

void add_change(std::string what, const SelectionCall& changed, const Pairs& pairs,
                SelectionReport& report) {
  const double speedup = cost_of(changed, pairs, report.rates).speedup(changed);
  if (speedup <= report.speedup) return;
  report.changes.push_back({std::move(what), speedup, winning_length(changed, report.rates)});
}

void add_changes(const Pairs& pairs, SelectionReport& report) {
  constexpr int64_t kLightHeads = 16, kLightDim = 64, kLayers = 4;
  const SelectionCall& call = report.call;
  if (call.index_heads > 0) {
    SelectionCall light = call;
    light.index_heads = round_up(kLightHeads, call.groups), light.index_dim = kLightDim;
    light.index_dtype = DType::e4m3;
    add_change(say("an indexer of ", light.index_heads, " heads of ", kLightDim, " in e4m3"), light,
               pairs, report);
    SelectionCall shared = call;
    shared.shared_by = std::max(call.shared_by, kLayers);
    add_change(say("lists shared by ", shared.shared_by, " layers"), shared, pairs, report);
  }
  if (call.latent_dim == 0 && call.kv_heads % 2 == 0) {
    SelectionCall grouped = call;
    grouped.kv_heads = call.kv_heads / 2;
    add_change(say(call.q_heads / grouped.kv_heads, " query heads per kv head instead of ",
                   call.q_heads / call.kv_heads),
               grouped, pairs, report);
  }
}

}  // namespace

SelectionReport explain_selection(const SelectionCall& call, const GpuRates& rates) {
  check_sizes(call);
  check_heads(call);
  check_dtypes(call);
  check_visible(call);
  check_rates(rates);

  SelectionReport report;
  report.call = call;
  report.rates = rates;
  report.pattern = call.visible ? call.visible->pattern_text() : "causal";
  report.is_causal = is_causal(call);
  const KeyCounts keys = report.is_causal ? causal_keys(call.q_len, call.k_len, call.k)
                                          : keys_of(*call.visible, call.k);
  const int64_t lists = call.batch * call.groups;
  const int64_t counted =
      report.is_causal ? 1 : call.visible->shape().batch * call.visible->shape().heads;
  const Pairs pairs{double(keys.visible) / double(counted), double(keys.chosen) / double(counted)};
  // Heads that the plan does not tell apart see the same.
  const auto of_all = [&](int64_t pairs_counted) {
    return checked_mul(pairs_counted, lists / counted, "explain_selection: pairs");
  };
  report.all_pairs = checked_mul(checked_mul(call.q_len, call.k_len, "explain_selection: pairs"),
                                 lists, "explain_selection: pairs");
  report.visible_pairs = of_all(keys.visible);
  report.chosen_pairs = of_all(keys.chosen);

  if (keys.visible == 0) return report;
  const Cost cost = cost_of(call, pairs, rates);
  report.indexer = cost.indexer, report.chosen = cost.chosen, report.dense = cost.dense;
  report.is_dense_latent = cost.is_dense_latent;
  report.choosing_seconds = cost.choosing_seconds(call);
  report.speedup = cost.speedup(call);
  report.wins_from = winning_length(call, rates);
  add_changes(pairs, report);
  return report;
}

}  // namespace keyhole
