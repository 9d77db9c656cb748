// src/api/check_select.cpp
#include "api/check_select.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "api/check_lists.h"
#include "api/check_tensor.h"
#include "base/check.h"
#include "base/int_math.h"

namespace keyhole {
namespace {

constexpr int64_t kMaxHeadDim = 576;
constexpr const char* kFour = "[batch, heads, length, head_dim]";

DType sum_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

struct Named {
  TensorView tensor;
  const char* name;
};

void check_dtype(const char* who, const TensorView& tensor, const char* name, DType want,
                 const TensorView& like, const char* like_name) {
  KEYHOLE_CHECK(tensor.dtype == want, who, ": ", name, " is ", to_string(tensor.dtype),
                "; it must be ", to_string(want), " where ", like_name, " is ",
                to_string(like.dtype));
}

void check_entries(const char* who, int64_t entries) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  KEYHOLE_CHECK(entries <= kMost, who, ": there are ", entries,
                " entries; lists of int32 take up to ", kMost);
}

// Everything but the memory.
void check_indexer_shapes(const char* who, const IndexerView& indexer) {
  const TensorView &q = indexer.q, &k = indexer.k;
  KEYHOLE_CHECK(q.rank == 4 && k.rank == 4, who, ": q has ", q.rank, " and k ", k.rank,
                " dimensions; expected 4: q [batch, index_heads, q_len, head_dim], k [batch, "
                "groups, entries, head_dim]");
  check_same_dtype(who, k, "k", q);
  check_same_device(who, k, "k", q);
  KEYHOLE_CHECK(k.shape[0] == q.shape[0], who, ": q has batch ", q.shape[0], " and k has ",
                k.shape[0], "; they must be equal");
  KEYHOLE_CHECK(k.shape[3] == q.shape[3], who, ": q has head_dim ", q.shape[3], " but k has ",
                k.shape[3], "; they must be equal");
  KEYHOLE_CHECK(q.shape[3] >= 1 && q.shape[3] <= kMaxHeadDim, who, ": q has head_dim ", q.shape[3],
                "; accepted are 1 to ", kMaxHeadDim);
  const int64_t heads = q.shape[1], groups = k.shape[1];
  KEYHOLE_CHECK(groups == 0 ? heads == 0 : heads >= groups && heads % groups == 0, who, ": q has ",
                heads, " index heads and k has ", groups,
                " groups; the index heads must be a multiple of the groups. Repeat or drop heads, "
                "or pass k with one group, which serves all index heads");
  check_entries(who, k.shape[2]);
  if (indexer.w.is_given()) {
    check_same_device(who, indexer.w, "w", q);
    KEYHOLE_CHECK(indexer.w.rank == 3, who, ": w has ", indexer.w.rank,
                  " dimensions; expected 3: [batch, index_heads, q_len]");
    check_sizes(who, indexer.w, "w", {q.shape[0], heads, q.shape[2]},
                "batch, index heads and length of q");
    check_dtype(who, indexer.w, "w", sum_dtype(q.dtype), q, "q");
  }
  if (indexer.k_scale.is_given()) {
    check_same_device(who, indexer.k_scale, "k_scale", q);
    KEYHOLE_CHECK(indexer.k_scale.rank == 3, who, ": k_scale has ", indexer.k_scale.rank,
                  " dimensions; expected 3: [batch, groups, entries]");
    check_sizes(who, indexer.k_scale, "k_scale", {k.shape[0], groups, k.shape[2]},
                "batch, groups and entries of k");
    check_dtype(who, indexer.k_scale, "k_scale", sum_dtype(q.dtype), q, "q");
  }
}

// Returns the tensors that are read.
std::vector<Named> check_indexer(const char* who, const IndexerView& indexer) {
  check_indexer_shapes(who, indexer);
  std::vector<Named> read = {{indexer.q, "q"}, {indexer.k, "k"}};
  check_tensor(who, indexer.q, "q", 4, kFour);
  check_tensor(who, indexer.k, "k", 4, kFour);
  if (indexer.w.is_given()) {
    check_tensor(who, indexer.w, "w", 3, "[batch, index_heads, q_len]");
    read.push_back({indexer.w, "w"});
  }
  if (indexer.k_scale.is_given()) {
    check_tensor(who, indexer.k_scale, "k_scale", 3, "[batch, groups, entries]");
    read.push_back({indexer.k_scale, "k_scale"});
  }
  return read;
}

void check_plan(const char* who, const std::optional<Plan>& plan, const char* name, int64_t batch,
                int64_t groups, int64_t q_len, int64_t entries) {
  if (!plan) return;
  const Shape& shape = plan->shape();
  KEYHOLE_CHECK(shape.q_len == q_len && shape.k_len == entries, who, ": the plan of `", name,
                "` was made for ", shape.q_len, " queries and ", shape.k_len, " entries but got ",
                q_len, " and ", entries, "; make it again for these: plan(pattern, ", q_len, ", ",
                entries, ")");
  const bool is_for_all = shape.batch == 1 && shape.heads == 1;
  KEYHOLE_CHECK(is_for_all || (shape.batch == batch && shape.heads == groups), who,
                ": the plan of `", name, "` was made for batch ", shape.batch, " and ", shape.heads,
                " heads but there are batch ", batch, " and ", groups,
                " groups; make it again for these, or for batch 1 and one head, which serves all");
}

void check_options(const char* who, const SelectOptions& options, int64_t batch, int64_t groups,
                   int64_t q_len, int64_t entries) {
  KEYHOLE_CHECK(options.threads >= 0, who, ": threads is ", options.threads,
                "; it must be positive, or 0 for all the machine has");
  check_plan(who, options.visible, "visible", batch, groups, q_len, entries);
  check_plan(who, options.always, "always", batch, groups, q_len, entries);
}

void check_k(const char* who, int64_t k) {
  KEYHOLE_CHECK(k >= 1, who, ": k is ", k,
                "; at least 1 entry must be chosen. It may exceed the number of entries");
}

void check_lists_out(const char* who, const IndexView& lists, const char* name,
                     const TensorView& like, int64_t batch, int64_t groups, int64_t q_len,
                     int64_t columns, bool exactly) {
  if (batch == 0 && !lists.is_given()) return;  // an empty array may have no memory
  KEYHOLE_CHECK(lists.is_given(), who, ": ", name, " are not given; pass int32 [", batch, ", ",
                groups, ", ", q_len, ", ", columns, "]");
  const TensorView memory = memory_of(lists);
  KEYHOLE_CHECK(!lists.is_wide, who, ": ", name, " are int64; they must be int32");
  KEYHOLE_CHECK(lists.rows_per_list == 1, who, ": ", name, " have rows_per_list ",
                lists.rows_per_list, "; every query gets a list of its own, it must be 1");
  const int64_t* const n = lists.shape;
  const bool fits = n[0] == batch && n[1] == groups && n[2] == q_len &&
                    (exactly ? n[3] == columns : n[3] >= columns);
  KEYHOLE_CHECK(fits, who, ": ", name, " are ", to_string(lists), "; expected int32 [", batch, ", ",
                groups, ", ", q_len, ", ", columns, exactly ? "]" : " or more]");
  check_tensor(who, memory, name, 4, "[batch, groups, q_len, k]");
  check_same_device(who, memory, name, like);
  check_output(who, memory, name);
}

// Checks the outputs against each other and against what is read.
void check_apart_from(const char* who, const std::vector<Named>& written,
                      const std::vector<Named>& read) {
  for (size_t i = 0; i < written.size(); ++i) {
    for (const Named& other : read) {
      check_no_overlap(who, written[i].tensor, written[i].name, other.tensor, other.name);
    }
    for (size_t j = 0; j < i; ++j) {
      check_no_overlap(who, written[i].tensor, written[i].name, written[j].tensor, written[j].name);
    }
  }
}

void check_selection(const char* who, const Selection& selection, const TensorView& like, int64_t k,
                     int64_t batch, int64_t groups, int64_t q_len, const std::vector<Named>& read) {
  check_lists_out(who, selection.indices, "indices", like, batch, groups, q_len, k, false);
  std::vector<Named> written = {{memory_of(selection.indices), "indices"}};
  if (selection.counts.is_given()) {
    check_lists_out(who, selection.counts, "counts", like, batch, groups, q_len, 1, true);
    written.push_back({memory_of(selection.counts), "counts"});
  }
  check_apart_from(who, written, read);
}

}  // namespace

