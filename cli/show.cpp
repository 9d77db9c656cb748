// cli/show.cpp
// keyhole show PATTERN: the pattern as a picture, in text, SVG, PNG or a web page. With --alpha or
// --top-k also which of its pairs keep weight, measured on normal numbers; with --chosen those that
// a selection chose.
#include <CLI/CLI.hpp>
#include <memory>

#include "base/check.h"
#include "cli/command_line.h"
#include "cli/files.h"
#include "cli/kept_pairs.h"
#include "cli/options.h"
#include "cli/pixels.h"
#include "render/html.h"
#include "render/svg.h"
#include "render/text.h"

namespace keyhole::cli {
namespace {

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

std::optional<KeptPairs> weighted_pairs(const ShowOptions& options, const Pattern& pattern,
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
  check_range("show: --head-dim", head_dim, 1, 576);
  return measured_support(pattern, shape, options.at_batch, options.head, normalizer, head_dim,
                          options.seed.value_or(1));
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
