// src/kernels/cpu/problem.h
// What forward and backward share: the sizes of a call, rows of its tensors, and heads in waves.
#pragma once

#include <algorithm>
#include <cmath>

#include "base/int_math.h"
#include "base/parallel.h"
#include "base/weight_rule.h"
#include "kernels/contract.h"
#include "kernels/cpu/config.h"

namespace keyhole::cpu {

struct Problem {
  int64_t batch, heads, kv_heads, group;  // group: query heads per kv head
  int64_t q_len, k_len, head_dim, v_head_dim;
  WeightRule rule;
  const float* sink;  // null: none
  int64_t sink_stride;
  PlanView plan;
  int threads;

  // A unit is one kv head of one batch entry: what is packed together.
  int64_t units() const { return batch * kv_heads; }
  // The factor that the forward pass applies to the keys, or to gathered queries: see SoftmaxRule.
  template <class T>
  T fold_factor() const {
    return SoftmaxRule<Base2Math<T>>::of(rule).fold_factor();
  }
  int64_t num_parts() const { return int64_t(plan.tiles.size() + plan.gathers.size()); }
  double sink_of(int64_t head) const { return double(sink[head * sink_stride]); }
};

template <class Args>
Problem problem_of(const Args& args) {
  const int64_t heads = args.q.shape[1], kv_heads = args.k.shape[1];
  Problem p = {.batch = args.q.shape[0],
               .heads = heads,
               .kv_heads = kv_heads,
               .group = kv_heads > 0 ? heads / kv_heads : 0,
               .q_len = args.q.shape[2],
               .k_len = args.k.shape[2],
               .head_dim = args.q.shape[3],
               .v_head_dim = args.v.shape[3],
               .rule = args.rule,
               .sink = static_cast<const float*>(args.sink.data),
               .sink_stride = args.sink.strides[0],
               .plan = args.plan,
               .threads = args.threads > 0 ? args.threads : max_threads()};
  // With less work than this a second thread costs more than it saves.
  constexpr double kWorthAThread = 1e6;
  const double most = double(p.batch * p.heads) * double(p.q_len) * double(p.k_len) *
                      double(p.head_dim + p.v_head_dim);
  if (most < kWorthAThread) p.threads = 1;
  return p;
}

// One head of one batch entry, by unit and index within the group.
struct Head {
  int64_t batch, head, kv_head;
  int64_t index(const Problem& p) const { return batch * p.heads + head; }  // into group_of
};
inline Head head_of(const Problem& p, int64_t unit, int64_t in_group) {
  const int64_t kv_head = unit % p.kv_heads;
  return {unit / p.kv_heads, kv_head * p.group + in_group, kv_head};
}

// The rows [length][head_dim] of one head of a tensor, or its [length] values.
template <class Element>
struct Rows {
  Element* data;
  int64_t stride;
  Element* operator[](int64_t row) const { return data + row * stride; }
};
template <class Element>
Rows<Element> rows_of(const TensorView& tensor, int64_t batch, int64_t head) {
  return {static_cast<Element*>(tensor.data) + batch * tensor.strides[0] + head * tensor.strides[1],
          tensor.strides[2]};
}

// Equally spaced rows of a tensor: those of a tile, within its residue class.
struct SpacedRows {
  int64_t first, stride, count;
  int64_t operator[](int64_t i) const { return first + i * stride; }
};

// Calls visit(first, last) for waves of units whose memory, `bytes_per_unit` each, fits kPackBytes.
template <class Visit>
void for_each_wave(const Problem& p, int64_t bytes_per_unit, Visit visit) {
  const int64_t wave = std::max<int64_t>(1, kPackBytes / std::max<int64_t>(1, bytes_per_unit));
  for (int64_t first = 0; first < p.units(); first += wave) {
    visit(first, std::min(first + wave, p.units()));
  }
}

}  // namespace keyhole::cpu
