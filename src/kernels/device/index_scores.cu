// src/kernels/device/index_scores.cu
#include <algorithm>

#include "base/int_math.h"
#include "kernels/device/index_scores.h"
#include "kernels/device/rows.cuh"

namespace keyhole::device {

int64_t index_score_bits_bytes(const ScoreArgs& args) {
  if (args.visible == nullptr) return 0;
  const int64_t* const n = args.scores.shape;
  return row_bits_bytes(n[0] * n[1], n[2], n[3]);
}

IndexScoreParams index_score_params(const ScoreArgs& args) {
  // Of a vector [batch, heads, length] of any strides.
  const auto vector = [](const TensorView& tensor) {
    return tensor.is_given() ? device_tensor(tensor) : DeviceVector{};
  };
  const TensorView &q = args.q, &k = args.k;
  IndexScoreParams p;
  p.q = device_tensor(q), p.k = device_tensor(k);
  p.w = vector(args.w), p.k_scale = vector(args.k_scale);
  p.scores = device_tensor(args.scores);
  p.batch = narrow(q.shape[0], "index_scores: batch");
  p.groups = narrow(k.shape[1], "index_scores: groups");
  p.heads = narrow(q.shape[1] / std::max<int64_t>(1, k.shape[1]), "index_scores: heads");
  p.head_dim = narrow(q.shape[3], "index_scores: head_dim");
  p.first_query = args.queries.first;
  p.num_queries = args.queries.count;
  p.q_len = q.shape[2];
  p.entries = k.shape[2];
  p.only_visible = args.only_visible;
  if (args.visible != nullptr) {
    p.visible = draw_row_bits(*args.visible, int64_t{p.batch} * p.groups, args.queries, p.entries,
                              args.launch.workspace, static_cast<cudaStream_t>(args.launch.stream));
  }
  return p;
}

}  // namespace keyhole::device
