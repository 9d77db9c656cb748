// src/kernels/cpu/index_loss_forward.cpp
// The index loss: one pass over the keys of a block of queries, with running sums for each query.
// Nothing is kept of a pair.
#include <cmath>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "kernels/cpu/index_loss.h"
#include "kernels/cpu/index_products.h"
#include "kernels/cpu/loss_blocks.h"
#include "kernels/cpu/target_weights.h"

namespace keyhole::cpu {
namespace {

// What the loss of a query needs of its pairs:
//   loss = sum of p * (log p - score) + lse with p = weight / total
struct LossSums {
  double top = -std::numeric_limits<double>::infinity(), powers = 0;  // of scores
  double total = 0, weight_logs = 0, weighted_scores = 0;

  void add(double score, double weight) {
    if (score > top) {
      powers = powers * std::exp(top - score) + 1;
      top = score;
    } else if (score != -std::numeric_limits<double>::infinity()) {  // which adds 0
      powers += std::exp(score - top);
    }
    total += weight;
    if (weight == 0) return;  // whatever the score is
    weight_logs += weight * std::log(weight);
    weighted_scores += weight * score;
  }
  double lse() const { return top + std::log(powers); }
  double loss() const {
    if (total == 0) return 0;
    return (weight_logs - weighted_scores) / total - std::log(total) + lse();
  }
};

template <class T>
struct Work {
  LossBlock block;
  typename IndexProducts<T>::Queries queries;
  typename IndexProducts<T>::Strip strip;
  typename TargetWeights<T>::Queries target_queries;
  typename TargetWeights<T>::Strip target_strip;
  Scratch<T> rows, panel, scores, weights;
  std::vector<LossSums> sums;
};

template <class T>
void add_panel(const IndexProducts<T>& products, const TargetWeights<T>& target,
               const EntryPanel& panel, Work<T>& work) {
  const LossBlock& block = work.block;
  alignas(kAlignment) T scales[kPanel];
  products.load_scales(block.unit, panel, scales);
  T* const packed = work.panel.reserve(products.panel_size());
  products.pack(block.unit, panel, work.rows.reserve(products.rows_size()), packed);
  T* const scores = work.scores.reserve(block.count * kPanel);
  T* const weights = work.weights.reserve(block.count * kPanel);
  products.score(work.queries, packed, scales, scores, kPanel, work.strip);
  target.weigh(block, work.target_queries, panel, weights, work.target_strip);
  for (int64_t i = 0; i < block.count; ++i) {
    const uint64_t pairs = block.pairs(i, panel);
    for_each_bit(&pairs, kPanel, [&](int64_t x) {
      work.sums[size_t(i)].add(double(scores[i * kPanel + x]), double(weights[i * kPanel + x]));
    });
  }
}

// Queries that do not count, and those without keys.
template <class T>
void clear(const IndexLossArgs& args) {
  const int64_t groups = args.k.shape[1];
  for (int64_t unit = 0; unit < args.k.shape[0] * groups; ++unit) {
    const auto loss = rows_of<T>(args.loss, unit / groups, unit % groups);
    const auto stats = rows_of<T>(args.stats, unit / groups, unit % groups);
    for (int64_t query = 0; query < args.q.shape[2]; ++query) {
      *loss[query] = 0;
      stats[query][0] = -std::numeric_limits<T>::infinity();
      stats[query][1] = 0;
    }
  }
}

}  // namespace

template <class T>
void index_loss_forward(const IndexLossArgs& args) {
  const int threads = args.threads > 0 ? args.threads : max_threads();
  const IndexProducts<T> products(args.q, args.k, args.w, args.k_scale);
  const TargetWeights<T> target(args);
  const std::vector<QueryRange> blocks = blocks_of_queries(args);
  const int64_t num_blocks = int64_t(blocks.size()), groups = products.groups();
  clear<T>(args);
  std::vector<Work<T>> works(static_cast<size_t>(threads));
  parallel_for(products.units() * num_blocks, threads, [&](int64_t item, int thread) {
    Work<T>& work = works[size_t(thread)];
    const QueryRange& queries = blocks[size_t(num_blocks - 1 - item % num_blocks)];
    const int64_t unit = item / num_blocks;
    work.block.draw(args, unit, queries.first, queries.count);
    products.load_queries(unit, queries.first, queries.count, work.queries);
    target.load_queries(unit, queries.first, queries.count, work.target_queries);
    work.sums.assign(size_t(queries.count), {});
    work.block.for_each_panel(0, products.panels() * kPanel, [&](const EntryPanel& panel) {
      add_panel(products, target, panel, work);
    });
    for (int64_t i = 0; i < queries.count; ++i) {
      const LossSums& sums = work.sums[size_t(i)];
      const int64_t query = queries.first + i;
      *rows_of<T>(args.loss, unit / groups, unit % groups)[query] = T(sums.loss());
      T* const stats = rows_of<T>(args.stats, unit / groups, unit % groups)[query];
      stats[0] = T(sums.lse());
      stats[1] = T(sums.total);
    }
  });
}

template void index_loss_forward<float>(const IndexLossArgs&);
template void index_loss_forward<double>(const IndexLossArgs&);

}  // namespace keyhole::cpu
