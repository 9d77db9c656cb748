// cli/bench/select.cpp
// Key selection: the scores of an indexer, the best of them, and both together; then a layer's
// attention over the chosen keys beside its dense attention. Some rows are checked against the
// definitions before anything is timed.
#include "keyhole/select.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "cli/bench/index_loss.h"
#include "cli/bench/select_step.h"
#include "cli/bench/session.h"
#include "judge/judge.h"
#include "reference/select.h"
#include "runtime/registry.h"
#include "runtime/select_registry.h"
#include "select/requests.h"

namespace keyhole::bench {
namespace {

// What a selection is for: attention over the chosen keys, in latent form (DeepSeek: all query
// heads share one head of 576 columns, the first 512 of which are the values), beside dense causal
// attention of the same layer in its other form (192 columns a head, 128 of values).
class LatentLayer {
 public:
  // chosen: where the lists are, for kernels and on the host.
  LatentLayer(const Session& session, const SelectSizes& sizes, const IndexView& chosen,
              const IndexView& chosen_on_host);

  // The attentions, and the gradients.
  SelectStep over_chosen();
  SelectStep gradients_over_chosen();  // after a run of over_chosen()
  SelectStep dense();
  // What an indexer learns from, after a run of over_chosen().
  IndexLoss::Target target() const;

 private:
  struct Attention : Tensors {
    TensorView values, values_on_host;  // the first columns of k, or a tensor of their own
    Pattern attends = keyhole::dense();
    double pairs = 0;  // of a head
  };
  Pattern chosen_pattern() const;
  judge::Answer answer(const Attention& attention, int64_t head) const;
  SelectStep form_of(const Attention& attention, const Lists& lists) const;

