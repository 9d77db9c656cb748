// src/select/selection.cpp
#include "select/selection.h"

#include <algorithm>

#include "base/check.h"
#include "base/int_math.h"
#include "runtime/call_site.h"
#include "select/plan_views.h"
#include "select/query_ranges.h"
#include "select/requests.h"

namespace keyhole {
namespace {

// No call has more scratch memory at a time than this, however long it is.
constexpr int64_t kMostBytes = int64_t{512} << 20;

// A tensor of scores [batch, groups, q_len, entries], in no memory yet.
TensorView scores_like(const IndexerView& indexer, int64_t q_len) {
  const DType dtype = indexer.q.dtype == DType::f64 ? DType::f64 : DType::f32;
  TensorView scores(nullptr, dtype,
                    {indexer.q.shape[0], indexer.k.shape[1], q_len, indexer.k.shape[2]});
  scores.device = indexer.q.device;
  return scores;
}

// The rows of `queries`.
TensorView rows_of(const TensorView& scores, QueryRange queries) {
  TensorView rows = scores;
  rows.shape[2] = queries.count;
  if (rows.data != nullptr) {
    rows.data = static_cast<std::byte*>(rows.data) +
                queries.first * scores.strides[2] * bytes_of(scores.dtype);
  }
  return rows;
}

ScoreArgs score_args(const IndexerView& indexer, const TensorView& scores, QueryRange queries,
                     const std::optional<PlanView>& visible, const SelectOptions& options,
                     const Launch& launch) {
  ScoreArgs args;
  args.q = indexer.q;
  args.k = indexer.k;
  args.w = indexer.w;
  args.k_scale = indexer.k_scale;
  args.scores = scores;
  args.queries = queries;
  args.visible = pointer_to(visible);
  args.threads = options.threads;
  args.launch = launch;
  return args;
}

struct SelectPlans {
  std::optional<PlanView> visible, always;
};
SelectPlans follow_plans(CallSite& site, const SelectOptions& options, const SelectKernel& kernel,
                         const TensorView& scores) {
  return {follow(site, options.visible, kernel, scores),
          follow(site, options.always, kernel, scores)};
}

TopKArgs top_k_args(const TensorView& scores, QueryRange queries, const Selection& selection,
                    const SelectPlans& plans, const SelectOptions& options, const Launch& launch) {
  TopKArgs args;
  const IndexView &indices = selection.indices, &counts = selection.counts;
  args.scores = scores;
  args.queries = queries;
  args.k = options.k;
  args.indices = static_cast<int32_t*>(const_cast<void*>(indices.data));
  args.columns = indices.shape[3];
  args.batch_stride = indices.strides[0];
  args.group_stride = indices.strides[1];
  args.row_stride = indices.strides[2];
  if (counts.is_given()) {
    args.counts = static_cast<int32_t*>(const_cast<void*>(counts.data));
    args.counts_batch_stride = counts.strides[0];
    args.counts_group_stride = counts.strides[1];
    args.counts_row_stride = counts.strides[2];
  }
  args.visible = pointer_to(plans.visible);
  args.always = pointer_to(plans.always);
  args.threads = options.threads;
  args.launch = launch;
  return args;
}

int64_t workspace_of(const SelectKernel& kernel, const ScoreArgs& args) {
  return kernel.scores_workspace != nullptr ? kernel.scores_workspace(args) : 0;
}
int64_t workspace_of(const SelectKernel& kernel, const TopKArgs& args) {
  return kernel.top_k_workspace != nullptr ? kernel.top_k_workspace(args) : 0;
}
int64_t workspace_of(const SelectKernel& kernel, const ScoreArgs& args, const TopKArgs& choice) {
  return kernel.select_workspace != nullptr ? kernel.select_workspace(args, choice) : 0;
}

// Calls run(args) for all queries, so many at a time. args_of makes the arguments of a range.
template <class ArgsOf, class Run>
void in_ranges(CallSite& site, const SelectKernel& kernel, int64_t q_len, ArgsOf args_of, Run run) {
  const auto bytes_of = [&](int64_t count) { return workspace_of(kernel, args_of({0, count})); };
  const int64_t at_a_time = queries_at_a_time(q_len, kMostBytes, bytes_of);
  const int64_t bytes = bytes_of(at_a_time);
  site.with_scratch(bytes, [&](void* memory) {
    for_each_range(q_len, at_a_time, [&](QueryRange queries) {
      auto args = args_of(queries);
      args.launch.workspace = memory, args.launch.workspace_bytes = bytes;
      run(args);
    });
  });
}

}  // namespace

void run_index_scores(const SelectKernel& kernel, const IndexerView& indexer,
                      const TensorView& scores, const SelectOptions& options) {
  const auto site = call_site(scores.device, options.threads, options.stream, options.allocate);
  const auto visible = follow(*site, options.visible, kernel, scores);
  const Launch launch = site->launch();
  const auto args_of = [&](QueryRange queries) {
    return score_args(indexer, rows_of(scores, queries), queries, visible, options, launch);
  };
  in_ranges(*site, kernel, scores.shape[2], args_of, kernel.scores);
}

void run_top_k(const SelectKernel& kernel, const TensorView& scores, const Selection& selection,
               const SelectOptions& options) {
  const auto site = call_site(scores.device, options.threads, options.stream, options.allocate);
  const SelectPlans plans = follow_plans(*site, options, kernel, scores);
  const Launch launch = site->launch();
  const auto args_of = [&](QueryRange queries) {
    return top_k_args(rows_of(scores, queries), queries, selection, plans, options, launch);
  };
  in_ranges(*site, kernel, scores.shape[2], args_of, kernel.top_k);
}

void run_select_keys(const SelectKernel& kernel, const IndexerView& indexer,
                     const Selection& selection, const SelectOptions& options) {
  const TensorView scores = scores_like(indexer, indexer.q.shape[2]);
  const QueryRange all = {0, scores.shape[2]};
  const auto site = call_site(scores.device, options.threads, options.stream, options.allocate);
  const SelectPlans plans = follow_plans(*site, options, kernel, scores);
  const Launch launch = site->launch();
  ScoreArgs args = score_args(indexer, scores, all, plans.visible, options, launch);
  TopKArgs choice = top_k_args(scores, all, selection, plans, options, launch);
  choice.takes_short_rows = true;
  const int64_t bytes = workspace_of(kernel, args, choice);
  site->with_scratch(bytes, [&](void* memory) {
    args.launch.workspace = memory, args.launch.workspace_bytes = bytes;
    kernel.select(args, choice);
  });
}

void run_index_scores(const IndexerView& indexer, const TensorView& scores,
                      const SelectOptions& options) {
  const SelectRequest request = request_of(SelectOperation::scores, indexer, 0, options.backend);
  run_index_scores(choose_select(select_table(), request), indexer, scores, options);
}

void run_top_k(const TensorView& scores, const Selection& selection, const SelectOptions& options) {
  run_top_k(choose_select(select_table(), request_of(scores, options)), scores, selection, options);
}

namespace {

// The kernel that does both steps at once; null: there is none.
const SelectKernel* kernel_of_both(const IndexerView& indexer, const SelectOptions& options) {
  return find_select(select_table(),
                     request_of(SelectOperation::select, indexer, options.k, options.backend));
}

// Both steps, some queries at a time: their scores, and what the kernels of both need.
class TwoSteps {
 public:
  TwoSteps(const IndexerView& indexer, const SelectOptions& options, int64_t most_bytes)
      : indexer_(indexer),
        options_(options),
        all_(scores_like(indexer, indexer.q.shape[2])),
        scores_(choose_select(select_table(), request_of(SelectOperation::scores, indexer,
                                                         options.k, options.backend))),
        top_k_(choose_select(select_table(), request_of(all_, options))) {
    // Sizes depend on whether there are plans, not on their lists.
    if (options.visible) scored_.emplace(), plans_.visible.emplace();
    if (options.always) plans_.always.emplace();
    queries_ = queries_at_a_time(all_.shape[2], most_bytes, [&](int64_t count) {
      return score_bytes(count) + other_bytes(count);
    });
  }

