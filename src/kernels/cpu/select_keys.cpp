// src/kernels/cpu/select_keys.cpp
// Scores and choice together: a thread scores a few rows, chooses, and forgets the scores.
#include "kernels/cpu/select_keys.h"

#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "kernels/cpu/amx_index_products.h"
#include "kernels/cpu/choose_row.h"
#include "kernels/cpu/index_products.h"
#include "kernels/cpu/score_rows.h"

namespace keyhole::cpu {
namespace {

// The scores of a thread; they stay in the L2 cache until they are read.
constexpr int64_t kScoreBytes = int64_t{2} << 20;
constexpr int64_t kMostRows = 16;

template <class Products>
struct Work {
  using T = typename Products::Sum;
  RowChooser<T> chooser;
  typename RowScorer<Products>::Work scorer;
  std::vector<typename RowChooser<T>::Row> rows;
  std::vector<uint64_t> needed;
  Scratch<T> scores;
};

// The entries that some row needs a score of; false: none.
template <class Products>
bool collect_needed(const Work<Products>& work, int64_t count, std::vector<uint64_t>& needed,
                    int64_t entries) {
  needed.assign(size_t(ceil_div(entries, 64)), 0);
  bool is_any = false;
  for (int64_t i = 0; i < count; ++i) {
    const auto& row = work.rows[size_t(i)];
    if (!row.needs_scores()) continue;
    is_any = true;
    for (size_t x = 0; x < needed.size(); ++x) needed[x] |= row.visible[x];
  }
  return is_any;
}

template <class Products>
void select(const ScoreArgs& args, const TopKArgs& choice) {
  using T = typename Products::Sum;
  const int threads = args.threads > 0 ? args.threads : max_threads();
  RowScorer<Products> scorer(args);
  const int64_t entries = scorer.products().entries(), groups = scorer.products().groups();
  const int64_t stride = round_up(std::max<int64_t>(1, entries), kPanel);
  const int64_t rows_per_item =
      std::clamp<int64_t>(kScoreBytes / (stride * int64_t(sizeof(T))), 1, kMostRows);
  const int64_t blocks = ceil_div(args.queries.count, rows_per_item);
  std::vector<Work<Products>> works;
  for (int i = 0; i < threads; ++i) {
    works.push_back({RowChooser<T>(choice, entries), {}, {}, {}, {}});
    works.back().rows.resize(size_t(rows_per_item));
  }
  scorer.for_each_wave(threads, [&](int64_t first_unit, int64_t last_unit) {
    parallel_for((last_unit - first_unit) * blocks, threads, [&](int64_t item, int thread) {
      Work<Products>& work = works[size_t(thread)];
      // Of a causal plan the last rows are the longest: they begin first.
      const int64_t unit = first_unit + item / blocks, block = blocks - 1 - item % blocks;
      const int64_t first = block * rows_per_item;
      const int64_t count = std::min(rows_per_item, args.queries.count - first);
      const int64_t query = args.queries.first + first;
      for (int64_t i = 0; i < count; ++i) {
        work.chooser.draw(unit / groups, unit % groups, query + i, work.rows[size_t(i)]);
      }
      if (collect_needed(work, count, work.needed, entries)) {
        scorer.score(unit, query, count, work.needed.data(), work.scores.reserve(count * stride),
                     stride, work.scorer);
      }
      for (int64_t i = 0; i < count; ++i) {
        work.chooser.choose(work.rows[size_t(i)], work.scores.at(i * stride));
      }
    });
  });
}

}  // namespace

template <class T>
void select_keys(const ScoreArgs& scores, const TopKArgs& choice) {
  select<IndexProducts<T>>(scores, choice);
}
template void select_keys<float>(const ScoreArgs&, const TopKArgs&);
template void select_keys<double>(const ScoreArgs&, const TopKArgs&);

template <class Storage>
void select_keys_on_amx(const ScoreArgs& scores, const TopKArgs& choice) {
  select<AmxIndexProducts<Storage>>(scores, choice);
}
template void select_keys_on_amx<Half>(const ScoreArgs&, const TopKArgs&);
template void select_keys_on_amx<BFloat16>(const ScoreArgs&, const TopKArgs&);
template void select_keys_on_amx<E4m3>(const ScoreArgs&, const TopKArgs&);

}  // namespace keyhole::cpu
