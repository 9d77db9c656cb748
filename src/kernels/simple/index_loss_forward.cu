// src/kernels/simple/index_loss_forward.cu
// The index loss: one pass over the keys of a row, with running sums. Nothing is kept of a pair.
#include "base/int_math.h"
#include "kernels/device/launch.h"
#include "kernels/device/loss_sums.cuh"
#include "kernels/simple/index_loss.cuh"
#include "kernels/simple/index_loss.h"

namespace keyhole::simple {

using device::kMostLossBytes, device::RowChunks, device::chunk_bits_bytes, device::row_chunks,
    device::draw_chunk;

namespace {

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
  store_loss(p, row.unit, row.query, sums[0]);
}

}  // namespace

int64_t index_loss_bytes(const IndexLossArgs& args) {
  return chunk_bits_bytes(args, row_chunks(args, 0, kMostLossBytes).at_once);
}

void run_index_loss(const IndexLossArgs& args) {
  const auto stream = static_cast<cudaStream_t>(args.launch.stream);
  IndexLossParams p = device::index_loss_params(args);
  if (p.units == 0 || p.q_len == 0) return;
  if (args.has_rows) device::clear_losses(p, stream);
  row_chunks(args, 0, kMostLossBytes).for_each([&](int64_t first, int64_t rows) {
    if (rows == 0) return;
    draw_chunk(args, p, first, rows, args.launch.workspace);
    device::launch("the index loss", index_loss,
                   {unsigned(narrow(rows * p.units, "index_loss: rows")), kLossThreads, 0}, stream,
                   p);
  });
}

}  // namespace keyhole::simple
