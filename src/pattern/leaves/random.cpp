// src/pattern/leaves/random.cpp
// random(block, count, seed): the queries of a block attend to `count` distinct blocks of keys,
// drawn without repetition for each query block, alike for all heads. block = 1: random tokens.
//
//   random(2, 1, 7) on 6 tokens     # # . . . .
//                                   # # . . . .
//                                   # # . . . .
//                                   # # . . . .
//                                   . . . . # #
//                                   . . . . # #
//
// Query block i draws the key blocks P(0), P(1), ..., P(count - 1), where P is the permutation of
// the ceil(k_len / block) key blocks keyed by (seed, i): see base/keyed_permutation.h, which
// defines it to the bit. A key block is among them when inverse(P) of it is below count, so no list
// is stored.
#include <algorithm>

#include "base/keyed_permutation.h"
#include "pattern/leaves/cells.h"

namespace keyhole {
namespace {

std::string random_text(int64_t block, int64_t count, int64_t seed) {
  return say("random(", block, ", ", count, ", ", seed, ")");
}

// For a known number of key blocks.
class DrawnRandom final : public Cells {
 public:
  DrawnRandom(int64_t block, int64_t count, int64_t seed, int64_t num_blocks)
      : Cells(block, block), count_(count), seed_(seed), num_blocks_(num_blocks) {}

  std::string text() const override { return random_text(cell_q(), count_, seed_); }

  // Many small blocks in a band leave no gap worth a caller's attention: say so without drawing
  // them.
  void strip(Span q, Span k, Position grain, Strip& out) const override {
    const int64_t rows = cells_of(q, cell_q()).size();
    const bool is_crowded = cell_k() < grain && count_ < num_blocks_ &&
                            double(rows) * double(count_) * double(grain) > 8 * double(k.size());
    if (!is_crowded) return Cells::strip(q, k, grain, out);
    const Span keys = intersect(k, {0, num_blocks_ * cell_k()});
    out.append(keys.begin, keys.end, Cover::some);
  }

 private:
  bool has_cell(int64_t q_cell, int64_t k_cell) const override {
    if (k_cell < 0 || k_cell >= num_blocks_) return false;
    return count_ >= num_blocks_ || drawn_for(q_cell).inverse(uint64_t(k_cell)) < uint64_t(count_);
  }

  void list_cells(int64_t q_cell, Span within, std::vector<int64_t>& out) const override {
    const size_t first = out.size();
    for_each_cell(q_cell, within, [&](int64_t cell) { out.push_back(cell); });
    std::sort(out.begin() + int64_t(first), out.end());
  }

  uint64_t cell_word(int64_t q_cell, Span within) const override {
    uint64_t word = 0;
    for_each_cell(q_cell, within,
                  [&](int64_t cell) { word |= uint64_t{1} << (cell - within.begin); });
    return word;
  }

  Span rows_of_cells() const override { return {INT64_MIN, INT64_MAX}; }

  // In any order. Asks about each block of `within`, or draws, whichever is less.
  template <class Visit>
  void for_each_cell(int64_t q_cell, Span within, Visit visit) const {
    within = intersect(within, {0, num_blocks_});
    if (within.is_empty()) return;
    const KeyedPermutation permutation = drawn_for(q_cell);
    if (within.size() <= count_) {
      for (int64_t cell = within.begin; cell < within.end; ++cell) {
        const bool is_drawn =
            count_ >= num_blocks_ || permutation.inverse(uint64_t(cell)) < uint64_t(count_);
        if (is_drawn) visit(cell);
      }
      return;
    }
    for (int64_t i = 0; i < count_; ++i) {
      const auto cell = int64_t(permutation.forward(uint64_t(i)));
      if (within.begin <= cell && cell < within.end) visit(cell);
    }
  }

  KeyedPermutation drawn_for(int64_t q_cell) const {
    return KeyedPermutation(uint64_t(num_blocks_), uint64_t(seed_), uint64_t(q_cell));
  }

  int64_t count_, seed_, num_blocks_;
};

// As written: which blocks there are is known only together with a shape.
class Random final : public Node {
 public:
  Random(int64_t block, int64_t count, int64_t seed) : block_(block), count_(count), seed_(seed) {}

  bool allows(Position, Position) const override {
    throw Error(ErrorKind::internal,
                say("internal error: ", text(),
                    " was asked for a pair before the number of keys was known"));
  }
  std::string text() const override { return random_text(block_, count_, seed_); }
  bool is_resolved() const override { return false; }
  NodePtr resolve(const Scope& scope) const override {
    return std::make_shared<DrawnRandom>(block_, count_, seed_,
                                         ceil_div(scope.shape.k_len, block_));
  }

 private:
  int64_t block_, count_, seed_;
};

}  // namespace

Pattern random(int64_t block, int64_t count, int64_t seed) {
  KEYHOLE_CHECK(block >= 1 && block <= kUnbounded, "random: block is ", block, "; expected 1 to ",
                kUnbounded);
  KEYHOLE_CHECK(count >= 0, "random: count is ", count,
                "; expected 0 or more key blocks for each query block");
  return Pattern(std::make_shared<Random>(block, count, seed));
}

}  // namespace keyhole
