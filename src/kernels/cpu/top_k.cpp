// src/kernels/cpu/top_k.cpp
// The best entries of rows of scores, one row at a time.
#include "kernels/cpu/top_k.h"

#include <vector>

#include "base/dtype.h"
#include "base/parallel.h"
#include "kernels/cpu/choose_row.h"
#include "kernels/cpu/load_rows.h"
#include "kernels/cpu/scratch.h"

namespace keyhole::cpu {

template <class Storage>
void top_k(const TopKArgs& args) {
  using T = typename Traits<Storage>::Compute;
  const int threads = args.threads > 0 ? args.threads : max_threads();
  const int64_t groups = args.scores.shape[1], entries = args.scores.shape[3];
  struct Work {
    RowChooser<T> chooser;
    typename RowChooser<T>::Row row;
    Scratch<T> scores;
  };
  std::vector<Work> works;
  for (int i = 0; i < threads; ++i) works.push_back({RowChooser<T>(args, entries), {}, {}});
  parallel_for(args.scores.shape[0] * groups * args.queries.count, threads,
               [&](int64_t item, int thread) {
                 Work& work = works[size_t(thread)];
                 const int64_t unit = item / args.queries.count, i = item % args.queries.count;
                 work.chooser.draw(unit / groups, unit % groups, args.queries.first + i, work.row);
                 const T* scores = nullptr;
                 if (work.row.needs_scores()) {
                   const TensorHead rows{&args.scores, unit / groups, unit % groups};
                   if constexpr (std::is_same_v<Storage, T>) {
                     scores = rows.rows<Storage>()[i];
                   } else {
                     load_rows(rows, i, 1, work.scores.reserve(entries), entries);
                     scores = work.scores.data();
                   }
                 }
                 work.chooser.choose(work.row, scores);
               });
}

template void top_k<float>(const TopKArgs&);
template void top_k<Half>(const TopKArgs&);
template void top_k<BFloat16>(const TopKArgs&);
template void top_k<double>(const TopKArgs&);

}  // namespace keyhole::cpu
