// cli/bench/select.cpp
// Key selection: the scores of an indexer, the best of them, and both together; then a layer's
// attention over the chosen keys beside its dense attention. Some rows are checked against the
// definitions before anything is timed.
#include "keyhole/select.h"

#include <fmt/format.h>

#include <cmath>

#include "base/check.h"
#include "cli/bench/latent_layer.h"
#include "cli/bench/tables.h"
#include "reference/select.h"
#include "runtime/select_registry.h"
#include "select/requests.h"

namespace keyhole::bench {
namespace {

constexpr int64_t kCheckedRows = 4, kCheckedEntries = 512;

class SelectBench {
 public:
  SelectBench(Session& session, const SelectSizes& sizes, const std::optional<Pattern>& visible)
      : session_(session),
        sizes_(sizes),
        visible_(visible),
        q_(sizes.dtype, {1, sizes.heads, sizes.queries, sizes.head_dim}, session.device()),
        k_(sizes.dtype, {1, 1, sizes.entries, sizes.head_dim}, session.device()),
        w_(DType::f32, {1, sizes.heads, sizes.queries}, session.device()),
        scores_(DType::f32, {1, 1, sizes.queries, sizes.entries}, session.device()),
        lists_(DType::f32, {1, 1, sizes.queries, sizes.k}, session.device()) {
    q_.fill_normal(1), k_.fill_normal(2), w_.fill_normal(3);
    options_.k = sizes.k;
    options_.backend = session.options().backend;
    options_.threads = session.threads();
    if (visible) options_.visible = plan(*visible, sizes.queries, sizes.entries);
    selection_.indices =
        IndexView(static_cast<int32_t*>(lists_.view().data), {1, 1, sizes.queries, sizes.k});
    selection_.indices.device = session.device();
  }

  void run() {
    const double products = 2 * pairs() * double(sizes_.heads * sizes_.head_dim);
    const double bytes = 4 * pairs();
    const auto name_of = [&](const SelectRequest& request) {
      return choose_select(select_table(), request).name;
    };
    measure(
        "index_scores",
        name_of(request_of(SelectOperation::scores, indexer(), 0, options_.backend)), products,
        "TFLOP/s", [&] { index_scores(indexer(), scores_, options_); },
        [&] { return check_scores(); });
    measure(
        "top_k", name_of(request_of(scores_.view(), options_)), bytes, "TB/s",
        [&] { top_k(scores_, selection_, options_); }, [&] { return check_lists(false); });
    const double selecting = measure(
        "select_keys", kernel_for_selection(indexer(), options_), products, "TFLOP/s",
        [&] { select_keys(indexer(), selection_, options_); }, [&] { return check_lists(true); });
    const std::string verdict = sizes_.q_heads > 0 ? attend(selecting) : "";
    session_.print(fmt::format(
        "\nselect: {}, {} queries of {} entries ({} visible), {} index heads of {}, k {}\n",
        session_.conditions(sizes_.dtype), sizes_.queries, sizes_.entries, visible_text(),
        sizes_.heads, sizes_.head_dim, sizes_.k));
    session_.print(table_);
    session_.print(verdict);
  }

 private:
  // Times both attentions of the layer; the sentence that compares them.
  std::string attend(double selecting_ms) {
    IndexView on_host = selection_.indices;
    on_host.data = lists_.host().data;
    on_host.device = {};
    LatentLayer layer(session_, sizes_, selection_.indices, on_host);
    const auto ms_of = [&](const std::string& name, const LatentLayer::Form& form) {
      return measure(name, form.kernel, form.work, "TFLOP/s", form.run, form.check);
    };
    const double chosen = ms_of("attention, chosen keys", layer.over_chosen());
    ms_of("its gradients", layer.gradients_over_chosen());
    const double dense = ms_of("attention, dense", layer.dense());
    if (selecting_ms == 0 || chosen == 0 || dense == 0) return "";
    const double both = selecting_ms + chosen, ratio = dense / both;
    return fmt::format(
        "a layer of {} heads: selection and attention {} ms, dense causal attention {} ms: {}\n",
        sizes_.q_heads, ms_text(both), ms_text(dense),
        ratio >= 1 ? fmt::format("choosing is {:.2f} times as fast", ratio)
                   : fmt::format("dense is {:.2f} times as fast", 1 / ratio));
  }

  IndexerView indexer() const { return {q_, k_, w_, {}}; }
  double pairs() const {
    const double all = double(sizes_.queries) * double(sizes_.entries);
    return options_.visible ? double(options_.visible->explain().pairs) : all;
  }
  std::string visible_text() const { return visible_ ? visible_->text() : "all"; }
  int64_t checked_row(int64_t i) const { return (2 * i + 1) * sizes_.queries / (2 * kCheckedRows); }
  EntryPredicate visible_from(int64_t row) const {
    if (!visible_) return {};
    const Shape shape{.batch = 1, .heads = 1, .q_len = sizes_.queries, .k_len = sizes_.entries};
    return [head = visible_->for_head(shape), row](int64_t, int64_t, int64_t, int64_t s) {
      return head.allows(row, s);
    };
  }

