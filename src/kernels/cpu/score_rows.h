// src/kernels/cpu/score_rows.h
// Scores of a block of queries, panel by panel: what index_scores stores and select_keys reads.
// A score has the same bits in any block.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu/packed_entries.h"
#include "kernels/select_contract.h"

namespace keyhole::cpu {

// Products: IndexProducts or AmxIndexProducts.
template <class Products>
class RowScorer {
 public:
  using T = typename Products::Sum;
  // The state of a thread.
  struct Work {
    typename Products::Queries queries;
    typename Products::Strip strip;
    Scratch<T> last;  // scores of a panel that ends behind the row
  };

  explicit RowScorer(const ScoreArgs& args)
      : products_(args.q, args.k, args.w, args.k_scale), packed_(products_) {}

  const Products& products() const { return products_; }

  // Calls visit(first, last) for units whose entries are packed together.
  template <class Visit>
  void for_each_wave(int threads, Visit visit) {
    const int64_t units = products_.units();
    const int64_t wave = std::max<int64_t>(1, kPackBytes / std::max<int64_t>(1, bytes_per_unit()));
    for (int64_t first = 0; first < units; first += wave) {
      const int64_t last = std::min(first + wave, units);
      packed_.pack(first, last, threads);
      visit(first, last);
    }
  }

  // scores[i][entries] of queries first + i. needed: one bit per entry, clear if no query of the
  // block needs it: whole panels without a bit are left alone. Null: all are needed.
  void score(int64_t unit, int64_t first, int64_t count, const uint64_t* needed, T* scores,
             int64_t stride, Work& work) const {
    static_assert(kPanel == 64, "a panel is a word of bits");
    [[maybe_unused]] const typename Products::Session session;
    products_.load_queries(unit, first, count, work.queries);
    alignas(kAlignment) T scales[kPanel];
    for (int64_t p = 0; p < products_.panels(); ++p) {
      if (needed != nullptr && needed[p] == 0) continue;
      products_.load_scales(unit, products_.panel(p), scales);
      const int64_t width = products_.panel(p).width;
      const bool is_whole = width == kPanel;
      T* const to = is_whole ? scores + p * kPanel : work.last.reserve(count * kPanel);
      products_.score(work.queries, packed_.panel(unit, p), scales, to, is_whole ? stride : kPanel,
                      work.strip);
      for (int64_t i = 0; i < count && !is_whole; ++i) {
        std::copy_n(to + i * kPanel, width, scores + i * stride + p * kPanel);
      }
    }
  }

 private:
  int64_t bytes_per_unit() const { return packed_.bytes_per_unit(); }

  Products products_;
  PackedEntries<Products> packed_;
};

}  // namespace keyhole::cpu
