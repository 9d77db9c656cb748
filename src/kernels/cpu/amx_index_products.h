// src/kernels/cpu/amx_index_products.h
// Products of an indexer on AMX tiles, with sums in fp32: bf16 and f16 as they are, e4m3 as bf16,
// which holds all its numbers.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/indexer.h"
#include "kernels/cpu/pack_words.h"
#include "kernels/cpu/scratch.h"

namespace keyhole::cpu {

// All 256 numbers of e4m3 as bf16.
inline constexpr std::array<BFloat16, 256> kE4m3AsBFloat16 = [] {
  std::array<BFloat16, 256> values{};
  for (size_t i = 0; i < values.size(); ++i) values[i] = to_bf16(kE4m3Values[i]);
  return values;
}();

// Storage: of q and k.
template <class Storage>
class AmxIndexProducts : public Indexer<float> {
  using Factor = std::conditional_t<std::is_same_v<Storage, E4m3>, BFloat16, Storage>;

 public:
  using Packed = uint32_t;
  using Session = amx::Tiles;
  struct Queries {
    Scratch<Factor> q;  // [count][heads][depth], in whole tiles
    Scratch<float> w;   // [count][heads]
    int64_t count = 0;
  };
  struct Strip {
    Scratch<float> products;  // [count][heads][kPanel], in whole tiles
  };

  AmxIndexProducts(const TensorView& q, const TensorView& k, const TensorView& w,
                   const TensorView& k_scale)
      : Indexer(q, k, w, k_scale),
        simd_(primitives<Factor>()),
        depth_(amx::padded_depth(head_dim())) {}

  int64_t panel_size() const { return depth_ / 2 * kPanel; }
  int64_t rows_size() const { return kPanel * depth_; }  // of words; more than they need

  void load_queries(int64_t unit, int64_t first, int64_t count, Queries& to) const {
    to.count = count;
    // The last product may read rows behind those of its queries; what they give is not used.
    const int64_t rows = count * heads(), room = rows + amx::kRows;
    Factor* const q = to.q.reserve(room * depth_);
    std::fill_n(q + rows * depth_, amx::kRows * depth_, Factor{});
    for_each_query_row(unit, first, count, [&](const TensorHead& head, int64_t query, int64_t i) {
      copy_row(head.rows<Storage>()[query], q + i * depth_);
    });
    load_weights(unit, first, count, to.w.reserve(rows));
  }

  void pack(int64_t unit, const EntryPanel& panel, uint32_t* rows, uint32_t* to) const {
    auto* const copied = reinterpret_cast<Factor*>(rows);
    const TensorHead head = entry_rows(unit);
    const auto from = head.rows<Storage>();
    for (int64_t x = 0; x < panel.width; ++x) copy_row(from[panel.key(x)], copied + x * depth_);
    std::fill(copied + panel.width * depth_, copied + kPanel * depth_, Factor{});
    simd_.load_word_columns(bits_of(copied), depth_, kPanel, depth_ / 2, to, kPanel);
  }

  void score(const Queries& queries, const uint32_t* panel, const float* scales, float* scores,
             int64_t stride, Strip& strip) const {
    const int64_t step = queries_per_product();
    for (int64_t first = 0; first < queries.count; first += step) {
      const int64_t count = std::min(step, queries.count - first);
      const int64_t rows = amx::padded_rows(count * heads());
      float* const products = strip.products.reserve(rows * kPanel);
      amx::multiply(Traits<Factor>::dtype,
                    {.rows = rows,
                     .cols = kPanel,
                     .depth = depth_,
                     .a = bits_of(queries.q.data() + first * heads() * depth_),
                     .a_stride = depth_,
                     .b = panel,
                     .b_stride = kPanel,
                     .c = products,
                     .c_stride = kPanel});
      sum_heads(products, count, queries.w.data() + first * heads(), scales,
                scores + first * stride, stride);
    }
  }

 private:
  void copy_row(const Storage* from, Factor* to) const {
    for (int64_t x = 0; x < head_dim(); ++x) {
      if constexpr (std::is_same_v<Storage, E4m3>) {
        to[x] = kE4m3AsBFloat16[from[x].bits];
      } else {
        to[x] = from[x];
      }
    }
    std::fill(to + head_dim(), to + depth_, Factor{});
  }

  const Primitives<Factor>& simd_;
  const int64_t depth_;  // head_dim in whole tiles
};

}  // namespace keyhole::cpu
