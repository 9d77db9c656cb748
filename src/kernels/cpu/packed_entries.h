// src/kernels/cpu/packed_entries.h
#pragma once

#include <vector>

#include "base/parallel.h"
#include "kernels/cpu/config.h"
#include "kernels/cpu/scratch.h"

namespace keyhole::cpu {

// All panels of some units, packed for their products.
template <class Products>
class PackedEntries {
  using Packed = typename Products::Packed;

 public:
  explicit PackedEntries(const Products& products) : products_(products) {}

  int64_t bytes_per_unit() const {
    return products_.panels() * products_.panel_size() * int64_t(sizeof(Packed));
  }
  void pack(int64_t first_unit, int64_t last_unit, int threads) {
    first_unit_ = first_unit;
    const int64_t panels = products_.panels(), size = products_.panel_size();
    packed_.reserve((last_unit - first_unit) * panels * size);
    std::vector<Scratch<Packed>> rows(static_cast<size_t>(threads));
    parallel_for((last_unit - first_unit) * panels, threads, [&](int64_t item, int thread) {
      products_.pack(first_unit + item / panels, products_.panel(item % panels),
                     rows[size_t(thread)].reserve(products_.rows_size()),
                     packed_.data() + item * size);
    });
  }
  const Packed* panel(int64_t unit, int64_t p) const {
    return packed_.data() +
           ((unit - first_unit_) * products_.panels() + p) * products_.panel_size();
  }

 private:
  const Products& products_;
  Scratch<Packed> packed_;
  int64_t first_unit_ = 0;
};

}  // namespace keyhole::cpu
