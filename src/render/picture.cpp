// src/render/picture.cpp
// Looks at a pattern, row by row while that is affordable and by bands of rows beyond.
#include "render/picture.h"

#include <algorithm>

#include "base/check.h"
#include "base/int_math.h"
#include "pattern/node.h"
#include "render/number_text.h"

namespace keyhole {
namespace {

constexpr double kMostExactPairs = 1 << 26;   // 8,192 x 8,192: a fraction of a second row by row
constexpr int64_t kCountBudget = 12'000'000;  // beyond so many segments, pairs are estimated

// How many pairs of each cell attend. A row adds whole segments: the two ends by hand, the cells in
// between through a running difference, so that a row costs its segments and not its keys.
void count_cells(const Node& node, Picture& picture) {
  const Shape& shape = picture.shape;
  const int64_t cell = picture.cell, cols = picture.cols;
  std::vector<int64_t> counts(static_cast<size_t>(cols)), steps(static_cast<size_t>(cols) + 1);
  Strip strip;
  const auto add = [&](Position begin, Position end) {
    const int64_t first = begin / cell, last = (end - 1) / cell;
    if (first == last) {
      counts[size_t(first)] += end - begin;
      return;
    }
    counts[size_t(first)] += (first + 1) * cell - begin;
    counts[size_t(last)] += end - last * cell;
    steps[size_t(first) + 1] += cell, steps[size_t(last)] -= cell;
  };
  for (int64_t row = 0; row < picture.rows; ++row) {
    std::fill(counts.begin(), counts.end(), 0);
    std::fill(steps.begin(), steps.end(), 0);
    const int64_t end = std::min((row + 1) * cell, shape.q_len);
    for (int64_t query = row * cell; query < end; ++query) {
      const Position q = query + shape.q_offset();
      strip.clear();
      node.strip({q, q + 1}, {0, shape.k_len}, 1, strip);
      for (const Segment& segment : strip) {
        if (segment.cover == Cover::all) {
          add(segment.begin, segment.end);
        } else {
          for (Position k = segment.begin; k < segment.end; ++k) {
            if (node.allows(q, k)) add(k, k + 1);
          }
        }
      }
    }
    int64_t running = 0;
    for (int64_t col = 0; col < cols; ++col) {
      running += steps[size_t(col)];
      const int64_t count = counts[size_t(col)] + running;
      const int64_t area =
          (end - row * cell) * (std::min((col + 1) * cell, shape.k_len) - col * cell);
      picture.pairs += count;
      picture.share[size_t(row * cols + col)] =
          count == 0      ? Picture::kAbsent
          : count == area ? Picture::kFull
                          : uint8_t(std::clamp<int64_t>(255 * count / area, 1, 254));
    }
  }
}

// Too long for that: one strip for each row of cells. What it leaves open is drawn as partial.
void classify_cells(const Node& node, Picture& picture) {
  const Shape& shape = picture.shape;
  Strip strip;
  for (int64_t row = 0; row < picture.rows; ++row) {
    const Position begin = row * picture.cell + shape.q_offset();
    const Position end = std::min((row + 1) * picture.cell, shape.q_len) + shape.q_offset();
    strip.clear();
    node.strip({begin, end}, {0, shape.k_len}, picture.cell, strip);
    for (int64_t col = 0; col < picture.cols; ++col) {
      const Span keys{col * picture.cell, std::min((col + 1) * picture.cell, shape.k_len)};
      const Cover cover = cover_of(strip, keys);
      picture.share[size_t(row * picture.cols + col)] = cover == Cover::none  ? Picture::kAbsent
                                                        : cover == Cover::all ? Picture::kFull
                                                                              : uint8_t{128};
    }
  }
}

// Counts by halving bands of queries: what a band attends to as a whole is settled at once.
struct Counter {
  const Node& node;
  int64_t budget = kCountBudget;
  int64_t pairs = 0;