  // Empty, or what is wrong.
  std::string check_scores() {
    scores_.bring_back();
    const int64_t entries = std::min(kCheckedEntries, sizes_.entries);
    for (int64_t i = 0; i < kCheckedRows; ++i) {
      const int64_t row = checked_row(i);
      const auto want = reference_index_scores({part_of(q_.host(), 2, row, 1),
                                                part_of(k_.host(), 2, 0, entries),
                                                part_of(w_.host(), 2, row, 1),
                                                {}},
                                               visible_from(row));
      const auto* got = static_cast<const float*>(part_of(scores_.host(), 2, row, 1).data);
      // Terms are about as large as head_dim ** 0.5, and heads ** 0.5 of them remain.
      const double allowed = 1e-3 * std::sqrt(double(sizes_.head_dim * sizes_.heads));
      for (int64_t s = 0; s < entries; ++s) {
        const bool is_equal = double(got[s]) == want[size_t(s)];
        if (!is_equal && !(std::abs(double(got[s]) - want[size_t(s)]) <= allowed)) {
          return fmt::format("query {}, entry {}: {} instead of {}", row, s, got[s],
                             want[size_t(s)]);
        }
      }
    }
    return "";
  }
  std::string check_lists(bool takes_short_rows) {
    lists_.bring_back();
    for (int64_t i = 0; i < kCheckedRows; ++i) {
      const int64_t row = checked_row(i);
      auto want = reference_top_k(part_of(scores_.host(), 2, row, 1), sizes_.k, visible_from(row),
                                  {}, takes_short_rows)
                      .rows[0];
      want.resize(size_t(sizes_.k), -1);
      const auto* got = static_cast<const int32_t*>(part_of(lists_.host(), 2, row, 1).data);
      if (!std::equal(want.begin(), want.end(), got)) {
        return fmt::format("query {}: its list is not that of its best scores", row);
      }
    }
    return "";
  }

  // The median, or 0 if the result is wrong: then it is not timed.
  double measure(const std::string& name, const std::string& kernel, double work, const char* unit,
                 const std::function<void()>& call, const std::function<std::string()>& check) {
    call();
    if (const std::string wrong = check(); !wrong.empty()) {
      session_.fail("is wrong", {.name = name, .pattern_text = visible_text()}, wrong);
      return 0;
    }
    const Timing timing = time_call(call, session_.effort().timing);
    const double rate = work / timing.median_ms / 1e9;
    table_.add(
        {name, kernel, "ok", ms_text(timing.median_ms), fmt::format("{:.2f} {}", rate, unit)});
    session_.keep("select", {{"case", name},
                             {"kernel", kernel},
                             {"check", "ok"},
                             {"dtype", to_string(sizes_.dtype)},
                             {"queries", sizes_.queries},
                             {"entries", sizes_.entries},
                             {"index_heads", sizes_.heads},
                             {"head_dim", sizes_.head_dim},
                             {"k", sizes_.k},
                             {"visible", visible_text()},
                             {"q_heads", sizes_.q_heads},
                             {"ms", to_json(timing)}});
    return timing.median_ms;
  }

  Session& session_;
  SelectSizes sizes_;
  std::optional<Pattern> visible_;     // not given: all
  Tensor q_, k_, w_, scores_, lists_;  // lists_: int32, which are as large as f32
  SelectOptions options_;
  Selection selection_;
  cli::Table table_{{"step", "kernel", "check", "median ms", "rate"}, "lllrr"};
};

}  // namespace

// On a GPU what DeepSeek's models choose.
void bench_select(Session& session) {
  const Options& options = session.options();
  const bool is_on_gpu = session.is_on_gpu();
  const auto size = [&](const std::optional<int64_t>& given, const char* option, int64_t on_gpu,
                        int64_t on_cpu) {
    return positive(given, option, is_on_gpu ? on_gpu : on_cpu);
  };
  SelectSizes sizes{.queries = size(options.queries, "--queries", 4096, 256),
                    .entries = size(options.entries, "--entries", 131072, 8192),
                    .heads = size(options.heads, "--heads", 64, 16),
                    .head_dim = size(options.head_dim, "--head-dim", 128, 64),
                    .k = size(options.best, "--top-k", 2048, 512),
                    .q_heads = options.q_heads.value_or(is_on_gpu ? 128 : 16),
                    .dtype = is_on_gpu ? DType::e4m3 : DType::f32};
  if (!options.index_dtype.empty()) {
    sizes.dtype = cli::index_dtype_from(options.index_dtype);
    KEYHOLE_CHECK(sizes.dtype != DType::f64,
                  "bench: --dtype is f64; accepted are e4m3, f16, bf16 and f32");
  }
  KEYHOLE_CHECK(sizes.q_heads >= 0, "bench: --q-heads is ", sizes.q_heads,
                "; accepted are 1 and more, or 0 to time the selection alone");
  KEYHOLE_CHECK(
      sizes.q_heads == 0 || sizes.queries <= sizes.entries, "bench: --queries ", sizes.queries,
      " exceeds --entries ", sizes.entries,
      "; the attention over the chosen keys is causal, at the end of the text: pass fewer "
      "queries, or --q-heads 0");
  std::optional<Pattern> visible;
  if (!options.pattern.empty()) visible = cli::pattern_from("bench", options.pattern);
  SelectBench(session, sizes, visible).run();
}

}  // namespace keyhole::bench
