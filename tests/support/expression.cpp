// tests/support/expression.cpp
// Text of an expression, and the pattern it means.
#include "support/expression.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/int_math.h"
#include "base/random.h"

namespace keyhole::test {
namespace {

std::string to_text(int64_t number) {
  return number == kUnbounded ? "inf" : std::to_string(number);
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Expression read() {
    const Expression result = expression();
    KEYHOLE_CHECK(at_ == text_.size(), "expression: unexpected '", text_.substr(at_), "'");
    return result;
  }

 private:
  Expression expression() {
    Expression result;
    while (at_ < text_.size() && (std::isalnum(uint8_t(text_[at_])) || text_[at_] == '_')) {
      result.name += text_[at_++];
    }
    KEYHOLE_CHECK(!result.name.empty(), "expression: expected a name at '", text_.substr(at_), "'");
    if (!take('(')) return result;
    while (!take(')')) {
      if (is_number()) {
        result.numbers.push_back(number());
      } else {
        result.children.push_back(expression());
      }
      if (!take(',')) {
        KEYHOLE_CHECK(take(')'), "expression: expected ')' at '", text_.substr(at_), "'");
        break;
      }
    }
    return result;
  }
  bool is_number() const {
    const std::string_view rest = text_.substr(at_);
    return rest.starts_with("inf") || rest.starts_with('-') ||
           (!rest.empty() && std::isdigit(uint8_t(rest[0])));
  }
  int64_t number() {
    if (text_.substr(at_).starts_with("inf")) {
      at_ += 3;
      return kUnbounded;
    }
    size_t used = 0;
    const int64_t value = std::stoll(std::string(text_.substr(at_)), &used);
    at_ += used;
    return value;
  }
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

int64_t number(const Expression& e, size_t i) {
  KEYHOLE_CHECK(i < e.numbers.size(), "expression: ", e.name, " lacks a number");
  return e.numbers[i];
}
const Expression& child(const Expression& e, size_t i) {
  KEYHOLE_CHECK(i < e.children.size(), "expression: ", e.name, " lacks a pattern");
  return e.children[i];
}

// The columns of each of `rows` rows that attend, each with the given chance.
void draw_lists(int64_t rows, int64_t columns, int64_t percent, int64_t seed,
                std::vector<int64_t>& offsets, std::vector<int64_t>& keys) {
  Random random{uint64_t(seed)};
  offsets = {0};
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      if (random.chance(int(percent))) keys.push_back(column);
    }
    offsets.push_back(int64_t(keys.size()));
  }
}

// Positions for `at`: in order, reversed, shuffled, doubled (0 0 1 1 ...) or anything, negative
// too.
std::vector<int64_t> draw_positions(int64_t rows, int64_t length, int64_t order, Random& random) {
  std::vector<int64_t> all;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<int64_t> positions(static_cast<size_t>(length));
    std::iota(positions.begin(), positions.end(), 0);
    if (order == 1) std::reverse(positions.begin(), positions.end());
    if (order == 2) {
      for (int64_t i = length - 1; i > 0; --i) {
        std::swap(positions[size_t(i)], positions[size_t(random.below(i + 1))]);
      }
    }
    if (order == 3) {
      const int64_t shift = random.between(-4, 4);
      for (int64_t& position : positions) position = position / 2 + shift;
    }
    if (order >= 4) {
      for (int64_t& position : positions) position = random.between(-length - 3, 2 * length + 3);
    }
    all.insert(all.end(), positions.begin(), positions.end());
  }
  return all;
}

Pattern build_at(const Expression& e, const Shape& shape) {
  const int64_t rank = std::clamp<int64_t>(number(e, 0), 1, 3);
  const int64_t rows = rank == 1 ? 1 : rank == 2 ? shape.batch : shape.batch * shape.heads;
  Random random{uint64_t(number(e, 2))};
  auto q = draw_positions(rows, shape.q_len, number(e, 1), random);
  auto k = draw_positions(rows, shape.k_len, number(e, 1), random);
  return at(std::move(q), std::move(k), build(child(e, 0), shape));
}