  void count(Span q, Span k) {
    if (budget < 0) return;
    Strip strip;
    node.strip(q, k, q.size(), strip);
    budget -= 1 + int64_t(strip.size());
    for (const Segment& segment : strip) {
      const Span keys{segment.begin, segment.end};
      if (segment.cover == Cover::all) {
        pairs += q.size() * keys.size();
      } else if (q.size() > 1) {
        const Position middle = q.begin + q.size() / 2;
        count({q.begin, middle}, keys), count({middle, q.end}, keys);
      } else {
        budget -= keys.size();
        if (budget < 0) return;
        for (Position key = keys.begin; key < keys.end; ++key) pairs += node.allows(q.begin, key);
      }
      if (budget < 0) return;
    }
  }
};

// The share of the keys that a few queries see, one query from each of as many equal stretches, at
// places that look random and are the same on every machine. Where one row is too long to be looked
// at whole, a sample of its keys stands for it.
double sampled_share(const Node& node, const Shape& shape) {
  constexpr int64_t kQueries = 64, kKeys = 1 << 14, kLongestRow = 1 << 22;
  const auto place = [](uint64_t index, double begin, double end) {
    const uint64_t mixed = (index + 1) * 0x9e3779b97f4a7c15u;
    const double inside = double((mixed ^ mixed >> 29) >> 11 & 0x1fffff) / double(1 << 21);
    return Position(begin + (end - begin) * inside);
  };
  double share = 0;
  Strip strip;
  for (int64_t i = 0; i < kQueries; ++i) {
    const double stretch = double(shape.q_len) / double(kQueries);
    const Position q =
        place(uint64_t(i), double(i) * stretch, double(i + 1) * stretch) + shape.q_offset();
    int64_t seen = 0;
    const auto look_at = [&](Position k) { seen += node.allows(q, k); };
    if (shape.k_len > kLongestRow) {
      const double step = double(shape.k_len) / double(kKeys);
      for (int64_t j = 0; j < kKeys; ++j)
        look_at(place(uint64_t(i * kKeys + j), double(j) * step, double(j + 1) * step));
      share += double(seen) / double(kKeys);
      continue;
    }
    strip.clear();
    node.strip({q, q + 1}, {0, shape.k_len}, 1, strip);
    for (const Segment& segment : strip) {
      if (segment.cover == Cover::all) {
        seen += segment.end - segment.begin;
      } else {
        for (Position k = segment.begin; k < segment.end; ++k) look_at(k);
      }
    }
    share += double(seen) / double(shape.k_len);
  }
  return share / double(kQueries);
}

}  // namespace

Picture look(const Pattern& pattern, const Shape& shape, int64_t batch, int64_t head,
             int64_t most_cells) {
  checked_mul(shape.q_len, shape.k_len, "picture: pairs");
  const NodePtr node = pattern.for_head(shape, batch, head).node();
  Picture picture;
  picture.pattern = pattern.text(), picture.shape = shape;
  picture.batch = batch, picture.head = head;
  picture.cell = std::max<int64_t>(1, ceil_div(std::max(shape.q_len, shape.k_len), most_cells));
  picture.rows = ceil_div(shape.q_len, picture.cell);
  picture.cols = ceil_div(shape.k_len, picture.cell);
  picture.share.assign(size_t(picture.rows * picture.cols), Picture::kAbsent);

  if (picture.all_pairs() <= kMostExactPairs) {
    count_cells(*node, picture);
    return picture;
  }
  classify_cells(*node, picture);
  Counter counter{*node};
  counter.count({shape.q_offset(), shape.q_offset() + shape.q_len}, {0, shape.k_len});
  picture.is_estimate = counter.budget < 0;
  picture.pairs = picture.is_estimate ? int64_t(sampled_share(*node, shape) * picture.all_pairs())
                                      : counter.pairs;
  return picture;
}

void add_kept(Picture& picture, const KeptPairs& kept) {
  const Shape& shape = picture.shape;
  KEYHOLE_ASSERT(int64_t(kept.keys.size()) == shape.q_len, "picture: kept pairs of ",
                 kept.keys.size(), " queries for ", shape.q_len);
  picture.weights = kept.weights, picture.numbers = kept.numbers, picture.kept_as = kept.kept_as;
  picture.kept_pairs = 0;
  std::vector<int64_t> counts(picture.share.size());
  for (int64_t query = 0; query < shape.q_len; ++query) {
    for (const int32_t key : kept.keys[size_t(query)]) {
      ++counts[size_t(query / picture.cell * picture.cols + key / picture.cell)];
      ++picture.kept_pairs;
    }
  }
  picture.kept.assign(counts.size(), Picture::kAbsent);
  for (int64_t row = 0; row < picture.rows; ++row) {
    const int64_t height = std::min(picture.cell, shape.q_len - row * picture.cell);
    for (int64_t col = 0; col < picture.cols; ++col) {
      const size_t at = size_t(row * picture.cols + col);
      const int64_t width = std::min(picture.cell, shape.k_len - col * picture.cell);
      // How many attend is known to a 255th of the cell: to a pair, where it is small.
      const int64_t area = height * width;
      const double attending = double(area) * double(picture.share[at]) / 255;
      const bool is_known = area < 255 || picture.share[at] == Picture::kFull;
      const bool is_all = is_known && double(counts[at]) >= attending;
      const double share = 255 * double(counts[at]) / std::max(attending, 1.0);
      picture.kept[at] = counts[at] == 0 ? Picture::kAbsent
                         : is_all        ? Picture::kFull
                                         : uint8_t(std::clamp(share, 1.0, 254.0));
    }
  }
}

const KeptWords& words_of(KeptAs kept_as) {
  static constexpr KeptWords kWords[] = {
      {"keep weight", "keeps weight", "attends without weight",
       "# keeps weight, - attends without, . does not attend",
       "# all that attend keep weight, + some do, - none, . none attends"},
      {"are chosen", "is chosen", "is visible, not chosen",
       "# is chosen, - is visible, . is not visible",
       "# all that are visible are chosen, + some are, - none, . none is visible"}};
  return kWords[size_t(kept_as)];
}

namespace {

// What the picture tells, without the pattern.
std::string facts_of(const Picture& picture) {
  const double all = picture.has_kept() ? double(picture.pairs) : picture.all_pairs();
  const int64_t some = picture.has_kept() ? picture.kept_pairs : picture.pairs;
  const double percents = all > 0 ? 100 * double(some) / all : 0;
  // One digit behind the point, unless that would make something look like nothing.
  const std::string share =
      percents > 0 && percents < 0.05 ? significant_text(percents, 1) : fixed_text(percents, 1);
  const char* const about = picture.is_estimate ? "about " : "";
  if (picture.has_kept()) {
    return say(picture.shape.q_len, " x ", picture.shape.k_len, ", ", some, " of ", about,
               fixed_text(all, 0), " pairs ", words_of(picture.kept_as).are, " (", share, "%)");
  }
  return say(picture.shape.q_len, " x ", picture.shape.k_len, ", ", about, some, " of ",
             fixed_text(all, 0), " pairs (", share, "%)");
}

}  // namespace

std::string title(const Picture& picture) {
  return picture.has_kept() ? say(picture.pattern, ", ", picture.weights) : picture.pattern;
}

std::string headline(const Picture& picture) {
  return say(title(picture), "   ", facts_of(picture));
}

std::string caption(const Picture& picture) {
  std::string text = facts_of(picture);
  if (picture.has_kept()) text += ", of " + picture.numbers;
  if (picture.shape.heads > 1) text += say(", head ", picture.head);
  if (picture.shape.batch > 1) text += say(", batch entry ", picture.batch);
  if (picture.shape.offset) text += say(", query 0 at position ", *picture.shape.offset);
  if (picture.cell > 1) {
    text += say(", one cell is ", picture.cell, " x ", picture.cell, " pairs");
  }
  return text;
}

}  // namespace keyhole
