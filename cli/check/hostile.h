// cli/check/hostile.h
// A tensor in the worst company: NaN before it, behind it and between its rows. What a kernel reads
// by mistake poisons its result; what it writes by mistake is found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "keyhole/tensor.h"

namespace keyhole::cli {

class HostileTensor {
 public:
  // shape: [batch, heads, length, dim], [batch, heads, length] or [heads]. With `swaps`, length
  // comes before heads in memory. Rows begin wherever, or at multiples of 16 bytes.
  HostileTensor(DType dtype, std::vector<int64_t> shape, bool swaps = false,
                bool is_aligned = false);

  const TensorView& view() const { return view_; }
  std::span<std::byte> memory() { return memory_; }  // with the NaN around the tensor
  int64_t size() const { return int64_t(places_.size()); }
  // Elements in logical order, last dimension fastest.
  double get(int64_t index) const;
  void set(int64_t index, double value);
  void fill_normal(Random& random);
  void fill(double value);

  // True when every byte that is no element still is what it was.
  bool is_moat_intact() const;
  std::vector<double> values() const;

 private:
  DType dtype_;
  std::vector<std::byte> memory_;
  std::vector<int64_t> places_;  // of each element, counted in elements from the view's data
  TensorView view_;
};

}  // namespace keyhole::cli