  std::string describe() const {
    return say(scores_.name, " and ", top_k_.name, ", ", queries_, " queries at a time");
  }

  void run(const Selection& selection) {
    const auto site = call_site(all_.device, options_.threads, options_.stream, options_.allocate);
    scored_ = follow(*site, options_.visible, scores_, all_);
    plans_ = follow_plans(*site, options_, top_k_, all_);
    const int64_t before = score_bytes(queries_), others = other_bytes(queries_);
    site->with_scratch(before + others, [&](void* memory) {
      Launch launch = site->launch();
      launch.workspace = static_cast<std::byte*>(memory) + before;
      launch.workspace_bytes = others;
      for_each_range(all_.shape[2], queries_, [&](QueryRange queries) {
        TensorView scores = scores_like(indexer_, queries.count);
        scores.data = memory;
        scores_.scores(score(scores, queries, launch));
        top_k_.top_k(choice(scores, queries, selection, launch));
      });
    });
  }

 private:
  ScoreArgs score(const TensorView& scores, QueryRange queries, const Launch& launch) const {
    ScoreArgs args = score_args(indexer_, scores, queries, scored_, options_, launch);
    args.only_visible = true;
    return args;
  }
  TopKArgs choice(const TensorView& scores, QueryRange queries, const Selection& selection,
                  const Launch& launch) const {
    TopKArgs args = top_k_args(scores, queries, selection, plans_, options_, launch);
    args.takes_short_rows = true;
    return args;
  }
  int64_t score_bytes(int64_t count) const {
    const TensorView scores = scores_like(indexer_, count);
    const int64_t bytes =
        checked_mul(scores.num_elements(), bytes_of(scores.dtype), "select_keys: scores");
    return round_up(bytes, 256);
  }
  // The kernels run one after the other, in the same memory.
  int64_t other_bytes(int64_t count) const {
    const TensorView scores = scores_like(indexer_, count);
    return std::max(workspace_of(scores_, score(scores, {0, count}, {})),
                    workspace_of(top_k_, choice(scores, {0, count}, {}, {})));
  }

  const IndexerView& indexer_;
  const SelectOptions& options_;
  const TensorView all_;
  const SelectKernel &scores_, &top_k_;
  std::optional<PlanView> scored_;
  SelectPlans plans_;
  int64_t queries_ = 1;
};

}  // namespace

void run_select_keys_in_two_steps(const IndexerView& indexer, const Selection& selection,
                                  const SelectOptions& options, int64_t most_bytes) {
  TwoSteps(indexer, options, most_bytes).run(selection);
}

void run_select_keys(const IndexerView& indexer, const Selection& selection,
                     const SelectOptions& options) {
  if (const SelectKernel* kernel = kernel_of_both(indexer, options)) {
    run_select_keys(*kernel, indexer, selection, options);
  } else {
    run_select_keys_in_two_steps(indexer, selection, options, kMostBytes);
  }
}

std::string describe_selection(const IndexerView& indexer, const SelectOptions& options) {
  if (const SelectKernel* kernel = kernel_of_both(indexer, options)) return kernel->name;
  return TwoSteps(indexer, options, kMostBytes).describe();
}

}  // namespace keyhole