// Cuts that may meet (no tokens between them).
std::vector<int64_t> draw_lengths(int64_t documents, int64_t length, Random& random) {
  std::vector<int64_t> cuts = {0};
  for (int64_t d = 1; d < documents; ++d) cuts.push_back(random.below(length + 1));
  if (documents > 0) cuts.push_back(length);
  std::sort(cuts.begin(), cuts.end());
  for (size_t d = 0; d + 1 < cuts.size(); ++d) cuts[d] = cuts[d + 1] - cuts[d];
  cuts.pop_back();
  return cuts;
}

Pattern build_packed(const Expression& e, const Shape& shape) {
  const int64_t documents = std::clamp<int64_t>(number(e, 0), 0, 64);
  Random random{uint64_t(number(e, 1))};
  auto q = draw_lengths(documents, shape.q_len, random);
  auto k = draw_lengths(documents, shape.k_len, random);
  return packed(std::move(q), std::move(k), build(child(e, 0), shape));
}

Pattern build_mask(const Expression& e, const Shape& shape) {
  Random random{uint64_t(number(e, 1))};
  std::vector<uint8_t> allowed(size_t(shape.k_len * shape.k_len));
  for (uint8_t& byte : allowed) byte = random.chance(int(number(e, 0))) ? 1 : 0;
  return mask(allowed, shape.k_len, shape.k_len);
}

Pattern build_csr(const Expression& e, const Shape& shape) {
  std::vector<int64_t> offsets, keys;
  draw_lists(shape.k_len, shape.k_len, number(e, 0), number(e, 1), offsets, keys);
  return csr(std::move(offsets), std::move(keys));
}

// The tiles of tiles(...) and bitmaps(...): as many as the positions need.
void draw_tiles(const Expression& e, const Shape& shape, std::vector<int64_t>& offsets,
                std::vector<int64_t>& keys) {
  const int64_t tile_q = number(e, 0), tile_k = number(e, 1);
  KEYHOLE_CHECK(tile_q >= 1 && tile_k >= 1, "expression: tiles of ", tile_q, " x ", tile_k);
  draw_lists(ceil_div(shape.k_len, tile_q), ceil_div(shape.k_len, tile_k), number(e, 2),
             number(e, 3), offsets, keys);
}

Pattern build_tiles(const Expression& e, const Shape& shape) {
  std::vector<int64_t> offsets, keys;
  draw_tiles(e, shape, offsets, keys);
  return tiles(number(e, 0), number(e, 1), std::move(offsets), std::move(keys));
}

Pattern build_documents(std::vector<int64_t> lengths, const Shape& shape) {
  int64_t left = shape.k_len;
  for (int64_t& length : lengths) {
    KEYHOLE_CHECK(length >= 0, "expression: documents of ", length);
    length = std::min(length, left), left -= length;
  }
  if (!lengths.empty()) lengths.back() += left;
  return documents(std::move(lengths));
}

Pattern build_tree(std::vector<int64_t> parents, const Shape& shape) {
  const size_t given = parents.size();
  parents.resize(size_t(shape.k_len));
  for (size_t i = given; i < parents.size(); ++i) parents[i] = int64_t(i) - 1;
  return tree(std::move(parents));
}

// The largest divisor of `whole` up to `most`.
int64_t divisor_of(int64_t whole, int64_t most) {
  int64_t divisor = std::clamp<int64_t>(most, 1, std::max<int64_t>(whole, 1));
  while (whole % divisor != 0) --divisor;
  return divisor;
}

