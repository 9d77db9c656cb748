// cli/plan.cpp
// keyhole plan PATTERN: what it costs; saves and loads plans, compares two patterns, and says what
// choosing among its keys would cost.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <memory>

#include "base/check.h"
#include "cli/device.h"
#include "cli/environment.h"
#include "cli/files.h"
#include "cli/normalizer_option.h"
#include "cli/selection_options.h"
#include "cli/verbs.h"
#include "pattern/node.h"
#include "pattern/smallest_shape.h"
#include "plan/compile.h"
#include "plan/plan_file.h"

namespace keyhole::cli {
namespace {

struct Options {
  std::string pattern, compare, save, load, tile = "auto", dtype;
  bool has_pattern = false;  // also when it is ""
  ShapeOptions shape;
  Environment environment;
  NormalizerOption normalizer;
  SelectionOptions selection;
  int64_t head_dim = 128;

  DType dtype_or(const char* otherwise) const {
    return dtype_from(dtype.empty() ? otherwise : dtype);
  }
};

constexpr const char* kUsualDtype = "f32";

struct Report {
  Plan plan;
  PlanReport report;
};

// What would run on the CPU.
Choice choice_of(const Plan& plan, Operation operation, const Options& options) {
  Request request =
      request_for({}, operation, options.dtype_or(kUsualDtype), options.head_dim, options.head_dim);
  request.normalizer = options.normalizer.settle("plan");
  return choice_for(request, plan);
}

Report explain(const Plan& plan, const Options& options) {
  KEYHOLE_CHECK(options.head_dim >= 1 && options.head_dim <= 65536, "plan: --head-dim is ",
                options.head_dim, "; accepted are 1 to 65536");
  const DType dtype = options.dtype_or(kUsualDtype);
  TileShape tile = tile_from(options.tile);
  if (tile.q == 0) tile = choice_of(plan, Operation::forward, options).tile;
  return {plan, plan.explain(tile, options.head_dim, bytes_of(dtype))};
}

// Where the tile is given, nothing runs: it is a question of cost.
void print_what_runs(const Plan& plan, const Options& options) {
  for (const Operation operation : {Operation::forward, Operation::backward}) {
    print("{:<9} {}\n", to_string(operation), to_string(choice_of(plan, operation, options)));
  }
}

// What entmax and top_k make of the cost of a plan: the score of every pair, then work for those
// that keep weight alone. How many they are follows from the scores.
struct SparseCost {
  std::string weights;                   // "entmax(1.5, top=8)"
  double score_flops;                    // of the forward pass
  double forward_flops, backward_flops;  // of each pair that keeps weight
  std::optional<int64_t> most_kept;      // with top_k
  int64_t support_bytes;

  SparseCost(const Report& made, const Normalizer& normalizer, int64_t head_dim)
      : weights(to_string(normalizer)),
        score_flops(double(made.report.pairs) * 2 * double(head_dim)),
        forward_flops(2 * double(head_dim)),
        backward_flops(10 * double(head_dim)) {
    const Shape& shape = made.plan.shape();
    const int64_t rows = shape.batch * shape.heads * shape.q_len;
    // Products of 64 bits: as many heads as a plan may have, of as many queries.
    if (normalizer.top_k > 0) {
      const bool is_all = double(normalizer.top_k) * double(rows) >= double(made.report.pairs);
      most_kept = is_all ? made.report.pairs : normalizer.top_k * rows;
    }
    support_bytes = rows * kSupportKeys * int64_t(sizeof(int32_t));
  }

