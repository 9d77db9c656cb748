// cli/bench/inputs.h
// Tensors to measure on: memory of our own with a view on it, on the host or on a GPU, and
// everything one case needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "cli/bench/cases.h"
#include "judge/call_tensors.h"
#include "keyhole/attention.h"
#include "keyhole/lists.h"
#include "keyhole/tensor.h"
#include "runtime/gpu_memory.h"

namespace keyhole::bench {

// Contiguous memory for one tensor, aligned to cache lines. A tensor on a GPU has a copy on the
// host, for the reference.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, std::initializer_list<int64_t> shape, const Device& device = {});

  const TensorView& view() const { return view_; }  // what kernels read and write
  operator const TensorView&() const { return view_; }
  const TensorView& host() const { return host_; }  // what the host reads and writes
  void send() const;                                // host to GPU, where there is one
  void bring_back() const;                          // GPU to host; waits for the kernels before it

  void fill_normal(uint64_t seed);  // nearly standard normal, the same on every machine
  void fill_zero();
  void fill_nan();  // so that what a kernel forgets to write shows
  void begin_with_nan();
  // Zero elsewhere; of one head, or of all.
  void keep_rows(const std::vector<int64_t>& rows, std::optional<int64_t> of_head = {});
  int64_t num_bytes() const { return host_.num_elements() * bytes_of(host_.dtype); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, kAlignment); }
  };
  static constexpr std::align_val_t kAlignment{64};

  void fill_bytes(int byte);

  std::unique_ptr<std::byte[], Free> memory_;
  GpuMemory gpu_memory_;  // empty where the tensor lies on the host
  TensorView host_, view_;
};

// The lists of a plan of key lists as an index tensor that all heads share.
class KeyIndices {
 public:
  KeyIndices(const Case& c, const Plan& plan, bool is_wide);
  const IndexView& view() const { return view_; }

 private:
  std::vector<int64_t> wide_;
  std::vector<int32_t> narrow_;
  GpuMemory gpu_memory_;
  IndexView view_;
};

// Room for the keys that have weight, kSupportKeys a query: the forward pass of entmax and top_k
// writes them, the backward pass reads them.
class SupportKeys {
 public:
  explicit SupportKeys(const Case& c);
  const IndexView& view() const { return view_; }  // what kernels read and write
  int64_t num_bytes() const { return int64_t(keys_.size() * sizeof(int32_t)); }
  // The rows, [heads][q_len][kSupportKeys], after a forward pass; waits for it.
  const std::vector<int32_t>& bring_back();

 private:
  std::vector<int32_t> keys_;
  IndexView view_;
  GpuMemory gpu_memory_;
};

// What one call reads and writes; gradients only where it has a backward pass.
struct Tensors {
  Tensor q, k, v, out, lse;
  Tensor dout, dq, dk, dv;

  judge::CallTensors host() const;
};

// All tensors of a case.
struct Inputs : Tensors {
  explicit Inputs(const Case& c);
  int64_t num_bytes() const;
  bool fits(const Case& c) const;  // another case of the same shapes may use them again
  void run_forward(const Lists& lists, const AttentionOptions& options) const;
  void run_backward(const Lists& lists, const AttentionOptions& options) const;

  Case made_for;
};

// The elements [first, first + count) of one dimension.
TensorView part_of(TensorView view, int d, int64_t first, int64_t count);

}  // namespace keyhole::bench
