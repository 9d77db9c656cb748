// src/render/html.cpp
// Puts the page together: markup, and DATA with the bitmap of the pairs and the expression tree.
#include "render/html.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "base/int_math.h"
#include "keyhole/version.h"
#include "pattern/node.h"
#include "render/svg.h"

namespace keyhole {
namespace {

using Json = nlohmann::ordered_json;  // keys keep the order in which they are written

constexpr int64_t kMostCells = 2048;

// The leaves whose definition the page evaluates itself (LEAVES in page_script.cpp); of all others
// it gets a bitmap. As a leaf, bigbird has no random and no global blocks.
constexpr std::array kDefinedInPage = {"dense",
                                       "causal",
                                       "window",
                                       "sinks",
                                       "blocks",
                                       "bigbird",
                                       "prefix",
                                       "global",
                                       "tree",
                                       "dilated",
                                       "strided",
                                       "fixed",
                                       "exponential",
                                       "grid",
                                       "global_at",
                                       "documents",
                                       "neighborhood",
                                       "volume",
                                       "volume_neighborhood"};

class BitPacker {
 public:
  void add(bool bit) {
    if (count_ % 8 == 0) bytes_.push_back(0);
    bytes_.back() |= uint8_t(uint8_t{bit} << (count_ % 8));
    ++count_;
  }
  std::string base64() const {
    static constexpr char kDigits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (size_t i = 0; i < bytes_.size(); i += 3) {
      uint32_t three = 0;
      for (size_t j = 0; j < 3; ++j)
        three = three << 8 | (i + j < bytes_.size() ? bytes_[i + j] : 0u);
      for (size_t j = 0; j < 4; ++j) {
        text += i + j <= bytes_.size() ? kDigits[three >> (18 - 6 * j) & 63] : '=';
      }
    }
    return text;
  }

 private:
  std::vector<uint8_t> bytes_;
  int64_t count_ = 0;
};

// Where queries and keys stand: as usual, or as an `at` around this node says.
struct Places {
  std::vector<Position> q, k;
};

// "7, inf, -1" to numbers and names of infinity; nothing when there is anything else.
std::optional<Json> read_arguments(std::string_view text) {
  Json arguments = Json::array();
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view word = text.substr(0, comma);
    while (word.starts_with(' ')) word.remove_prefix(1);
    int64_t number = 0;
    const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (failure == std::errc{} && end == word.data() + word.size()) {
      arguments.push_back(number);
    } else if (word == "inf" || word == "-inf") {
      arguments.push_back(std::string(word));
    } else {
      return {};
    }
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return arguments;
}

// The positions in "q=[0, 1, 2]" when there are exactly `length` of them.
std::optional<std::vector<Position>> read_positions(const std::string& text, const char* name,
                                                    int64_t length) {
  const std::string opening = say(name, "=[");
  const size_t begin = text.find(opening), end = text.find(']', begin);
  if (begin == std::string::npos || end == std::string::npos) return {};
  const size_t first = begin + opening.size();
  const std::optional<Json> numbers =
      read_arguments(std::string_view(text).substr(first, end - first));
  if (!numbers || int64_t(numbers->size()) != length) return {};
  return numbers->get<std::vector<Position>>();
}

class TreeWriter {
 public:
  explicit TreeWriter(const Picture& picture) : picture_(picture) {}

  Json write(const Node& node, const Places& places) const {
    Json json = {{"kind", "leaf"}, {"text", node.text()}};
    switch (node.kind()) {
      case Node::Kind::conjunction:
        json["kind"] = "and";
        break;
      case Node::Kind::disjunction:
        json["kind"] = "or";
        break;
      case Node::Kind::negation:
        json["kind"] = "not";
        break;
      case Node::Kind::named:
        json["kind"] = "same";
        break;
      case Node::Kind::at:
        return write_at(node, json, places);
      default:
        return write_leaf(node, json, places);
    }
    for (const NodePtr& child : node.children()) json["children"].push_back(write(*child, places));
    // A name around arrays says more than the array's size and hash.
    if (json["kind"] == "same" && json["children"][0].contains("bits")) {
      json["children"][0]["text"] = json["text"];
      return json["children"][0];
    }
    return json;
  }

 private:
  Json write_leaf(const Node& node, Json json, const Places& places) const {
    const std::string text = node.text();
    const size_t open = std::min(text.find('('), text.size());
    const std::string name = text.substr(0, open);
    std::optional<Json> arguments = Json::array();
    if (open < text.size())
      arguments = read_arguments(std::string_view(text).substr(open + 1, text.size() - open - 2));
    if (arguments &&
        std::find(kDefinedInPage.begin(), kDefinedInPage.end(), name) != kDefinedInPage.end()) {
      json["name"] = name, json["args"] = *arguments;
    } else if (picture_.cell == 1) {
      BitPacker bits;
      for (const Position q : places.q) {
        for (const Position k : places.k) bits.add(node.allows(q, k));
      }
      json["bits"] = bits.base64();
    }
    return json;
  }