  AttentionOptions options_;
  SelectSizes sizes_;
  IndexView chosen_, on_host_;
  Attention latent_, per_head_;  // latent_ has gradients, too
  Plan causal_;
};

constexpr int64_t kLatentColumns = 576, kLatentValues = 512;
constexpr int64_t kColumns = 192, kValues = 128;

// The name of a kernel alone, without its tiles.
std::string name_of(const std::string& kernel) { return kernel.substr(0, kernel.find(',')); }

const KernelEntry& kernel_named(const std::string& name) {
  const auto found = std::ranges::find(kernel_table(), name, &KernelEntry::name);
  if (found != kernel_table().end()) return *found;
  throw Error(ErrorKind::internal, "bench: no kernel is called " + name);
}

// Of the first head and of the last.
std::vector<int64_t> checked_heads(const SelectSizes& sizes) { return {0, sizes.q_heads - 1}; }
std::vector<int64_t> checked_rows(const SelectSizes& sizes) {
  return judge::rows_to_check(sizes.queries, 0, /*count=*/2, /*seed=*/1);
}

LatentLayer::LatentLayer(const Session& session, const SelectSizes& sizes, const IndexView& chosen,
                         const IndexView& chosen_on_host)
    : sizes_(sizes),
      chosen_(chosen),
      on_host_(chosen_on_host),
      causal_(plan(causal(), sizes.queries, sizes.entries)) {
  options_.threads = session.threads();
  const auto tensor = [&](int64_t heads, int64_t length, int64_t columns) {
    const DType dtype = session.is_on_gpu() ? DType::bf16 : DType::f32;
    return Tensor(dtype, {1, heads, length, columns}, session.device());
  };
  const auto attention = [&](int64_t columns, int64_t values) {
    Attention made;
    made.q = tensor(sizes.q_heads, sizes.queries, columns);
    made.k = tensor(1, sizes.entries, columns);
    made.out = tensor(sizes.q_heads, sizes.queries, values);
    made.lse = Tensor(DType::f32, {1, sizes.q_heads, sizes.queries}, session.device());
    made.q.fill_normal(4), made.k.fill_normal(5);
    made.out.fill_nan(), made.lse.fill_nan();
    return made;
  };
  latent_ = attention(kLatentColumns, kLatentValues);
  latent_.values = part_of(latent_.k.view(), 3, 0, kLatentValues);
  latent_.values_on_host = part_of(latent_.k.host(), 3, 0, kLatentValues);
  latent_.attends = chosen_pattern();
  const auto* const lists = static_cast<const int32_t*>(on_host_.data);
  const int64_t all = sizes.queries * sizes.k;
  latent_.pairs = double(all - std::count(lists, lists + all, -1));
  latent_.dout = tensor(sizes.q_heads, sizes.queries, kLatentValues);
  latent_.dq = tensor(sizes.q_heads, sizes.queries, kLatentColumns);
  latent_.dk = tensor(1, sizes.entries, kLatentColumns);
  latent_.dv = tensor(1, sizes.entries, kLatentValues);
  latent_.dout.fill_normal(7);

  per_head_ = attention(kColumns, kValues);
  per_head_.v = tensor(1, sizes.entries, kValues);
  per_head_.v.fill_normal(6);
  per_head_.values = per_head_.v.view(), per_head_.values_on_host = per_head_.v.host();
  per_head_.attends = causal(), per_head_.pairs = double(causal_.explain().pairs);
}

Pattern LatentLayer::chosen_pattern() const {
  const auto* const lists = static_cast<const int32_t*>(on_host_.data);
  const int64_t count = sizes_.k, offset = sizes_.entries - sizes_.queries;
  return lambda([lists, count, offset](int64_t query, int64_t key) {
    const int32_t* const list = lists + (query - offset) * count;  // ascending, then padding
    const auto less = [](int32_t a, int32_t b) { return uint32_t(a) < uint32_t(b); };  // -1 is last
    return std::binary_search(list, list + count, int32_t(key), less);
  });
}

judge::Answer LatentLayer::answer(const Attention& attention, int64_t head) const {
  judge::CallTensors tensors = attention.host();
  tensors.v = attention.values_on_host;
  for (TensorView* view : {&tensors.q, &tensors.dout, &tensors.out, &tensors.lse, &tensors.dq}) {
    if (view->is_given()) *view = part_of(*view, 1, head, 1);
  }
  return {tensors, attention.attends, options_};
}

SelectStep LatentLayer::over_chosen() { return form_of(latent_, chosen_); }

// Keys and values that all heads share are a favour to this form: a layer reads them for each head.
SelectStep LatentLayer::dense() { return form_of(per_head_, causal_); }

SelectStep LatentLayer::form_of(const Attention& attention, const Lists& lists) const {
  const Attention* const these = &attention;  // lives as long as this layer
  const std::string kernel =
      name_of(kernel_for_forward(attention.q, attention.values, lists, options_));
  const int64_t columns = attention.q.view().shape[3] + attention.values.shape[3];
  const auto run = [=, this] {
    attention_forward(these->q, these->k, these->values, lists, these->out, these->lse, options_);
  };
  const auto check = [=, this] {
    these->out.bring_back(), these->lse.bring_back();
    judge::Finding worst = judge::judge_written("out", these->out.host(), options_.threads);
    for (const int64_t head : checked_heads(sizes_)) {
      worst.take(
          judge::judge_forward(kernel_named(kernel), answer(*these, head), checked_rows(sizes_)));
    }
    return worst.complaint;
  };
  return {kernel, 2 * attention.pairs * double(sizes_.q_heads * columns), run, check};
}

// Five products of each pair: q . k, dout . v, and those of dq, dk and dv.
SelectStep LatentLayer::gradients_over_chosen() {
  const Lists lists = chosen_;
  const std::string kernel =
      name_of(kernel_for_backward(latent_.q, latent_.values, lists, options_));
  const auto run = [=, this] {
    attention_backward(latent_.dout, latent_.q, latent_.k, latent_.values, latent_.out, latent_.lse,
                       lists, {latent_.dq, latent_.dk, latent_.dv, {}}, options_);
  };
  const auto check = [=, this] {
    judge::Finding worst;
    for (const int64_t head : checked_heads(sizes_)) {
      latent_.dout.keep_rows(checked_rows(sizes_), head);  // then it alone adds to dk and dv
      for (Tensor* gradient : {&latent_.dq, &latent_.dk, &latent_.dv}) gradient->fill_nan();
      run();
      for (Tensor* gradient : {&latent_.dq, &latent_.dk, &latent_.dv}) gradient->bring_back();
      worst.take(judge::judge_written("dq", latent_.dq.host(), options_.threads));
      worst.take(
          judge::judge_backward(kernel_named(kernel), answer(latent_, head), checked_rows(sizes_)));
      latent_.dout.fill_normal(7);
    }
    return worst.complaint;
  };
  const int64_t columns = 3 * kLatentColumns + 2 * kLatentValues;
  return {kernel, 2 * latent_.pairs * double(sizes_.q_heads * columns), run, check};
}

IndexLoss::Target LatentLayer::target() const {
  latent_.lse.bring_back();
  return {.attention = {latent_.q, latent_.k, latent_.lse},
          .on_host = {latent_.q.host(), latent_.k.host(), latent_.lse.host()},
          .lists = chosen_,
          .lists_on_host = on_host_,
          .pairs = latent_.pairs};
}

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
    measure("index_scores",
            {name_of(request_of(SelectOperation::scores, indexer(), 0, options_.backend)), products,
             [&] { index_scores(indexer(), scores_, options_); }, [&] { return check_scores(); }});
    measure("top_k",
            {name_of(request_of(scores_.view(), options_)), bytes,
             [&] { top_k(scores_, selection_, options_); }, [&] { return check_lists(false); }},
            "B/s");
    const double selecting =
        measure("select_keys", {kernel_for_selection(indexer(), options_), products,
                                [&] { select_keys(indexer(), selection_, options_); },
                                [&] { return check_lists(true); }});
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
    const double chosen = measure("attention, chosen keys", layer.over_chosen());
    measure("its gradients", layer.gradients_over_chosen());
    IndexLoss learned(session_, sizes_, layer.target());
    measure("index_loss", learned.loss());
    measure("gradients of index_loss", learned.gradients());
    const double dense = measure("attention, dense", layer.dense());
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
  double measure(const std::string& name, const SelectStep& step, const char* unit = "FLOP/s") {
    step.run();
    if (const std::string wrong = step.check(); !wrong.empty()) {
      session_.fail("is wrong", {.name = name, .pattern_text = visible_text()}, wrong);
      return 0;
    }
    const Timing timing = time_call(step.run, session_.effort().timing);
    table_.add({name, step.kernel, "ok", ms_text(timing.median_ms),
                session_.is_on_gpu()
                    ? fmt::format("{:.2f} T{}", step.work / timing.median_ms / 1e9, unit)
                    : fmt::format("{:.1f} G{}", step.work / timing.median_ms / 1e6, unit)});
    session_.keep("select", {{"case", name},
                             {"kernel", step.kernel},
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