void check_index_scores(const IndexerView& indexer, const TensorView& scores,
                        const SelectOptions& options) {
  constexpr const char* kWho = "index_scores";
  const auto read = check_indexer(kWho, indexer);
  const TensorView &q = indexer.q, &k = indexer.k;
  check_options(kWho, options, q.shape[0], k.shape[1], q.shape[2], k.shape[2]);
  check_tensor(kWho, scores, "scores", 4, "[batch, groups, q_len, entries]");
  check_same_device(kWho, scores, "scores", q);
  check_sizes(kWho, scores, "scores", {q.shape[0], k.shape[1], q.shape[2], k.shape[2]},
              "batch, groups, length of q and entries of k");
  check_dtype(kWho, scores, "scores", sum_dtype(q.dtype), q, "q");
  check_output(kWho, scores, "scores");
  check_apart_from(kWho, {{scores, "scores"}}, read);
}

void check_top_k(const TensorView& scores, const Selection& selection,
                 const SelectOptions& options) {
  constexpr const char* kWho = "top_k";
  check_tensor(kWho, scores, "scores", 4, "[batch, groups, q_len, entries]");
  KEYHOLE_CHECK(scores.dtype != DType::e4m3,
                "top_k: scores are e4m3; accepted are f32, f16, bf16 "
                "and f64, convert them first");
  check_k(kWho, options.k);
  const int64_t* const n = scores.shape;
  check_entries(kWho, n[3]);
  check_options(kWho, options, n[0], n[1], n[2], n[3]);
  check_selection(kWho, selection, scores, options.k, n[0], n[1], n[2], {{scores, "scores"}});
}

