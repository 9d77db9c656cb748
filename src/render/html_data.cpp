// src/render/html_data.cpp
// Bitmaps and expression trees, once for all heads and batch entries that look the same.
#include "render/html_data.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "base/int_math.h"
#include "pattern/node.h"

namespace keyhole {
namespace {

using Json = nlohmann::ordered_json;  // keys keep the order in which they are written

constexpr double kMostCellsInAll = 3e7;  // of all bitmaps: 5 MB of page
constexpr int64_t kMostPlaces = 64;
constexpr size_t kMostParts = 6;  // as many as there are colours (page_style.cpp)

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

BitPacker cells_of(const Picture& picture, bool (*is_set)(uint8_t share)) {
  BitPacker bits;
  for (const uint8_t share : picture.share) bits.add(is_set(share));
  return bits;
}
bool is_any(uint8_t share) { return share != Picture::kAbsent; }
bool is_all(uint8_t share) { return share == Picture::kFull; }

void add_operands(const NodePtr& node, std::vector<NodePtr>& operands) {
  if (node->kind() != Node::Kind::disjunction) return operands.push_back(node);
  for (const NodePtr& child : node->children()) add_operands(child, operands);
}

// The parts that get a colour each: the operands of the first `|` below names and `&`.
// streaming(16, 64) is causal & (window(63) | sinks(16)), and so has two.
std::vector<NodePtr> parts_of(const NodePtr& node) {
  std::vector<NodePtr> parts;
  if (node->kind() == Node::Kind::disjunction) {
    add_operands(node, parts);
  } else if (node->kind() == Node::Kind::named || node->kind() == Node::Kind::conjunction) {
    for (const NodePtr& child : node->children()) {
      if (parts.empty()) parts = parts_of(child);
    }
  }
  return parts;
}

// Of each part, the cells that have a pair of it that attends. The last colour stands for all parts
// that are left.
Json write_parts(const NodePtr& node, const Picture& picture) {
  const std::vector<NodePtr> parts = parts_of(node);
  Json json = Json::array();
  for (size_t first = 0; first < parts.size() && json.size() < kMostParts; ++first) {
    NodePtr part = parts[first];
    std::string text = part->text();
    if (json.size() + 1 == kMostParts && first + 1 < parts.size()) {
      for (size_t i = first + 1; i < parts.size(); ++i) part = make_or(part, parts[i]);
      text = say("the other ", parts.size() - first);
    }
    const Picture cells = look(Pattern(make_and(node, part)), picture.shape, picture.batch,
                               picture.head, std::max(picture.rows, picture.cols));
    json.push_back({{"text", text}, {"any", cells_of(cells, is_any).base64()}});
  }
  return json;
}

// The second layer instead, in the colour of another part.
Json write_kept(const Picture& picture) {
  const KeptWords& words = words_of(picture.kept_as);
  BitPacker kept;
  for (const uint8_t share : picture.kept) kept.add(is_any(share));
  return {{{"text", say(picture.weights, ": ", words.is)}, {"ink", 1}, {"any", kept.base64()}},
          {{"text", words.is_not}, {"ink", 0}, {"any", cells_of(picture, is_any).base64()}}};
}

// What one head of one batch entry looks like.
Json write_view(const Pattern& pattern, const Picture& picture) {
  const Shape& shape = picture.shape;
  Places places;
  if (picture.cell == 1) {
    for (int64_t i = 0; i < shape.q_len; ++i) places.q.push_back(i + shape.q_offset());
    for (int64_t j = 0; j < shape.k_len; ++j) places.k.push_back(j);
  }
  const NodePtr node = pattern.for_head(shape, picture.batch, picture.head).node();
  Json view = {{"pairs", picture.pairs}, {"any", cells_of(picture, is_any).base64()}};
  if (picture.cell > 1) view["all"] = cells_of(picture, is_all).base64();
  view["parts"] = picture.has_kept() ? write_kept(picture) : write_parts(node, picture);
  view["tree"] = TreeWriter(picture).write(*node, places);
  return view;
}

}  // namespace

std::string page_data(const Pattern& pattern, const Picture& picture) {
  const Shape& shape = picture.shape;
  Json data = {{"pattern", picture.pattern}, {"q_len", shape.q_len},   {"k_len", shape.k_len},
               {"offset", shape.q_offset()}, {"cell", picture.cell},   {"rows", picture.rows},
               {"cols", picture.cols},       {"batch", picture.batch}, {"head", picture.head}};
  Json views = Json::array(), places = Json::array();
  std::map<std::string, size_t> known;
  double cells_in_all = 0;
  const auto add = [&](const Picture& seen) {
    Json view = write_view(pattern, seen);
    const auto [found, is_new] = known.try_emplace(view.dump(), views.size());
    if (is_new) {
      const size_t num_bitmaps = 1 + view.count("all") + view["parts"].size();
      cells_in_all += double(num_bitmaps) * double(picture.rows) * double(picture.cols);
      views.push_back(std::move(view));
    }
    places.push_back({{"batch", seen.batch},
                      {"head", seen.head},
                      {"view", found->second},
                      {"caption", caption(seen)}});
  };
  add(picture);
  int64_t left_out = 0;
  if (picture.has_kept()) {
    const KeptWords& words = words_of(picture.kept_as);
    data["weights"] = picture.weights;
    data["kept"] = {words.is, words.is_not};
    left_out = shape.batch * shape.heads - 1;  // they have a second layer of their own
  } else if (pattern.node()->depends_on_heads(shape.q_len, shape.k_len)) {
    for (int64_t place = 0; place < shape.batch * shape.heads; ++place) {
      const int64_t batch = place / shape.heads, head = place % shape.heads;
      if (batch == picture.batch && head == picture.head) continue;
      if (int64_t(places.size()) >= kMostPlaces || cells_in_all >= kMostCellsInAll) {
        ++left_out;
        continue;
      }
      add(look(pattern, shape, batch, head, std::max(picture.rows, picture.cols)));
    }
  }
  data["left_out"] = left_out, data["places"] = std::move(places), data["views"] = std::move(views);
  return data.dump();
}

}  // namespace keyhole
