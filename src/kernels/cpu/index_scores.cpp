// src/kernels/cpu/index_scores.cpp
// Scores of every query and entry: blocks of queries against packed panels of entries.
#include "kernels/cpu/index_scores.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "kernels/cpu/amx_index_products.h"
#include "kernels/cpu/index_products.h"
#include "kernels/cpu/row_bits.h"
#include "kernels/cpu/score_rows.h"

namespace keyhole::cpu {
namespace {

constexpr int64_t kRowsPerItem = 16;  // reads each packed panel once for so many queries

template <class Products>
struct Work {
  typename RowScorer<Products>::Work scorer;
  std::vector<uint64_t> rows, needed;  // bits of each row; of all of them
};

// The bits of the rows of a block, and those that any of them has.
template <class Products>
void draw_block(const PlanView& visible, int64_t unit, int64_t first, int64_t count,
                int64_t entries, Work<Products>& work) {
  const int64_t words = ceil_div(entries, 64);
  work.rows.resize(size_t(count * words));
  work.needed.assign(size_t(words), 0);
  for (int64_t i = 0; i < count; ++i) {
    uint64_t* const row = work.rows.data() + i * words;
    draw_row(visible, unit, first + i, entries, row);
    for (int64_t x = 0; x < words; ++x) work.needed[size_t(x)] |= row[x];
  }
}

template <class T>
void hide(const uint64_t* bits, int64_t entries, T* scores) {
  for (int64_t first = 0; first < entries; first += 64) {
    const uint64_t word = bits[first / 64];
    if (word == ~uint64_t{0}) continue;
    for (int64_t x = first; x < std::min(first + 64, entries); ++x) {
      if ((word >> (x - first) & 1) == 0) scores[x] = -std::numeric_limits<T>::infinity();
    }
  }
}

template <class Products>
void score_all(const ScoreArgs& args) {
  using T = typename Products::Sum;
  const int threads = args.threads > 0 ? args.threads : max_threads();
  RowScorer<Products> scorer(args);
  const int64_t entries = scorer.products().entries(), groups = scorer.products().groups();
  const int64_t blocks = ceil_div(args.queries.count, kRowsPerItem);
  if (entries == 0 || blocks == 0) return;
  std::vector<Work<Products>> works(static_cast<size_t>(threads));
  scorer.for_each_wave(threads, [&](int64_t first_unit, int64_t last_unit) {
    parallel_for((last_unit - first_unit) * blocks, threads, [&](int64_t item, int thread) {
      Work<Products>& work = works[size_t(thread)];
      const int64_t unit = first_unit + item / blocks, first = item % blocks * kRowsPerItem;
      const int64_t count = std::min(kRowsPerItem, args.queries.count - first);
      const int64_t query = args.queries.first + first;
      const auto rows = rows_of<T>(args.scores, unit / groups, unit % groups);
      const bool is_masked = args.visible != nullptr;
      if (is_masked) draw_block(*args.visible, unit, query, count, entries, work);
      scorer.score(unit, query, count, is_masked ? work.needed.data() : nullptr, rows[first],
                   rows.stride, work.scorer);
      for (int64_t i = 0; i < count && is_masked && !args.only_visible; ++i) {
        hide(work.rows.data() + i * ceil_div(entries, 64), entries, rows[first + i]);
      }
    });
  });
}

}  // namespace

template <class T>
void index_scores(const ScoreArgs& args) {
  score_all<IndexProducts<T>>(args);
}
template void index_scores<float>(const ScoreArgs&);
template void index_scores<double>(const ScoreArgs&);

template <class Storage>
void index_scores_on_amx(const ScoreArgs& args) {
  score_all<AmxIndexProducts<Storage>>(args);
}
template void index_scores_on_amx<Half>(const ScoreArgs&);
template void index_scores_on_amx<BFloat16>(const ScoreArgs&);
template void index_scores_on_amx<E4m3>(const ScoreArgs&);

}  // namespace keyhole::cpu