void check_selection_question(const IndexerView& indexer, const SelectOptions& options) {
  constexpr const char* kWho = "select_keys";
  check_indexer_shapes(kWho, indexer);
  check_k(kWho, options.k);
  const TensorView &q = indexer.q, &k = indexer.k;
  check_options(kWho, options, q.shape[0], k.shape[1], q.shape[2], k.shape[2]);
}

void check_select_keys(const IndexerView& indexer, const Selection& selection,
                       const SelectOptions& options) {
  constexpr const char* kWho = "select_keys";
  const auto read = check_indexer(kWho, indexer);
  check_selection_question(indexer, options);
  const TensorView& q = indexer.q;
  check_selection(kWho, selection, q, options.k, q.shape[0], indexer.k.shape[1], q.shape[2], read);
}

namespace {

void check_target(const char* who, const AttentionTarget& target, const IndexerView& indexer) {
  const TensorView &q = target.q, &k = target.k, &lse = target.lse;
  check_tensor(who, q, "target.q", 4, kFour);
  check_tensor(who, k, "target.k", 4, kFour);
  check_tensor(who, lse, "target.lse", 3, "[batch, q_heads, q_len]");
  KEYHOLE_CHECK(q.dtype != DType::e4m3, who,
                ": target.q is e4m3; accepted are f32, bf16, f16 and "
                "f64, as in attention");
  check_same_dtype(who, k, "target.k", q, "target.q");
  for (const auto& [tensor, name] :
       {std::pair{&q, "target.q"}, {&k, "target.k"}, {&lse, "target.lse"}}) {
    check_same_device(who, *tensor, name, indexer.q);
  }
  const int64_t batch = indexer.q.shape[0], q_len = indexer.q.shape[2];
  const int64_t groups = indexer.k.shape[1], entries = indexer.k.shape[2];
  KEYHOLE_CHECK(q.shape[0] == batch && q.shape[2] == q_len, who, ": target.q is ", to_string(q),
                " and q is ", to_string(indexer.q), "; their batch and length must be equal");
  const int64_t per_entry = target.keys_per_entry;
  KEYHOLE_CHECK(per_entry >= 1, who, ": keys_per_entry is ", per_entry,
                "; accepted are 1 and more");
  KEYHOLE_CHECK(k.shape[0] == batch && entries == ceil_div(k.shape[2], per_entry), who,
                ": target.k is ", to_string(k), " and k is ", to_string(indexer.k),
                "; their batch must be equal, and k must have one entry for ",
                per_entry == 1 ? "each key, or pass keys_per_entry"
                               : say(per_entry, " keys: ", ceil_div(k.shape[2], per_entry)));
  KEYHOLE_CHECK(k.shape[3] == q.shape[3] && q.shape[3] >= 1 && q.shape[3] <= kMaxHeadDim, who,
                ": target.q has head_dim ", q.shape[3], " and target.k has ", k.shape[3],
                "; they must be equal and from 1 to ", kMaxHeadDim);
  KEYHOLE_CHECK(k.shape[1] == 0 ? q.shape[1] == 0 : q.shape[1] % k.shape[1] == 0, who,
                ": target.q has ", q.shape[1], " heads and target.k has ", k.shape[1],
                "; the heads of q must be a multiple of those of k");
  KEYHOLE_CHECK(groups == 0 || (q.shape[1] > 0 && q.shape[1] % groups == 0), who, ": target.q has ",
                q.shape[1], " heads and k has ", groups,
                " groups; the heads must be a multiple of the groups, or pass k with one group");
  check_sizes(who, lse, "target.lse", {batch, q.shape[1], q_len},
              "batch, heads and length of target.q");
  check_dtype(who, lse, "target.lse", sum_dtype(q.dtype), q, "target.q");
  KEYHOLE_CHECK(!target.scale || std::isfinite(*target.scale), who, ": target.scale is ",
                target.scale.value_or(0),
                "; it must be a finite number, or left out for head_dim ** -0.5");
  KEYHOLE_CHECK(std::isfinite(target.softcap) && target.softcap >= 0, who, ": target.softcap is ",
                target.softcap, "; it must be a positive number, or 0 for none");
}

void check_rows(const char* who, const IndexView& rows, const TensorView& q) {
  if (!rows.is_given()) return;
  const int64_t* const n = rows.shape;
  KEYHOLE_CHECK(!rows.is_wide && n[0] == 1 && n[1] == 1 && n[2] == 1, who, ": rows are ",
                to_string(rows), "; expected int32 [1, 1, 1, n]");
  const TensorView memory = memory_of(rows);
  check_tensor(who, memory, "rows", 4, "[1, 1, 1, n]");
  check_same_device(who, memory, "rows", q);
  if (rows.device.kind != Device::Kind::cpu) return;
  const auto* values = static_cast<const int32_t*>(rows.data);
  int64_t before = -1;
  for (int64_t i = 0; i < n[3]; ++i) {
    KEYHOLE_CHECK(values[i] > before && values[i] < q.shape[2], who, ": rows[", i, "] is ",
                  values[i], "; rows ascend, each once, from 0 to ", q.shape[2] - 1);
    before = values[i];
  }
}

// What both directions read.
std::vector<Named> check_loss(const char* who, const IndexerView& indexer,
                              const AttentionTarget& target, const Lists& lists,
                              const IndexLossOptions& options) {
  auto read = check_indexer(who, indexer);
  check_target(who, target, indexer);
  KEYHOLE_CHECK(options.threads >= 0, who, ": threads is ", options.threads,
                "; it must be positive, or 0 for all the machine has");
  const int64_t batch = indexer.q.shape[0], groups = indexer.k.shape[1];
  const int64_t q_len = indexer.q.shape[2], k_len = target.k.shape[2];
  if (std::holds_alternative<TileListView>(lists.get())) {
    throw Error(ErrorKind::unsupported,
                say(who,
                    ": the lists are lists of tiles; accepted are a plan (all visible keys) "
                    "or an index tensor (the selected keys)"));
  }
  if (const auto* plan = std::get_if<Plan>(&lists.get())) {
    check_plan(who, *plan, "lists", batch, groups, q_len, k_len);
  } else {
    const IndexView& indices = std::get<KeyListView>(lists.get()).indices;
    KEYHOLE_CHECK(indices.shape[1] == groups || indices.shape[1] == 1, who, ": indices are ",
                  to_string(indices), "; their heads must be the groups of the indexer, ", groups,
                  ", or 1");
  }
  // As the lists of attention whose heads are the groups.
  TensorView queries(nullptr, DType::f32, {batch, groups, q_len, 1});
  TensorView keys(nullptr, DType::f32, {batch, groups, k_len, 1});
  queries.device = keys.device = indexer.q.device;
  check_lists(who, lists, queries, keys);
  check_rows(who, options.rows, indexer.q);
  for (const auto& [memory, name] : memory_of(lists)) read.push_back({memory, name});
  read.push_back({target.q, "target.q"});
  read.push_back({target.k, "target.k"});
  read.push_back({target.lse, "target.lse"});
  read.push_back({memory_of(options.rows), "rows"});
  return read;
}

void check_row_tensor(const char* who, const TensorView& tensor, const char* name,
                      const IndexerView& indexer) {
  check_tensor(who, tensor, name, 3, "[batch, groups, q_len]");
  check_same_device(who, tensor, name, indexer.q);
  check_sizes(who, tensor, name, {indexer.q.shape[0], indexer.k.shape[1], indexer.q.shape[2]},
              "batch, groups and length of q");
  check_dtype(who, tensor, name, sum_dtype(indexer.q.dtype), indexer.q, "q");
}

void check_stats(const char* who, const TensorView& stats, const IndexerView& indexer) {
  check_tensor(who, stats, "stats", 4, "[batch, groups, q_len, 2]");
  check_same_device(who, stats, "stats", indexer.q);
  check_sizes(who, stats, "stats", {indexer.q.shape[0], indexer.k.shape[1], indexer.q.shape[2], 2},
              "batch, groups, length of q and 2");
  check_dtype(who, stats, "stats", sum_dtype(indexer.q.dtype), indexer.q, "q");
}

}  // namespace