Pattern build_grid(const Expression& e, const Shape& shape) {
  const int64_t width = divisor_of(shape.k_len, number(e, 1)), height = shape.k_len / width;
  return (e.name == "grid" ? grid : neighborhood)(height, width, number(e, 2), number(e, 3));
}
Pattern build_volume(const Expression& e, const Shape& shape) {
  const int64_t width = divisor_of(shape.k_len, number(e, 2));
  const int64_t height = divisor_of(shape.k_len / width, number(e, 1));
  return (e.name == "volume" ? volume : volume_neighborhood)(
      shape.k_len / width / height, height, width, number(e, 3), number(e, 4), number(e, 5));
}

Pattern build_bitmaps(const Expression& e, const Shape& shape) {
  const int64_t tile_q = number(e, 0), tile_k = number(e, 1);
  const int64_t num = std::clamp<int64_t>(number(e, 4), 0, 16);
  std::vector<int64_t> offsets, keys, names;
  draw_tiles(e, shape, offsets, keys);
  Random random{uint64_t(number(e, 3))};
  for (size_t i = 0; i < keys.size(); ++i) names.push_back(random.between(-1, num - 1));
  std::vector<uint8_t> allowed(size_t(num * tile_q * tile_k));
  for (int64_t i = 0; i < int64_t(allowed.size()); ++i) {  // some bitmaps are empty, some full
    const int64_t chance = i / (tile_q * tile_k) % 4;
    allowed[size_t(i)] = random.chance(int(chance * 34)) ? 1 : 0;
  }
  return bitmaps(tile_q, tile_k, std::move(offsets), std::move(keys), std::move(names), allowed);
}

std::vector<Pattern> build_children(const Expression& e, const Shape& shape, int64_t count) {
  std::vector<Pattern> patterns;
  for (int64_t i = 0; i < count; ++i) {
    patterns.push_back(build(child(e, size_t(i) % std::max<size_t>(e.children.size(), 1)), shape));
  }
  return patterns;
}

}  // namespace

std::string to_text(const Expression& expression) {
  std::string text = expression.name;
  if (expression.numbers.empty() && expression.children.empty()) return text;
  char separator = '(';
  for (const int64_t number : expression.numbers) {
    text += separator + to_text(number);
    separator = ',';
  }
  for (const Expression& child : expression.children) {
    text += separator + to_text(child);
    separator = ',';
  }
  return text + ')';
}

Expression parse_expression(std::string_view text) { return Reader(text).read(); }

Pattern build(const Expression& e, const Shape& shape) {
  if (e.name == "and") return build(child(e, 0), shape) & build(child(e, 1), shape);
  if (e.name == "or") return build(child(e, 0), shape) | build(child(e, 1), shape);
  if (e.name == "not") return ~build(child(e, 0), shape);
  if (e.name == "per_head") return per_head(build_children(e, shape, shape.heads));
  if (e.name == "per_batch") return per_batch(build_children(e, shape, shape.batch));
  if (e.name == "at") return build_at(e, shape);
  if (e.name == "packed") return build_packed(e, shape);
  if (e.name == "mask") return build_mask(e, shape);
  if (e.name == "csr") return build_csr(e, shape);
  if (e.name == "tiles") return build_tiles(e, shape);
  if (e.name == "bitmaps") return build_bitmaps(e, shape);
  if (e.name == "documents") return build_documents(e.numbers, shape);
  if (e.name == "tree") return build_tree(e.numbers, shape);
  if (e.name == "grid" || e.name == "neighborhood") return build_grid(e, shape);
  if (e.name == "volume" || e.name == "volume_neighborhood") return build_volume(e, shape);
  if (e.name == "lambda") {
    const int64_t a = number(e, 0), b = number(e, 1), modulus = number(e, 2);
    KEYHOLE_CHECK(modulus >= 1, "expression: lambda with modulus ", modulus);
    return lambda([=](Position q, Position k) { return floor_mod(a * q + b * k, modulus) == 0; },
                  to_text(e));
  }
  return parse(to_text(e));
}

int64_t count_nodes(const Expression& expression) {
  int64_t nodes = 1;
  for (const Expression& child : expression.children) nodes += count_nodes(child);
  return nodes;
}

}  // namespace keyhole::test
