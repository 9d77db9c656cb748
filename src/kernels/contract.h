// src/kernels/contract.h
// The only types a kernel receives. Every tensor has been checked by the API: ranks, sizes, dtypes
// and head counts fit each other, lengths fit the plan.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "keyhole/tensor.h"
#include "plan/view.h"

namespace keyhole {

struct ForwardArgs {
  TensorView q, k, v;  // [batch, heads or kv_heads, length, head_dim]
  TensorView out;      // [batch, heads, q_len, v_head_dim], dtype of q
  TensorView lse;      // [batch, heads, q_len] f32 (f64 for f64 inputs), or not given
  double scale = 1;
  double softcap = 0;  // 0: none
  TensorView sink;     // [heads] f32, or not given
  PlanView plan;
  int threads = 0;
};

struct BackwardArgs {
  TensorView dout, q, k, v, out, lse;
  TensorView dq, dk, dv;
  TensorView sink, dsink;  // [heads] f32, or not given
  double scale = 1;
  double softcap = 0;
  PlanView plan;  // with transposed lists
  int threads = 0;
};

enum class Operation : uint8_t { forward, backward };
const char* to_string(Operation operation);

// One row of the kernel table.
struct KernelEntry {
  std::string name;     // backend.operation.dtype
  std::string backend;  // "cpu", ...
  Operation operation;
  DType dtype;
  int64_t max_head_dim;  // of q, k and of v
  std::vector<TileShape>
      tiles;  // the shapes it can follow; the runtime takes the cheapest for a plan
  // What a list of `visited` pairs in `num_tiles` tiles costs, in units of a pair in the best tile.
  double (*cost)(const TileShape& tile, double num_tiles);
  void (*forward)(const ForwardArgs& args);    // null unless operation == forward
  void (*backward)(const BackwardArgs& args);  // null unless operation == backward
};

}  // namespace keyhole
