// cli/show.cpp
// keyhole show PATTERN: the pattern as a picture, in text, SVG, PNG or a web page. With --alpha or
// --top-k also which of its pairs keep weight, measured on normal numbers; with --chosen those that
// a selection chose.
#include <CLI/CLI.hpp>
#include <memory>

#include "base/check.h"
#include "cli/chosen_pairs.h"
#include "cli/device.h"
#include "cli/files.h"
#include "cli/measured_support.h"
#include "cli/normalizer_option.h"
#include "cli/png.h"
#include "cli/verbs.h"
#include "render/html.h"
#include "render/svg.h"
#include "render/text.h"

namespace keyhole::cli {
namespace {

struct Options {
  std::string pattern, svg, png, html, chosen;
  ShapeOptions shape;
  int64_t head = 0, at_batch = 0;
  NormalizerOption normalizer;
  std::optional<int64_t> seed, head_dim;
};

// Draws the pattern at any size, with what keeps weight or was chosen where that is asked for.
using Draw = std::function<Picture(int64_t most_cells)>;

std::optional<KeptPairs> weighted_pairs(const Options& options, const Pattern& pattern,
                                        const Shape& shape) {
  const Normalizer normalizer = options.normalizer.settle("show");
  const int64_t head_dim = options.head_dim.value_or(64);
  if (normalizer.is_plain_softmax()) {
    KEYHOLE_CHECK(!options.seed && !options.head_dim, "show: --",
                  options.seed ? "seed" : "head-dim",
                  " goes with --alpha or --top-k, which draw what keeps weight");
    return {};
  }
  KEYHOLE_CHECK(std::max(shape.q_len, shape.k_len) <= kLongestMeasured, "show: lengths ",
                shape.q_len, " and ", shape.k_len,
                ": the weight of every pair is computed; accepted are up to ", kLongestMeasured);
  KEYHOLE_CHECK(head_dim >= 1 && head_dim <= 576, "show: --head-dim is ", head_dim,
                "; accepted are 1 to 576");
  return measured_support(pattern, shape, options.at_batch, options.head, normalizer, head_dim,
                          options.seed.value_or(1));
}

Draw pictures_of(const Options& options, const Pattern& pattern, const Shape& shape,
                 const std::optional<ChosenLists>& chosen) {
  std::optional<KeptPairs> kept = weighted_pairs(options, pattern, shape);
  if (chosen) kept = chosen_pairs(*chosen, pattern, shape, options.at_batch, options.head);
  return [=, &options](int64_t most_cells) {
    Picture picture = look(pattern, shape, options.at_batch, options.head, most_cells);
    if (kept) add_kept(picture, *kept);
    return picture;
  };
}

void write_pictures(const Options& options, const Pattern& pattern, const Shape& shape,
                    const Draw& picture) {
  if (!options.svg.empty()) write_file(options.svg, picture_svg(picture(kSvgCells)));
  if (!options.png.empty()) write_file(options.png, picture_png(picture(kPngCells)));
  if (!options.html.empty()) {
    const Plan made = plan(pattern, shape);
    const TileShape tile =
        choice_for(request_for({}, Operation::forward, DType::f32, 128, 128), made).tile;
    const std::string explain =
        say("tile      ", to_string(tile), ", queries x keys\n", made.explain(tile).text());
    write_file(options.html, picture_html(pattern, picture(html_cells(shape)), explain));
  }
}

int show(const Options& options, const Context& context) {
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
      check_outputs({{"--svg", options.svg}, {"--png", options.png}, {"--html", options.html}},
                    {{"--chosen", options.chosen}}, context);
  if (!options.png.empty()) refuse_png();
  KEYHOLE_CHECK(options.at_batch >= 0 && options.at_batch < shape.batch, "--at-batch is ",
                options.at_batch, "; accepted are 0 to ", shape.batch - 1);
  KEYHOLE_CHECK(options.head >= 0 && options.head < shape.heads, "--head is ", options.head,
                "; accepted are 0 to ", shape.heads - 1);
  const Draw draw = pictures_of(options, pattern, shape, chosen);
  const Picture picture = draw(kTextCells);
  write_pictures(options, pattern, shape, draw);
  if (is_to_stdout) return kDone;

  std::vector<std::string> files;
  for (const std::string& file : {options.svg, options.png, options.html}) {
    if (!file.empty()) files.push_back(file);
  }
  if (context.json) {
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
    json["cell"] = picture.cell, json["rows"] = picture_rows(picture), json["files"] = files;
    print_json(json);
    return kDone;
  }
  if (files.empty()) {
    write_out(coloured_text(picture));
  } else {
    print("{}\n", headline(picture));
    for (const std::string& file : files) print("wrote {}\n", file);
  }
  return kDone;
}

}  // namespace

Runner add_show(CLI::App& app, Context& context) {
  auto options = std::make_shared<Options>();
  app.add_option("pattern", options->pattern, "what attends to what")->type_name("");
  options->shape.add_to(app);
  add_integer(app, "--head", options->head, "which head to draw, from 0");
  add_integer(app, "--at-batch", options->at_batch, "which batch entry to draw, from 0");
  app.add_option("--svg", options->svg, "write an SVG picture; - for stdout, as everywhere")
      ->type_name("FILE");
  app.add_option("--png", options->png, "write a PNG picture")->type_name("FILE");
  app.add_option("--html", options->html,
                 "write a web page with zoom; shows why a pair attends, tiles and cost")
      ->type_name("FILE");
  app.add_option("--chosen", options->chosen,
                 "what a selection chose: the result of keyhole.select_keys as a .npy file; the "
                 "pattern is what was visible")
      ->type_name("FILE");
  options->normalizer.add_to(app);
  add_integer(app, "--head-dim", options->head_dim,
              "with --alpha or --top-k: of the random q and k that give the weights; default: 64");
  add_integer(app, "--seed", options->seed, "for drawing q and k; default: 1");
  add_json_option(app, context);
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
