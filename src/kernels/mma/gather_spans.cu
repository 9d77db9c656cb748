// src/kernels/mma/gather_spans.cu
#include "base/check.h"
#include "base/int_math.h"
#include "kernels/device/storage.h"
#include "kernels/mma/gather_launch.h"
#include "kernels/mma/gather_spans.cuh"

namespace keyhole::mma {
namespace {

// 205 KiB of shared memory, and 96.
using TwoSpans = SpanShape<2, 32, 8>;
using OneSpan = SpanShape<1, 16, 4>;

template <class T, class S>
void launch(const BackwardParams& params, const GatherView& view, const SpanLists& lists,
            cudaStream_t stream) {
  const device::Sizes& sizes = params.sizes;
  const auto groups = [](int32_t cols) { return int32_t(ceil_div(cols, S::cols)); };
  SpanParams p;
  p.sizes = sizes;
  p.view = view;
  p.lists = lists;
  p.dv = {params.dout, lists.weights, params.sums.dv, sizes.v_head_dim, groups(sizes.v_head_dim)};
  p.dk = {params.q, lists.gradients, params.sums.dk, sizes.head_dim, groups(sizes.head_dim)};
  const uint64_t heads = uint64_t(lists.heads);
  p.heads_reciprocal = ((uint64_t{1} << 32) + heads - 1) / heads;
  // Kv heads that have lists in the chunk.
  const int64_t units = (lists.first + lists.count - 1) / view.lists - lists.first / view.lists + 1;
  const int64_t ctas =
      units * ceil_div(lists.spans, S::spans) * (p.dv.col_groups + p.dk.col_groups);
  if (ctas == 0) return;
  const auto kernel = gather_spans<T, S>;
  reserve_for_gather<S>(kernel);
  kernel<<<unsigned(narrow(ctas, "key lists: CTAs")), S::threads, S::shared_bytes, stream>>>(p);
  check_cuda(cudaGetLastError(), "launching the gradients of spans of keys");
}

template <class S>
int64_t shared_bytes() {
  return S::shared_bytes + int64_t(sizeof(SpanShared<S>));
}

template <class S>
device::LaunchSpans launch_of(DType dtype) {
  return dtype == DType::f16 ? launch<device::Storage<DType::f16>, S>
                             : launch<device::Storage<DType::bf16>, S>;
}

}  // namespace

device::LaunchSpans span_sums_launch(DType dtype, int64_t available_bytes) {
  if (shared_bytes<TwoSpans>() <= available_bytes) return launch_of<TwoSpans>(dtype);
  KEYHOLE_ASSERT(shared_bytes<OneSpan>() <= available_bytes, "spans of keys need ",
                 shared_bytes<OneSpan>(), " bytes of shared memory per CTA; there are ",
                 available_bytes);
  return launch_of<OneSpan>(dtype);
}

}  // namespace keyhole::mma
