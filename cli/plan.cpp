// cli/plan.cpp
// keyhole plan PATTERN: what it costs; saves and loads plans, compares two patterns, and says what
// choosing among its keys would cost.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <memory>

#include "base/check.h"
#include "cli/command_line.h"
#include "cli/files.h"
#include "cli/options.h"
#include "keyhole/selection_cost.h"
#include "pattern/node.h"
#include "pattern/smallest_shape.h"
#include "plan/compile.h"
#include "plan/plan_file.h"

namespace keyhole::cli {
namespace {

// --select and what goes with it: the attention and the indexer of a selection.
constexpr const char* kSelectionGroup = "options of a selection";
struct SelectionOptions {
  std::optional<int64_t> k, kv_heads, v_head_dim;
  std::string index_dtype = "e4m3";
  SelectionCall call;  // the rest, with its defaults

  DType dtype() const {
    for (const DType dtype : {DType::e4m3, DType::bf16, DType::f16}) {
      if (index_dtype == to_string(dtype)) return dtype;
    }
    throw Error(ErrorKind::usage, say("plan: --index-dtype is \"", index_dtype,
                                      "\"; accepted are e4m3, bf16 and f16"));
  }
};

struct PlanOptions {
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
  DType usual_dtype() const { return dtype_or("f32"); }
};

// What would run on the CPU.
Choice choice_of(const Plan& plan, Operation operation, const PlanOptions& options) {
  Request request =
      request_for({}, operation, options.usual_dtype(), options.head_dim, options.head_dim);
  request.normalizer = options.normalizer.settle("plan");
  return choice_for(request, plan);
}

PlanReport explain(const Plan& plan, const PlanOptions& options) {
  check_range("plan: --head-dim", options.head_dim, 1, 65536);
  const DType dtype = options.usual_dtype();
  TileShape tile = tile_from(options.tile);
  if (tile.q == 0) tile = choice_of(plan, Operation::forward, options).tile;
  return plan.explain(tile, options.head_dim, bytes_of(dtype));
}

// What entmax and top_k make of the cost of a plan: the score of every pair, then work for those
// that keep weight alone. How many they are follows from the scores.
Json sparse_cost(const PlanReport& report, const Normalizer& normalizer, int64_t head_dim) {
  const int64_t rows = report.shape.batch * report.shape.heads * report.shape.q_len;
  Json cost = {{"normalizer", to_string(normalizer)},
               {"score_flops", double(report.pairs) * 2 * double(head_dim)},  // forward
               {"flops_forward_per_kept_pair", 2 * double(head_dim)},
               {"flops_backward_per_kept_pair", 10 * double(head_dim)}};
  // Products of 64 bits: as many heads as a plan may have, of as many queries.
  if (normalizer.top_k > 0) {
    const bool is_all = double(normalizer.top_k) * double(rows) >= double(report.pairs);
    cost["most_kept_pairs"] = is_all ? report.pairs : normalizer.top_k * rows;
  }
  cost["support_bytes"] = rows * kSupportKeys * int64_t(sizeof(int32_t));
  return cost;
}

void print_sparse_cost(const Json& cost) {
  print("weights   {}: the flops above are those of softmax. Here every pair costs its score,\n",
        cost["normalizer"].get<std::string>());
  print("          O(pairs), {} forward; what follows is O(kept): {} forward and {}\n",
        flops_text(cost["score_flops"]), flops_text(cost["flops_forward_per_kept_pair"]),
        flops_text(cost["flops_backward_per_kept_pair"]));
  print("          backward for each pair that keeps weight{}\n",
        cost.contains("most_kept_pairs")
            ? fmt::format(", {} pairs at most", cost["most_kept_pairs"].get<int64_t>())
            : "");
  print(
      "support   {}: the first {} keys of a query that have weight, kept for the backward pass,\n",
      bytes_text(cost["support_bytes"]), kSupportKeys);
  print("          which scores again only queries that have more\n");
}

// Where the tile is given, nothing runs: it is a question of cost.
void print_report(const Plan& plan, const PlanReport& report, const PlanOptions& options,
                  const Context& context) {
  const Normalizer normalizer = options.normalizer.settle("plan");
  const bool is_sparse = !normalizer.is_plain_softmax();
  if (context.json && !is_sparse) return write_out(report.json());
  const Json cost = sparse_cost(report, normalizer, options.head_dim);
  std::vector<std::pair<std::string, std::string>> runs;
  if (tile_from(options.tile).q == 0) {
    for (const Operation operation : {Operation::forward, Operation::backward}) {
      runs.push_back({to_string(operation), to_string(choice_of(plan, operation, options))});
    }
  }
  if (context.json) {
    Json json = Json::parse(report.json());
    json.update(cost);
    for (const auto& [operation, choice] : runs) json[operation] = choice;
    return print_json(json);
  }
  write_out(report.text());
  for (const auto& [operation, choice] : runs) cli::print("{:<9} {}\n", operation, choice);
  if (is_sparse) print_sparse_cost(cost);
  if (!options.save.empty()) print("saved     {}\n", options.save);
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

int compare(const PlanOptions& options, const Context& context) {
  const Pattern a = pattern_from("plan", options.pattern);
  const Pattern b = pattern_from("plan", options.compare);
  // Heads and batch entries must suit both.
  const Shape of_b = smallest_shape(b, 0, 0);
  Shape shape = options.shape.shape("plan", a, kMaxPlanLength);
  if (!options.shape.heads) shape.heads = std::max(shape.heads, of_b.heads);
  if (!options.shape.batch) shape.batch = std::max(shape.batch, of_b.batch);
  const PlanReport first = explain(plan(a, shape), options);
  const PlanReport second = explain(plan(b, shape), options);
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

// What choosing among the keys of the pattern would cost.
int explain_select(const PlanOptions& options, const Context& context) {
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
  const SelectionOptions& given = options.selection;
  SelectionCall call = given.call;
  shape.heads = call.groups;
  if (!pattern.depends_on_heads(shape.q_len, shape.k_len)) shape.batch = shape.heads = 1;
  call.visible = plan(pattern, shape);
  KEYHOLE_CHECK(options.shape.heads,
                "plan: --select needs the query heads of the attention; pass --heads N, and "
                "--kv-heads N where several share a key");
  call.batch = options.shape.batch.value_or(shape.batch);
  call.q_len = shape.q_len, call.k_len = shape.k_len, call.k = *given.k;
  call.q_heads = *options.shape.heads;
  call.kv_heads = given.kv_heads.value_or(call.latent_dim > 0 ? 1 : call.q_heads);
  call.head_dim = options.head_dim, call.v_head_dim = given.v_head_dim.value_or(options.head_dim);
  call.dtype = options.dtype_or("bf16"), call.index_dtype = given.dtype();
  const SelectionReport report = explain_selection(call);
  write_out(context.json ? report.json() : report.text());
  return kDone;
}

int plan_verb(const PlanOptions& options, const Context& context) {
  if (options.selection.k) return explain_select(options, context);
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
  const PlanReport report = explain(made, options);
  options.environment.log("{} compiled in {:.2f} ms with tile {}", made.pattern_text(),
                          report.compile_ms, to_string(report.tile));
  if (options.environment.verifies) made.verify();
  if (!options.save.empty()) {
    // The lists that the kernels will ask for, whatever tile was explained.
    made.explain(choice_of(made, Operation::forward, options).tile, options.head_dim,
                 bytes_of(options.usual_dtype()));
    const std::vector<std::byte> bytes = plan_file_bytes(made);
    write_file(options.save, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  if (!is_to_stdout) print_report(made, report, options, context);
  return kDone;
}

}  // namespace

Runner add_plan(CLI::App& app, Context& context) {
  auto options = std::make_shared<PlanOptions>();
  add(app, {{"pattern", &options->pattern, "what attends to what"}});
  options->shape.add_to(app);
  add(app, {{"--tile QxK", &options->tile,
             "queries x keys, such as 128x128; default: what the kernel takes"},
            {"--head-dim N", &options->head_dim, "for FLOPs and bytes; default: 128"},
            {"--dtype DTYPE", &options->dtype,
             "f16, bf16, f32 or f64; default: f32, with --select bf16"}});
  options->normalizer.add_to(app);
  add(app, {{"--save FILE", &options->save, "write the plan; - for stdout"},
            {"--load FILE", &options->load, "read a plan instead of making one"},
            {"--compare PATTERN", &options->compare, "a second pattern, side by side"}});
  options->environment.add_to(app, /*runs_kernels=*/false);
  add(app, {json_option(context)});
  SelectionOptions& select = options->selection;
  add(app,
      {{"--select K", &select.k, "what it costs to choose K of these keys for every query"},
       {"--kv-heads N", &select.kv_heads, "default: as many as --heads; latent heads: 1"},
       {"--v-head-dim N", &select.v_head_dim, "default: that of --head-dim"},
       {"--latent-dim N", &select.call.latent_dim, "of latent heads, such as 512"},
       {"--rope-head-dim N", &select.call.rope_head_dim, "of latent heads; default: 64"},
       {"--index-heads N", &select.call.index_heads,
        "of the indexer; 0: lists come from elsewhere; default: 64"},
       {"--index-dim N", &select.call.index_dim, "head_dim of the indexer; default: 128"},
       {"--groups N", &select.call.groups, "lists of a query, as kv heads share them; default: 1"},
       {"--shared-by N", &select.call.shared_by,
        "layers that use the lists of one indexer; default: 1"},
       {"--index-dtype DTYPE", &select.index_dtype, "e4m3, bf16 or f16; default: e4m3"}},
      kSelectionGroup);
  app.footer(
      "examples:\n"
      "  keyhole plan \"causal & window(256)\" --len 1024 --tile 128x128\n"
      "  keyhole plan \"streaming(16, 64)\" --len 4096 --heads 8 --save streaming.plan\n"
      "  keyhole plan --load streaming.plan\n"
      "  keyhole plan causal --len 8192 --head-dim 64 --alpha 1.5 --top-k 8\n"
      "  keyhole plan \"causal & window(256)\" --compare \"strided(64)\" --len 2048\n"
      "  keyhole plan causal --len 131072 --select 2048 --heads 32 --kv-heads 8");
  return [options, &app, &context] {
    options->has_pattern = !app.get_option("pattern")->empty();
    for (const CLI::Option* option : app.get_options()) {
      KEYHOLE_CHECK(
          options->selection.k || option->get_group() != kSelectionGroup || option->empty(),
          "plan: ", option->get_name(),
          " is for a selection; pass --select K too, or leave it out");
    }
    options->environment.settle();
    return plan_verb(*options, context);
  };
}

}  // namespace keyhole::cli