  void print_text() const {
    print("weights   {}: the flops above are those of softmax. Here every pair costs its score,\n",
          weights);
    print("          O(pairs), {} forward; what follows is O(kept): {} forward and {}\n",
          flops_text(score_flops), flops_text(forward_flops), flops_text(backward_flops));
    print("          backward for each pair that keeps weight{}\n",
          most_kept ? fmt::format(", {} pairs at most", *most_kept) : "");
    print(
        "support   {}: the first {} keys of a query that have weight, kept for the backward "
        "pass,\n",
        bytes_text(double(support_bytes)), kSupportKeys);
    print("          which scores again only queries that have more\n");
  }
  void add_to(Json& json) const {
    json["normalizer"] = weights;
    json["score_flops"] = score_flops;
    json["flops_forward_per_kept_pair"] = forward_flops;
    json["flops_backward_per_kept_pair"] = backward_flops;
    if (most_kept) json["most_kept_pairs"] = *most_kept;
    json["support_bytes"] = support_bytes;
  }
};

void report_json(const Report& made, const Options& options) {
  const Normalizer normalizer = options.normalizer.settle("plan");
  if (normalizer.is_plain_softmax()) return write_out(made.report.json());
  Json json = Json::parse(made.report.json());
  SparseCost(made, normalizer, options.head_dim).add_to(json);
  if (tile_from(options.tile).q == 0) {
    json["forward"] = to_string(choice_of(made.plan, Operation::forward, options));
    json["backward"] = to_string(choice_of(made.plan, Operation::backward, options));
  }
  print_json(json);
}

// Pairs of a that are not in b, over all heads and batch entries.
int64_t count_only_in(const Pattern& a, const Pattern& b, const Shape& shape) {
  constexpr int64_t kBand = 64;  // queries drawn at a time
  int64_t count = 0;
  for (int64_t head = 0; head < shape.batch * shape.heads; ++head) {
    const NodePtr first = a.for_head(shape, head / shape.heads, head % shape.heads).node();
    const NodePtr second = b.for_head(shape, head / shape.heads, head % shape.heads).node();
    for (int64_t query = 0; query < shape.q_len; query += kBand) {
      const int64_t end = std::min(query + kBand, shape.q_len);
      const Rect rect{{query + shape.q_offset(), end + shape.q_offset()}, {0, shape.k_len}};
      BitRows in_first(int32_t(end - query), int32_t(shape.k_len)), in_second = in_first;
      first->draw(rect, in_first);
      second->draw(rect, in_second);
      for (size_t i = 0; i < in_first.data().size(); ++i) {
        count += std::popcount(in_first.data()[i] & ~in_second.data()[i]);
      }
    }
  }
  return count;
}

int64_t total(const PlanReport& report, int64_t PartReport::* field) {
  int64_t sum = 0;
  for (const PartReport& part : report.parts) sum += part.*field;
  return sum;
}

int compare(const Options& options, const Context& context) {
  const Pattern a = pattern_from("plan", options.pattern);
  const Pattern b = pattern_from("plan", options.compare);
  // Heads and batch entries must suit both.
  const Shape of_b = smallest_shape(b, 0, 0);
  Shape shape = options.shape.shape("plan", a, kMaxPlanLength);
  if (!options.shape.heads) shape.heads = std::max(shape.heads, of_b.heads);
  if (!options.shape.batch) shape.batch = std::max(shape.batch, of_b.batch);
  const PlanReport first = explain(plan(a, shape), options).report;
  const PlanReport second = explain(plan(b, shape), options).report;
  constexpr int64_t kLongestCounted = 4096;
  const bool is_counted = std::max(shape.q_len, shape.k_len) <= kLongestCounted;
  const int64_t only_first = is_counted ? count_only_in(a, b, shape) : 0;
  const int64_t only_second = is_counted ? count_only_in(b, a, shape) : 0;
  if (context.json) {
    Json json = {{"a", Json::parse(first.json())}, {"b", Json::parse(second.json())}};
    if (is_counted) json["only_in_a"] = only_first, json["only_in_b"] = only_second;
    print_json(json);
    return kDone;
  }
  Table table({"", "A", "B"});
  const auto add = [&](const char* name, auto&& value) {
    table.add({name, value(first), value(second)});
  };
  add("pattern", [](const PlanReport& r) { return r.pattern; });
  add("pairs", [](const PlanReport& r) {
    return fmt::format("{} ({})", r.pairs,
                       percent(r.all_pairs ? double(r.pairs) / double(r.all_pairs) : 0));
  });
  add("tile", [](const PlanReport& r) { return to_string(r.tile); });
  add("tiles", [](const PlanReport& r) {
    return fmt::format("{}: {} full, {} partial", total(r, &PartReport::tiles),
                       total(r, &PartReport::full_tiles), total(r, &PartReport::partial_tiles));
  });
  add("gathered keys", [](const PlanReport& r) { return say(total(r, &PartReport::keys)); });
  add("waste", [](const PlanReport& r) { return percent(r.waste); });
  add("forward", [](const PlanReport& r) { return flops_text(r.flops_forward); });
  add("bytes moved", [](const PlanReport& r) { return bytes_text(r.bytes_moved); });
  add("plan", [](const PlanReport& r) { return bytes_text(double(r.plan_bytes)); });
  add("speed-up", [](const PlanReport& r) { return r.speedup_text(); });
  if (is_counted) table.add({"only here", say(only_first, " pairs"), say(only_second, " pairs")});
  write_out(table.text());
  if (!is_counted)
    print("pairs of only one of them are counted up to {} tokens\n", kLongestCounted);
  return kDone;
}

int explain_select(const Options& options, const Context& context) {
  const auto refuse = [](const char* option, bool is_given) {
    KEYHOLE_CHECK(!is_given, "plan: --select goes with a pattern, a shape and dtypes; leave ",
                  option, " out");
  };
  refuse("--load", !options.load.empty());
  refuse("--save", !options.save.empty());
  refuse("--compare", !options.compare.empty());
  refuse("--tile", tile_from(options.tile).q != 0);
  refuse("--alpha and --top-k", !options.normalizer.settle("plan").is_plain_softmax());
  const Pattern pattern = pattern_from("plan", options.pattern);
  Shape shape = options.shape.shape("plan", pattern, kMaxPlanLength);
  // The attention has --heads; a selection has a list for each of its groups.
  shape.heads = options.selection.groups();
  if (!pattern.depends_on_heads(shape.q_len, shape.k_len)) shape.batch = shape.heads = 1;
  const SelectionReport report =
      options.selection.report("plan", plan(pattern, shape), options.shape.batch,
                               options.shape.heads, options.head_dim, options.dtype_or("bf16"));
  write_out(context.json ? report.json() : report.text());
  return kDone;
}

int plan_verb(const Options& options, const Context& context) {
  if (options.selection.is_given("plan")) return explain_select(options, context);
  KEYHOLE_CHECK(options.load.empty() || !options.has_pattern,
                "plan: a pattern and --load were both given; a plan file already has its pattern, "
                "so leave one out");
  KEYHOLE_CHECK(options.load.empty() || !options.shape.is_given(),
                "plan: --load and a length were both given; a plan file already has its lengths, "
                "so leave one out");
  const bool is_to_stdout = check_outputs({{"--save", options.save}}, {}, context);
  if (!options.compare.empty()) {
    KEYHOLE_CHECK(options.load.empty() && options.save.empty(),
                  "plan: --compare takes two patterns, without --load and --save");
    return compare(options, context);
  }
  Pattern pattern = dense();
  if (options.load.empty()) pattern = pattern_from("plan", options.pattern);
  const Plan made = options.load.empty()
                        ? plan(pattern, options.shape.shape("plan", pattern, kMaxPlanLength))
                        : Plan::load(options.load);
  const Report report = explain(made, options);
  options.environment.log("{} compiled in {:.2f} ms with tile {}", made.pattern_text(),
                          report.report.compile_ms, to_string(report.report.tile));
  if (options.environment.verifies) made.verify();
  if (!options.save.empty()) {
    // The lists that the kernels will ask for, whatever tile was explained.
    made.explain(choice_of(made, Operation::forward, options).tile, options.head_dim,
                 bytes_of(options.dtype_or(kUsualDtype)));
    const std::vector<std::byte> bytes = plan_file_bytes(made);
    write_file(options.save, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    if (is_to_stdout) return kDone;
  }
  if (context.json) {
    report_json(report, options);
  } else {
    const Normalizer normalizer = options.normalizer.settle("plan");
    write_out(report.report.text());
    if (tile_from(options.tile).q == 0) print_what_runs(made, options);
    if (!normalizer.is_plain_softmax())
      SparseCost(report, normalizer, options.head_dim).print_text();
    if (!options.save.empty()) print("saved     {}\n", options.save);
  }
  return kDone;
}

}  // namespace

Runner add_plan(CLI::App& app, Context& context) {
  auto options = std::make_shared<Options>();
  const CLI::Option* pattern =
      app.add_option("pattern", options->pattern, "what attends to what")->type_name("");
  options->shape.add_to(app);
  app.add_option("--tile", options->tile,
                 "queries x keys, such as 128x128; default: what the kernel takes")
      ->type_name("QxK");
  add_integer(app, "--head-dim", options->head_dim, "for FLOPs and bytes; default: 128");
  app.add_option("--dtype", options->dtype,
                 "f16, bf16, f32 or f64; default: f32, with --select bf16")
      ->type_name("DTYPE");
  options->normalizer.add_to(app);
  app.add_option("--save", options->save, "write the plan; - for stdout")->type_name("FILE");
  app.add_option("--load", options->load, "read a plan instead of making one")->type_name("FILE");
  app.add_option("--compare", options->compare, "a second pattern, side by side")
      ->type_name("PATTERN");
  options->environment.add_to(app, /*runs_kernels=*/false);
  add_json_option(app, context);
  options->selection.add_to(app);
  app.footer(
      "examples:\n"
      "  keyhole plan \"causal & window(256)\" --len 1024 --tile 128x128\n"
      "  keyhole plan \"streaming(16, 64)\" --len 4096 --heads 8 --save streaming.plan\n"
      "  keyhole plan --load streaming.plan\n"
      "  keyhole plan causal --len 8192 --head-dim 64 --alpha 1.5 --top-k 8\n"
      "  keyhole plan \"causal & window(256)\" --compare \"strided(64)\" --len 2048\n"
      "  keyhole plan causal --len 131072 --select 2048 --heads 32 --kv-heads 8");
  return [options, pattern, &context] {
    options->has_pattern = !pattern->empty();
    options->environment.settle();
    return plan_verb(*options, context);
  };
}

}  // namespace keyhole::cli