  // Children of `at` are asked about other positions; where those are not in the text, `at` is
  // looked up.
  Json write_at(const Node& node, Json json, const Places& places) const {
    const auto q = read_positions(json["text"], "q", picture_.shape.q_len);
    const auto k = read_positions(json["text"], "k", picture_.shape.k_len);
    if (!q || !k || picture_.cell > 1) return write_leaf(node, json, places);
    json["kind"] = "at", json["q"] = *q, json["k"] = *k;
    json["children"].push_back(write(*node.children()[0], {*q, *k}));
    return json;
  }

  const Picture& picture_;
};

Json page_data(const Pattern& pattern, const Picture& picture) {
  const Shape& shape = picture.shape;
  BitPacker any, all;
  for (const uint8_t share : picture.share) {
    any.add(share != Picture::kAbsent), all.add(share == Picture::kFull);
  }
  Places places;
  if (picture.cell == 1) {
    for (int64_t i = 0; i < shape.q_len; ++i) places.q.push_back(i + shape.q_offset());
    for (int64_t j = 0; j < shape.k_len; ++j) places.k.push_back(j);
  }
  const NodePtr node = pattern.for_head(shape, picture.batch, picture.head).node();
  Json data = {{"pattern", picture.pattern}, {"q_len", shape.q_len},   {"k_len", shape.k_len},
               {"offset", shape.q_offset()}, {"pairs", picture.pairs}, {"cell", picture.cell},
               {"rows", picture.rows},       {"cols", picture.cols},   {"any", any.base64()}};
  if (picture.cell > 1) data["all"] = all.base64();
  data["tree"] = TreeWriter(picture).write(*node, places);
  return data;
}

// "pairs     230272 of 1048576" becomes a row of two cells; what has no second column, one cell.
std::string explain_rows(const std::string& explain) {
  std::string rows;
  for (size_t begin = 0; begin < explain.size();) {
    const size_t end = std::min(explain.find('\n', begin), explain.size());
    const std::string line = explain.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const size_t gap = line.find("  ", line.find_first_not_of(' '));
    const size_t value = line.find_first_not_of(' ', gap);
    rows += gap == std::string::npos || value == std::string::npos
                ? say("<tr><td colspan=\"2\">", escape_markup(line), "</td></tr>\n")
                : say("<tr><th>", escape_markup(line.substr(0, gap)), "</th><td>",
                      escape_markup(line.substr(value)), "</td></tr>\n");
  }
  return rows;
}

}  // namespace

int64_t html_cells(const Shape& shape) {
  // Cells are powers of two, so that the usual tiles are whole cells.
  const int64_t longer = std::max<int64_t>({shape.q_len, shape.k_len, 1});
  const int64_t cell = int64_t(std::bit_ceil(uint64_t(ceil_div(longer, kMostCells))));
  return ceil_div(longer, cell);
}

std::string picture_html(const Pattern& pattern, const Picture& picture,
                         const std::string& explain) {
  // Inside <script>, "</" could end it early; \u003c is the same character to JSON.
  std::string data = page_data(pattern, picture).dump();
  for (size_t at = 0; (at = data.find('<', at)) != std::string::npos; at += 6)
    data.replace(at, 1, "\\u003c");
  const std::string title = escape_markup(picture.pattern);
  std::string page =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  page += say("<meta name=\"generator\" content=\"keyhole ", version(), "\">\n<title>", title,
              "</title>\n<style>", kPageStyle, "</style>\n</head>\n<body>\n");
  page +=
      say("<header><div><h1 class=\"mono\">", title, "</h1><p>", escape_markup(caption(picture)),
          "</p></div><button id=\"theme\" title=\"light or dark\">◐ theme</button></header>\n");
  page += R"html(<main>
<div class="card view">
<div class="bar"><button id="in" title="zoom in">+</button><button id="out" title="zoom out">−</button><button id="fit">fit</button>
<span class="gap"></span><label>tiles <select id="tile"><option value="0">off</option></select></label></div>
<div class="stage"><canvas id="canvas" tabindex="0" aria-label="one row a query, one column a key"></canvas></div>
)html";
  page += picture.cell > 1
              ? "<div class=\"legend\"><span><i class=\"key pair\"></i>every pair of the cell "
                "attends</span><span><i class=\"key some\"></i>some do</span><span><i class=\"key "
                "none\"></i>none</span></div>\n"
              : "<div class=\"legend\"><span><i class=\"key pair\"></i>attends</span><span><i "
                "class=\"key none\"></i>does not</span></div>\n";
  page += R"html(</div>
<aside>
<section class="card"><h2>Why</h2><div class="verdict" id="verdict"></div><ul class="why" id="why"></ul><p class="sees" id="sees"></p></section>
<section class="card" id="tilecard" hidden><h2>Tiles</h2><table id="tiles"></table></section>
)html";
  if (!explain.empty()) {
    page += say("<section class=\"card\"><h2>Plan</h2><table id=\"explain\">\n",
                explain_rows(explain), "</table></section>\n");
  }
  page += say(
      "</aside>\n</main>\n<footer>Wheel or <kbd>+</kbd> <kbd>-</kbd> zoom, drag moves, click pins "
      "a pair, arrow keys walk from there, <kbd>0</kbd> fits. Made by keyhole ",
      version(), ".</footer>\n");
  return page + "<script>\n'use strict';\nconst DATA = " + data + ";\n" + kPageLeaves + kPageModel +
         kPageScript + "</script>\n</body>\n</html>\n";
}

}  // namespace keyhole
