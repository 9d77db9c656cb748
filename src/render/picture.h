// src/render/picture.h
// From a pattern and a shape to a picture: at most `most_cells` cells a side, each with the share
// of its pairs that attend. Text, SVG, PNG and the web page all draw this one value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "keyhole/pattern.h"

namespace keyhole {

// What the second layer of a picture is: the pairs that keep weight, or those that a selection has
// chosen of what is visible.
enum class KeptAs : uint8_t { weight, chosen };

struct Picture {
  std::string pattern;  // its text
  Shape shape;
  int64_t batch = 0, head = 0;
  int64_t cell = 1;  // a cell is cell x cell pairs, fewer at the last row and column
  int64_t rows = 0, cols = 0;
  std::vector<uint8_t> share;  // [rows][cols]  0: no pair attends, 255: all do, else some
  int64_t pairs = 0;           // how many attend
  bool is_estimate = false;    // pairs was sampled, because counting would take minutes

  // A second layer, drawn over the first (add_kept). Empty: none.
  std::string weights;  // "entmax(1.5)", "at most 16 keys"
  std::string numbers;  // whose: "normal q and k, head_dim 64, seed 1", a file
  KeptAs kept_as = KeptAs::weight;
  std::vector<uint8_t> kept;  // [rows][cols]  of the pairs that attend, as share
  int64_t kept_pairs = 0;

  static constexpr uint8_t kAbsent = 0, kFull = 255;
  uint8_t at(int64_t row, int64_t col) const { return share[size_t(row * cols + col)]; }
  double all_pairs() const { return double(shape.q_len) * double(shape.k_len); }
  bool has_kept() const { return !weights.empty(); }
  uint8_t kept_at(int64_t row, int64_t col) const { return kept[size_t(row * cols + col)]; }
};

Picture look(const Pattern& pattern, const Shape& shape, int64_t batch, int64_t head,
             int64_t most_cells);

// The second layer, for the one head that is drawn.
struct KeptPairs {
  std::string weights, numbers;            // as in Picture
  std::vector<std::vector<int32_t>> keys;  // of each query, in ascending order
  KeptAs kept_as = KeptAs::weight;
};
void add_kept(Picture& picture, const KeptPairs& kept);

// How every kind of picture speaks of the second layer.
struct KeptWords {
  const char *are, *is;             // "keep weight", "keeps weight"
  const char* is_not;               // of a pair of the first layer alone: "attends without weight"
  const char *of_pairs, *of_cells;  // what the glyphs of a text mean
};
const KeptWords& words_of(KeptAs kept_as);

// "causal   6 x 6, 21 of 36 pairs (58.3%)", and with a second layer
// "causal, entmax(1.5)   6 x 6, 9 of 21 pairs keep weight (42.9%)"
std::string headline(const Picture& picture);
std::string title(const Picture& picture);  // its first words: "causal", "causal, entmax(1.5)"
// The same without the title, and with the head and the scale where they matter.
std::string caption(const Picture& picture);

}  // namespace keyhole