void check_index_loss_forward(const IndexerView& indexer, const AttentionTarget& target,
                              const Lists& lists, const TensorView& loss, const TensorView& stats,
                              const IndexLossOptions& options) {
  constexpr const char* kWho = "index_loss_forward";
  const auto read = check_loss(kWho, indexer, target, lists, options);
  check_row_tensor(kWho, loss, "loss", indexer);
  check_stats(kWho, stats, indexer);
  check_output(kWho, loss, "loss");
  check_output(kWho, stats, "stats");
  check_apart_from(kWho, {{loss, "loss"}, {stats, "stats"}}, read);
}

void check_index_loss_backward(const TensorView& dloss, const IndexerView& indexer,
                               const AttentionTarget& target, const Lists& lists,
                               const TensorView& stats, const IndexGradients& gradients,
                               const IndexLossOptions& options) {
  constexpr const char* kWho = "index_loss_backward";
  auto read = check_loss(kWho, indexer, target, lists, options);
  KEYHOLE_CHECK(indexer.q.dtype != DType::e4m3,
                "index_loss_backward: q is e4m3, which has no "
                "gradients; accepted are f32, bf16, f16 and f64. Train with the numbers before "
                "they are rounded");
  check_row_tensor(kWho, dloss, "dloss", indexer);
  check_stats(kWho, stats, indexer);
  read.push_back({dloss, "dloss"});
  read.push_back({stats, "stats"});
  KEYHOLE_CHECK(gradients.dw.is_given() == indexer.w.is_given(), kWho, ": dw is ",
                gradients.dw.is_given() ? "given but w is not" : "not given but w is",
                "; pass both or none");
  std::vector<Named> written;
  const auto add = [&](const TensorView& tensor, const char* name, const TensorView& like,
                       const char* like_name, const char* expected) {
    check_tensor(kWho, tensor, name, like.rank, expected);
    check_same_device(kWho, tensor, name, indexer.q);
    check_same_dtype(kWho, tensor, name, like, like_name);
    const bool fits = std::equal(like.shape, like.shape + like.rank, tensor.shape);
    KEYHOLE_CHECK(fits, kWho, ": ", name, " has shape ", shape_text(tensor), "; expected ",
                  shape_text(like), ", the shape of ", like_name);
    check_output(kWho, tensor, name);
    written.push_back({tensor, name});
  };
  add(gradients.dq, "dq", indexer.q, "q", kFour);
  add(gradients.dk, "dk", indexer.k, "k", kFour);
  if (indexer.w.is_given()) {
    add(gradients.dw, "dw", indexer.w, "w", "[batch, index_heads, q_len]");
  }
  check_apart_from(kWho, written, read);
}

}  // namespace keyhole
