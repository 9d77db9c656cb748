// cli/show.cpp
// keyhole show PATTERN: the pattern as a picture, in text, SVG, PNG or a web page. With --alpha or
// --top-k also which of its pairs keep weight, measured on normal numbers; with --chosen those that
// a selection chose.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>

#include "base/check.h"
#include "base/npy.h"
#include "base/random.h"
#include "cli/command_line.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/pixels.h"
#include "keyhole/attention.h"
#include "render/html.h"
#include "render/svg.h"
#include "render/text.h"

namespace keyhole::cli {
namespace {

// What a selection chose.
struct ChosenLists {
  std::string path;
  int64_t batch, groups, q_len, k;
  std::vector<int64_t> keys;  // [batch, groups, q_len, k], -1: padding
};

template <class Integer>
std::vector<int64_t> integers_of(const NpyArray& array) {
  std::vector<Integer> numbers(array.data.size() / sizeof(Integer));
  if (!numbers.empty()) std::memcpy(numbers.data(), array.data.data(), array.data.size());
  return {numbers.begin(), numbers.end()};
}

// From a .npy file, as np.save writes keyhole.select_keys' result: int32 or int64, of shape
// [batch, groups, q_len, k] or [q_len, k].
ChosenLists read_chosen(const std::string& path) {
  const NpyArray array = read_npy(path);
  const std::vector<int64_t>& shape = array.shape;
  KEYHOLE_CHECK(array.dtype == "<i4" || array.dtype == "<i8", "--chosen holds ", array.dtype,
                "; accepted are <i4 and <i8, as keyhole.select_keys gives them");
  KEYHOLE_CHECK(shape.size() == 2 || shape.size() == 4, "--chosen has ", shape.size(),
                " dimensions; accepted are 2 [q_len, k] and 4 [batch, groups, q_len, k]");
  const bool has_groups = shape.size() == 4;
  ChosenLists chosen{
      .path = path,
      .batch = has_groups ? shape[0] : 1,
      .groups = has_groups ? shape[1] : 1,
      .q_len = shape[shape.size() - 2],
      .k = shape.back(),
      .keys = array.dtype == "<i4" ? integers_of<int32_t>(array) : integers_of<int64_t>(array)};
  KEYHOLE_CHECK(chosen.batch > 0 && chosen.groups > 0, "--chosen has batch ", chosen.batch,
                " and groups ", chosen.groups, "; both must be at least 1");
  return chosen;
}

// The lengths, batch entries and heads of these lists, with the keys of the options. Throws
// Error(usage) when the options say something else.
Shape shape_of_chosen(const ChosenLists& chosen, ShapeOptions options, const Pattern& pattern) {
  const std::optional<int64_t> q_len = options.k_len && options.len ? options.len : options.q_len;
  KEYHOLE_CHECK(!q_len || *q_len == chosen.q_len, "show: --chosen has the lists of ", chosen.q_len,
                " queries, but the options say ", q_len.value_or(0),
                "; leave --q-len out, and say with --k-len how many keys there are");
  options.q_len = chosen.q_len;
  if (!options.k_len) options.k_len = options.len.value_or(chosen.q_len);
  options.len.reset();
  const bool gives_heads = options.heads.has_value(), gives_batch = options.batch.has_value();
  Shape shape = options.shape("show", pattern);
  if (!gives_heads) shape.heads = std::max(shape.heads, chosen.groups);
  if (!gives_batch) shape.batch = std::max(shape.batch, chosen.batch);
  KEYHOLE_CHECK(shape.heads % chosen.groups == 0, "show: --chosen has ", chosen.groups,
                " groups for ", shape.heads, " heads; heads are divided evenly among groups");
  KEYHOLE_CHECK(shape.batch == chosen.batch, "show: --chosen has ", chosen.batch,
                " batch entries, and there are ", shape.batch, "; the numbers must be equal");
  return shape;
}

// The pairs of one head, which has the lists of its group. Throws Error(usage) for a key that does
// not exist, is listed twice, or is not visible.
KeptPairs chosen_pairs(const ChosenLists& chosen, const Pattern& visible, const Shape& shape,
                       int64_t batch, int64_t head) {
  const HeadPattern pattern = visible.for_head(shape, batch, head);
  const int64_t group = head / (shape.heads / chosen.groups);
  KeptPairs pairs{
      say("at most ", chosen.k, chosen.k == 1 ? " key" : " keys"), chosen.path, {}, KeptAs::chosen};
  for (int64_t query = 0; query < chosen.q_len; ++query) {
    const auto list =
        chosen.keys.begin() + ((batch * chosen.groups + group) * chosen.q_len + query) * chosen.k;
    std::vector<int32_t>& keys = pairs.keys.emplace_back();
    for (int64_t i = 0; i < chosen.k; ++i) {
      const int64_t key = list[i];
      if (key == -1) continue;
      KEYHOLE_CHECK(key >= 0 && key < shape.k_len, "--chosen: query ", query, " has key ", key,
                    "; accepted are 0 to ", shape.k_len - 1,
                    " and -1 for padding; --k-len says how many keys there are");
      KEYHOLE_CHECK(pattern.allows(query, key), "--chosen: query ", query, " has key ", key,
                    ", which is not visible in \"", visible.text(),
                    "\"; pass the pattern that it was chosen from");
      keys.push_back(int32_t(key));
    }
    std::ranges::sort(keys);
    const auto twice = std::ranges::adjacent_find(keys);
    KEYHOLE_CHECK(twice == keys.end(), "--chosen: query ", query, " has key ", *twice,
                  " twice; a selection chooses a key once");
  }
  return pairs;
}

struct ShowOptions {
  std::string pattern, svg, png, html, chosen;
  ShapeOptions shape;
  int64_t head = 0, at_batch = 0;
  NormalizerOption normalizer;
  std::optional<int64_t> seed, head_dim;

