// tests/support/gpu/gpu_case.cpp
#include "support/gpu/gpu_case.h"

#include <cuda_runtime_api.h>

#include <memory>

#include "kernels/device/check_cuda.h"
#include "plan/plan_state.h"
#include "support/gpu/fill.h"
#include "support/plan_compare.h"
#include "support/tolerance.h"

namespace keyhole::test {
namespace {

Case count_case(const Case& c) {
  Case counting = with_contiguous_layouts(c);
  counting.regime = Regime::count;
  counting.has_sink = false;
  return counting;
}

std::vector<uint64_t> bits_of(const AllowedPairs& allowed) {
  std::vector<uint64_t> bits((allowed.all().size() + 63) / 64);
  for (size_t pair = 0; pair < allowed.all().size(); ++pair) {
    bits[pair / 64] |= uint64_t{allowed.all()[pair]} << pair % 64;
  }
  return bits;
}

ReferenceInputs reference_inputs(const Case& c, const InputsOnGpu& in, const uint64_t* allowed) {
  const Rounding rules = rounding_of(c, /*rounds_weights=*/false);
  return {.batch = c.batch,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .q_len = c.q_len,
          .k_len = c.k_len,
          .head_dim = c.head_dim,
          .v_head_dim = c.v_head_dim,
          .scale = rules.scale,
          .softcap = rules.softcap,
          .q = in.q.view(),
          .k = in.k.view(),
          .v = in.v.view(),
          .dout = in.dout.view(),
          .sink = in.sink.view(),
          .allowed = allowed};
}

// Thousands of small cases take the same memory again and again: the driver need not give it back
// whenever somebody waits.
void keep_freed_memory() {
  static const bool once = [] {
    cudaMemPool_t pool = nullptr;
    check_cuda(cudaDeviceGetDefaultMemPool(&pool, kTestGpu.ordinal), "asking for the memory pool");
    uint64_t all = ~uint64_t{0};
    check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all),
               "keeping freed memory");
    return true;
  }();
  (void)once;
}

}  // namespace

NumbersOnGpu::NumbersOnGpu(const Case& c, const AllowedPairs& allowed)
    : drawn_(draw_numbers(c, allowed)),
      empty_queries_(drawn_.empty_queries),
      unseen_keys_(drawn_.unseen_keys) {
  for (Numbers* numbers : {&drawn_.q, &drawn_.dout}) {
    if (numbers->is_spoilt != nullptr) numbers->is_spoilt = empty_queries_.get();
  }
  for (Numbers* numbers : {&drawn_.k, &drawn_.v}) {
    if (numbers->is_spoilt != nullptr) numbers->is_spoilt = unseen_keys_.get();
  }
  allocate(c, in);
  in.q.fill(drawn_.q), in.k.fill(drawn_.k), in.v.fill(drawn_.v);
  in.dout.fill(drawn_.dout), in.sink.fill(drawn_.sink);
  for (PoisonedOnGpu* tensor : {&in.q, &in.k, &in.v, &in.dout, &in.sink}) tensor->seal();
}

GpuCase::GpuCase(const Case& the_case)
    : c(the_case),
      pattern(build(c.pattern, c.shape())),
      made(make_plan(pattern, c.shape(), c.policy())),
      allowed(pattern, c.shape()),
      numbers_(c, allowed),
      count_numbers_(count_case(c), allowed),
      allowed_bits_(bits_of(allowed)),
      reference_in_(reference_inputs(c, numbers_.in, allowed_bits_.get())),
      want_(reference_on_gpu(reference_in_)) {
  allocate(with_contiguous_layouts(c), contiguous_in_);
  copy_on_gpu(contiguous_in_.q.view(), in().q.view());
  copy_on_gpu(contiguous_in_.k.view(), in().k.view());
  copy_on_gpu(contiguous_in_.v.view(), in().v.view());
  copy_on_gpu(contiguous_in_.dout.view(), in().dout.view());
  if (c.has_sink) copy_on_gpu(contiguous_in_.sink.view(), in().sink.view());
}

const GpuBounds& GpuCase::bounds(bool rounds_weights) {
  std::optional<GpuBounds>& bounds = bounds_[rounds_weights ? 1 : 0];
  if (!bounds) bounds = bounds_on_gpu(reference_in_, rounding_of(c, rounds_weights), want_);
  return *bounds;
}

std::string GpuCase::compare_plan(TileShape tile) {
  if (!compared_tiles_.insert({tile.q, tile.k}).second) return "";
  return compare_plan_with_pairs(made, allowed, tile);
}

GpuCase& prepared_on_gpu(const Case& the_case) {
  Case c = the_case;
  c.tile = 0, c.threads = 1;  // nothing here depends on them
  // Never destroyed: at the end of a program the driver may be gone before it.
  static auto& last = *new std::unique_ptr<GpuCase>;
  if (!last || !(last->c == c)) {
    keep_freed_memory();
    last.reset();
    last = std::make_unique<GpuCase>(c);
  }
  return *last;
}

}  // namespace keyhole::test
