// src/kernels/sm80/index_loss_lists.cu
// The keys of rows from their bits, a CTA a row: so it does not matter whether a plan or an index
// tensor drew them, in which order, or how often.
#include "kernels/device/cta_sum.cuh"
#include "kernels/device/launch.h"
#include "kernels/device/loss_sums.cuh"
#include "kernels/device/span_lists.h"
#include "kernels/sm80/index_loss_launch.h"

namespace keyhole::sm80 {
namespace {

constexpr int32_t kListThreads = 128;
constexpr int32_t kSpanWords = device::kSpanKeys / 32;

__global__ void __launch_bounds__(kListThreads)
    list_keys(const __grid_constant__ LossPairs p, bool with_gradients) {
  __shared__ device::CtaSum<kListThreads> sum;
  const LossLists& lists = p.lists;
  const int64_t row = blockIdx.x, rows = int64_t{p.loss.units} * p.loss.num_rows;
  const auto unit = int32_t(row / p.loss.num_rows);
  const int64_t index = row - unit * p.loss.num_rows, query = device::query_at(p.loss, index);
  bool is_empty = query < 0;
  if (with_gradients && !is_empty) {
    const int32_t batch = unit / p.loss.groups, group = unit % p.loss.groups;
    is_empty = p.loss.stats.row<const float>(batch, group, query)[1] == 0;
  }
  const uint32_t* const bits = p.loss.listed.row(unit, index);
  int32_t* const keys = lists.keys + row * lists.room;
  const int32_t thread = int32_t(threadIdx.x);
  int32_t place = 0;
  for (int64_t first = 0; first < p.loss.listed.words; first += kListThreads) {
    const int64_t word = first + thread;
    uint32_t left = !is_empty && word < p.loss.listed.words ? bits[word] : 0;
    const auto sums = sum.scan(uint32_t(__popc(left)));
    int32_t at = place + int32_t(sums.before);
    const bool begins_span = word % kSpanWords == 0 && word / kSpanWords < lists.spans;
    if (lists.begin != nullptr && begins_span) lists.begin[word / kSpanWords * rows + row] = at;
    for (; left != 0; left &= left - 1) keys[at++] = int32_t(word * 32 + __ffs(int(left)) - 1);
    place += int32_t(sums.all);
  }
  if (thread != 0) return;
  lists.counts[row] = place;
  if (lists.begin != nullptr) lists.begin[lists.spans * rows + row] = place;
}

}  // namespace

void list_loss_keys(const LossPairs& params, bool with_gradients, cudaStream_t stream) {
  const int64_t rows = int64_t{params.loss.units} * params.loss.num_rows;
  if (rows == 0) return;
  device::launch("the key lists of an index loss", list_keys, {unsigned(rows), kListThreads, 0},
                 stream, params, with_gradients);
}

}  // namespace keyhole::sm80