  // The files to write, with the option that names each.
  std::vector<NamedPath> outputs() const {
    return {{"--svg", svg}, {"--png", png}, {"--html", html}};
  }
};

// Which pairs keep weight: attention on normally distributed q and k is computed, one head of one
// batch entry, in fp32. Values that are rows of a unit matrix turn the result into the weights,
// some keys at a time. Nothing for softmax, where all do.
std::optional<KeptPairs> weighted_pairs(const ShowOptions& options, const Pattern& pattern,
                                        const Shape& shape) {
  const Normalizer normalizer = options.normalizer.settle("show");
  const int64_t head_dim = options.head_dim.value_or(64), seed = options.seed.value_or(1);
  if (normalizer.is_plain_softmax()) {
    KEYHOLE_CHECK(!options.seed && !options.head_dim, "show: --",
                  options.seed ? "seed" : "head-dim",
                  " goes with --alpha or --top-k, which draw what keeps weight");
    return {};
  }
  constexpr int64_t kLongestMeasured = 8192;  // a few seconds
  KEYHOLE_CHECK(std::max(shape.q_len, shape.k_len) <= kLongestMeasured, "show: lengths ",
                shape.q_len, " and ", shape.k_len,
                ": the weight of every pair is computed; accepted are up to ", kLongestMeasured);
  check_range("show: --head-dim", head_dim, 1, 576);
  constexpr int64_t kMostKeys = 512;  // at a time: the width of a value
  const int64_t q_len = shape.q_len, k_len = shape.k_len;
  const Pattern of_head(pattern.for_head(shape, options.at_batch, options.head).node());
  const Plan made = plan(of_head, {.q_len = q_len, .k_len = k_len, .offset = shape.q_offset()});
  Random random{uint64_t(seed)};
  const auto normals = [&](int64_t count) {
    std::vector<float> numbers(static_cast<size_t>(count));
    for (float& number : numbers) {
      const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
      number = float(radius * std::cos(2 * std::numbers::pi * random.uniform()));
    }
    return numbers;
  };
  const std::vector<float> q = normals(q_len * head_dim), k = normals(k_len * head_dim);
  const TensorView q_view(q.data(), DType::f32, {1, 1, q_len, head_dim});
  const TensorView k_view(k.data(), DType::f32, {1, 1, k_len, head_dim});
  AttentionOptions attention;
  attention.normalizer = normalizer;
  attention.backend = "cpu";

  KeptPairs kept{to_string(normalizer), say("normal q and k, head_dim ", head_dim, ", seed ", seed),
                 std::vector<std::vector<int32_t>>(static_cast<size_t>(q_len))};
  for (int64_t first = 0; first < k_len; first += kMostKeys) {
    const int64_t count = std::min(kMostKeys, k_len - first);
    std::vector<float> v(size_t(k_len * count)), weights(size_t(q_len * count));
    for (int64_t i = 0; i < count; ++i) v[size_t((first + i) * count + i)] = 1;
    attention_forward(q_view, k_view, {v.data(), DType::f32, {1, 1, k_len, count}}, made,
                      {weights.data(), DType::f32, {1, 1, q_len, count}}, {}, attention);
    for (int64_t query = 0; query < q_len; ++query) {
      for (int64_t i = 0; i < count; ++i) {
        if (weights[size_t(query * count + i)] > 0)
          kept.keys[size_t(query)].push_back(int32_t(first + i));
      }
    }
  }
  return kept;
}

// The cost of the plan, for the web page.
std::string explain_for_page(const Pattern& pattern, const Shape& shape) {
  const Plan made = plan(pattern, shape);
  const TileShape tile =
      choice_for(request_for({}, Operation::forward, DType::f32, 128, 128), made).tile;
  return say("tile      ", to_string(tile), ", queries x keys\n", made.explain(tile).text());
}

Json picture_json(const Picture& picture, const Shape& shape,
                  const std::optional<ChosenLists>& chosen) {
  const double all = picture.all_pairs();
  Json json = {
      {"pattern", picture.pattern}, {"q_len", shape.q_len},
      {"k_len", shape.k_len},       {"offset", shape.q_offset()},
      {"head", picture.head},       {"batch", picture.batch},
      {"pairs", picture.pairs},     {"pairs_are_estimated", picture.is_estimate},
      {"all_pairs", all},           {"share", all > 0 ? double(picture.pairs) / all : 0.0}};
  if (chosen) {
    json["chosen"] = chosen->path, json["k"] = chosen->k;
    json["chosen_pairs"] = picture.kept_pairs;
  } else if (picture.has_kept()) {
    json["weights"] = picture.weights, json["of"] = picture.numbers;
    json["kept_pairs"] = picture.kept_pairs;
  }
  json["cell"] = picture.cell, json["rows"] = picture_rows(picture);
  return json;
}

int show(const ShowOptions& options, const Context& context) {
  const Pattern pattern = pattern_from("show", options.pattern);
  std::optional<ChosenLists> chosen;
  if (!options.chosen.empty()) {
    KEYHOLE_CHECK(options.normalizer.settle("show").is_plain_softmax(),
                  "show: --chosen goes without --alpha and --top-k: one picture is of what was "
                  "chosen, the other of what keeps weight");
    chosen = read_chosen(options.chosen);
  }
  const Shape shape = chosen ? shape_of_chosen(*chosen, options.shape, pattern)
                             : options.shape.shape("show", pattern);
  const bool is_to_stdout =
      check_outputs(options.outputs(), {{"--chosen", options.chosen}}, context);
  if (!options.png.empty()) refuse_png();
  check_range("--at-batch", options.at_batch, 0, shape.batch - 1);
  check_range("--head", options.head, 0, shape.heads - 1);
  std::optional<KeptPairs> kept = weighted_pairs(options, pattern, shape);
  if (chosen) kept = chosen_pairs(*chosen, pattern, shape, options.at_batch, options.head);
  // The pattern at any size, with what keeps weight or was chosen where that is asked for.
  const auto drawn = [&](int64_t most_cells) {
    Picture picture = look(pattern, shape, options.at_batch, options.head, most_cells);
    if (kept) add_kept(picture, *kept);
    return picture;
  };
  const Picture picture = drawn(kTextCells);
  if (!options.svg.empty()) write_file(options.svg, picture_svg(drawn(kSvgCells)));
  if (!options.png.empty()) write_file(options.png, picture_png(drawn(kPngCells)));
  if (!options.html.empty()) {
    write_file(options.html,
               picture_html(pattern, drawn(html_cells(shape)), explain_for_page(pattern, shape)));
  }
  if (is_to_stdout) return kDone;

  std::vector<std::string> files;
  for (const NamedPath& file : options.outputs()) {
    if (!file.path.empty()) files.push_back(file.path);
  }
  if (context.json) {
    Json json = picture_json(picture, shape, chosen);
    json["files"] = files;
    print_json(json);
  } else if (files.empty()) {
    write_out(coloured_text(picture));
  } else {
    cli::print("{}\nwrote {}\n", headline(picture), fmt::join(files, "\nwrote "));
  }
  return kDone;
}

}  // namespace

Runner add_show(CLI::App& app, Context& context) {
  auto options = std::make_shared<ShowOptions>();
  add(app, {{"pattern", &options->pattern, "what attends to what"}});
  options->shape.add_to(app);
  add(app,
      {{"--head N", &options->head, "which head to draw, from 0"},
       {"--at-batch N", &options->at_batch, "which batch entry to draw, from 0"},
       {"--svg FILE", &options->svg, "write an SVG picture; - for stdout, as everywhere"},
       {"--png FILE", &options->png, "write a PNG picture"},
       {"--html FILE", &options->html,
        "write a web page with zoom; shows why a pair attends, tiles and cost"},
       {"--chosen FILE", &options->chosen,
        "what a selection chose: the result of keyhole.select_keys as a .npy file; the pattern is "
        "what was visible"}});
  options->normalizer.add_to(app);
  add(app, {{"--head-dim N", &options->head_dim,
             "with --alpha or --top-k: of the random q and k that give the weights; default: 64"},
            {"--seed N", &options->seed, "for drawing q and k; default: 1"},
            json_option(context)});
  app.footer(
      "examples:\n"
      "  keyhole show \"causal & (window(2) | sinks(1))\" --len 6\n"
      "  keyhole show \"bigbird(8, 3, 2, 1, 7)\" --len 128 --html bigbird.html\n"
      "  keyhole show \"per_head(causal, window(4))\" --len 16 --head 1\n"
      "  keyhole show causal --q-len 4 --k-len 12       queries at the last 4 of 12 positions\n"
      "  keyhole show causal --len 8 --svg - | gzip > causal.svgz\n"
      "  keyhole show causal --len 256 --alpha 1.5 --png splash.png     which keys keep weight\n"
      "  keyhole show causal --chosen chosen.npy --head 1               which keys were chosen");
  return [options, &context] { return show(*options, context); };
}

}  // namespace keyhole::cli
