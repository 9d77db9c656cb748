// tests/gpu/large_test.cpp
// Tensors of more than 2^31 elements: rows of their last heads, forward and backward, against the
// formulas in double over the few rows that matter to them.
#include <cmath>
#include <iostream>

#include "base/dtype.h"
#include "gpu/gpu_problem.h"

namespace keyhole::test {
namespace {

using LargeTensors = GpuTest;

// Element 2^31 is the first of head 128, of q and of k.
constexpr int64_t kHeads = 130, kLength = 131072, kDim = 128;
constexpr int64_t kSeen = 128;  // keys that "causal & window(127)" lets a query see
constexpr int64_t kNeeded = 60'000'000'000;
static_assert(kHeads * kLength * kDim > int64_t{1} << 31);

using Row = std::vector<float>;
using Rows = std::vector<Row>;

Rows rows_of(const GpuTensor& tensor, int64_t head, int64_t first, int64_t count) {
  const int64_t width = tensor.view().rank == 4 ? kDim : 1;
  const Row all = tensor.read((head * kLength + first) * width, count * width);
  Rows rows;
  for (int64_t i = 0; i < count; ++i) {
    rows.emplace_back(all.begin() + i * width, all.begin() + (i + 1) * width);
  }
  return rows;
}

double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t x = 0; x < a.size(); ++x) sum += double(a[x]) * double(b[x]);
  return sum;
}
double score(const Row& q, const Row& k) { return dot(q, k) / std::sqrt(double(kDim)); }

// A weighted sum of rows, and how large its terms are: what its rounding errors are measured by.
struct Sum {
  std::vector<double> total = std::vector<double>(kDim), size = std::vector<double>(kDim);

  void add(double weight, const Row& row) {
    for (size_t x = 0; x < row.size(); ++x) {
      total[x] += weight * double(row[x]);
      size[x] += std::abs(weight * double(row[x]));
    }
  }
  // Weights are rounded to bf16, and so is the result; the rest is room for fp32.
  void expect(const Row& got, const std::string& what) const {
    for (size_t x = 0; x < got.size(); ++x) {
      const double allowed = 3 * rounding_unit(DType::bf16) * size[x] + 1e-5;
      ASSERT_LE(std::abs(double(got[x]) - total[x]), allowed) << what << ", column " << x;
    }
  }
};

// Around one position: the keys that its query sees, and the queries that see its key.
struct Around {
  Rows k, v;               // ... position
  Rows q, dout, out, lse;  // position ...
  Row dq, dk, dv;

  Around(const GpuProblem& p, int64_t head, int64_t position) {
    const int64_t first = std::max<int64_t>(0, position - kSeen + 1), before = position - first + 1;
    const int64_t after = std::min(kSeen, kLength - position);
    k = rows_of(p.k, head, first, before), v = rows_of(p.v, head, first, before);
    q = rows_of(p.q, head, position, after), dout = rows_of(p.dout, head, position, after);
    out = rows_of(p.out, head, position, after), lse = rows_of(p.lse, head, position, after);
    dq = rows_of(p.dq, head, position, 1)[0];
    dk = rows_of(p.dk, head, position, 1)[0], dv = rows_of(p.dv, head, position, 1)[0];
  }
};

void check_forward_at(const Around& at, const std::string& what) {
  double sum = 0;  // of numbers far from overflow: scores are a few units
  for (const Row& key : at.k) sum += std::exp(score(at.q[0], key));
  ASSERT_NEAR(double(at.lse[0][0]), std::log(sum), 1e-4) << what << ", lse";
  Sum out;
  for (size_t j = 0; j < at.k.size(); ++j) {
    out.add(std::exp(score(at.q[0], at.k[j])) / sum, at.v[j]);
  }
  out.expect(at.out[0], what + ", out");
}

void check_backward_at(const Around& at, const std::string& what) {
  const double scale = 1 / std::sqrt(double(kDim));
  // dp / ds of query i (of those from here on) and a key: the backward pass takes out and lse as
  // given.
  const auto weight = [&](size_t i, const Row& key) {
    return std::exp(score(at.q[i], key) - double(at.lse[i][0]));
  };
  const auto score_gradient = [&](size_t i, const Row& key, const Row& value) {
    return weight(i, key) * (dot(at.dout[i], value) - dot(at.dout[i], at.out[i])) * scale;
  };
  Sum dq, dk, dv;
  for (size_t j = 0; j < at.k.size(); ++j) dq.add(score_gradient(0, at.k[j], at.v[j]), at.k[j]);
  for (size_t i = 0; i < at.q.size(); ++i) {
    dk.add(score_gradient(i, at.k.back(), at.v.back()), at.q[i]);
    dv.add(weight(i, at.k.back()), at.dout[i]);
  }
  dq.expect(at.dq, what + ", dq");
  dk.expect(at.dk, what + ", dk");
  dv.expect(at.dv, what + ", dv");
}

TEST_F(LargeTensors, RowsBehindElement2To31AreRight) {
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "asking for free memory");
  if (int64_t(free) < kNeeded) {
    GTEST_SKIP() << free << " bytes are free on the GPU; this test takes up to " << kNeeded;
  }
  const GpuProblem problem({.heads = kHeads,
                            .kv_heads = kHeads,
                            .q_len = kLength,
                            .k_len = kLength,
                            .head_dim = kDim,
                            .has_sink = false});
  const Plan made = plan(parse("causal & window(127)"), kLength, kLength);
  Random random(3);
  int64_t positions = 0;
  for (const std::string& backend : gpu_backends(Operation::backward, DType::bf16)) {
    problem.spoil(Operation::forward);
    problem.forward(made, for_forward(by_backend(backend)));
    for (const bool is_deterministic : {true, false}) {
      problem.spoil(Operation::backward);
      AttentionOptions options = by_backend(backend);
      options.deterministic = is_deterministic;
      problem.backward(made, options);
      for (const int64_t head : {int64_t{0}, int64_t{127}, int64_t{128}, kHeads - 1}) {
        for (const int64_t position :
             {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{128}, random.below(kLength),
              random.below(kLength), kLength - 65, kLength - 1}) {
          const Around at(problem, head, position);
          const std::string what = say(backend, is_deterministic ? " deterministic" : "", ", head ",
                                       head, ", position ", position);
          check_forward_at(at, what);
          check_backward_at(at, what);
          if (HasFatalFailure()) return;
          ++positions;
        }
      }
    }
  }
  std::cout << positions << " positions of tensors of " << kHeads * kLength * kDim << " elements\n";
}

}  // namespace
}  // namespace keyhole::test
