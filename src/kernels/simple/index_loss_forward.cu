// src/kernels/simple/index_loss_forward.cu
// The index loss: one pass over the keys of a row, with running sums. Nothing is kept of a pair.
#include "base/int_math.h"
#include "kernels/device/grid_loop.cuh"
#include "kernels/device/launch.h"
#include "kernels/simple/index_loss.cuh"
#include "kernels/simple/index_loss.h"

namespace keyhole::simple {
namespace {

// What the loss of a row needs of its pairs:
//   loss = sum of p * (log p - score) + lse with p = weight / total
// The sums are fp64: the loss is their small difference.
struct LossSums {
  float top;                                           // the highest score
  double powers, total, weight_logs, weighted_scores;  // powers: of score - top

  static __device__ LossSums none() { return {-INFINITY, 0, 0, 0, 0}; }
  __device__ void add(float score, float weight) {
    if (score > top) {
      powers = powers * expf(top - score) + 1;
      top = score;
    } else if (score != -INFINITY) {  // which adds 0
      powers += expf(score - top);
    }
    total += weight;
    if (weight == 0) return;  // whatever the score is
    weight_logs += double(weight) * logf(weight);
    weighted_scores += double(weight) * score;
  }
  __device__ void add(const LossSums& other) {
    if (other.powers != 0) {  // 0: no keys, or all of their scores are -infinity
      const float highest = fmaxf(top, other.top);
      powers = powers == 0 ? 0 : powers * expf(top - highest);
      powers += other.powers * expf(other.top - highest);
      top = highest;
    }
    total += other.total;
    weight_logs += other.weight_logs;
    weighted_scores += other.weighted_scores;
  }
  __device__ double lse() const { return double(top) + logf(float(powers)); }
  __device__ double loss() const {
    if (total == 0) return 0;
    return (weight_logs - weighted_scores) / total - logf(float(total)) + lse();
  }
};

__device__ void store(const IndexLossParams& p, int32_t batch, int32_t group, int64_t query,
                      double loss, double lse, double total) {
  *p.loss.row<float>(batch, group, query) = float(loss);
  float* const stats = p.stats.row<float>(batch, group, query);
  stats[0] = float(lse);
  stats[1] = float(total);
}

// Every row: those that count are written again.
__global__ void __launch_bounds__(device::kLoopThreads)
    clear_losses(const __grid_constant__ IndexLossParams p) {
  device::for_each_index(p.units * p.q_len, [&](int64_t i) {
    const int32_t unit = int32_t(i / p.q_len);
    store(p, unit / p.groups, unit % p.groups, i % p.q_len, 0, -INFINITY, 0);
  });
}

__global__ void __launch_bounds__(kLossThreads, kCtas)
    index_loss(const __grid_constant__ IndexLossParams p) {
  __shared__ KeyWalk walk;
  __shared__ PairTile pairs;
  __shared__ LossSums sums[kKeys];
  const Row row = row_of_cta(p);
  if (row.query < 0) return;
  LossSums own = LossSums::none();
  walk.for_each_tile(p, row, nullptr, [&](const KeyTile& keys) {
    const PairTile::Pair pair = pairs.compute(p, row, keys, [](int32_t, const auto&) {});
    if (thread() < keys.count) own.add(pair.score, pair.weight);
  });
  if (thread() < kKeys) sums[thread()] = own;
  for (int32_t half = kKeys / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread() < half) sums[thread()].add(sums[thread() + half]);
  }
  if (thread() != 0) return;
  store(p, row.batch, row.group, row.query, sums[0].loss(), sums[0].lse(), sums[0].total);
}

}  // namespace

int64_t index_loss_bytes(const IndexLossArgs& args) {
  return chunk_bits_bytes(args, row_chunks(args, 0, kMostLossBytes).at_once);
}

void run_index_loss(const IndexLossArgs& args) {
  const auto stream = static_cast<cudaStream_t>(args.launch.stream);
  IndexLossParams p = index_loss_params(args);
  if (p.units == 0 || p.q_len == 0) return;
  if (args.has_rows) {
    device::launch("clearing index losses", clear_losses,
                   {device::loop_ctas(p.units * p.q_len), device::kLoopThreads, 0}, stream, p);
  }
  row_chunks(args, 0, kMostLossBytes).for_each([&](int64_t first, int64_t rows) {
    if (rows == 0) return;
    draw_chunk(args, p, first, rows, args.launch.workspace);
    device::launch("the index loss", index_loss,
                   {unsigned(narrow(rows * p.units, "index_loss: rows")), kLossThreads, 0}, stream,
                   p);
  });
}

}  // namespace keyhole::simple
