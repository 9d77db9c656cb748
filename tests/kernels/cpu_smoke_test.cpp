// tests/kernels/cpu_smoke_test.cpp
// The cpu kernels against a naive fp64 loop, on plans made by hand: tiles, residue classes,
// gathered keys and all three at once; ragged lengths, odd head dims, grouped heads, NaN in every
// place that must not be read, canaries in every place that must not be written.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>
#include <ostream>
#include <random>

#include "judge/poisoned_tensor.h"
#include "kernels/cpu/entries.h"
#include "kernels/cpu/primitives.h"
#include "kernels/hand_plan.h"

namespace keyhole::testing {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// [batch, heads, length, dim] stored as [batch][length][heads][dim], with canaries between rows:
// NaN to those who read them.
class Tensor : public judge::PoisonedTensor {
 public:
  Tensor(DType dtype, int64_t batch, int64_t heads, int64_t length, int64_t dim)
      : PoisonedTensor(judge::place_apart(dtype, {batch, heads, length, dim}, /*swaps=*/true),
                       /*is_output=*/true) {}
  TensorView view_3d() const {  // for lse: the first element of each row
    TensorView rows = view();
    rows.rank = 3;
    return rows;
  }
  double get(int64_t b, int64_t h, int64_t i, int64_t x) const {
    return PoisonedTensor::get(index(b, h, i, x));
  }
  void set(int64_t b, int64_t h, int64_t i, int64_t x, double value) {
    PoisonedTensor::set(index(b, h, i, x), value);
  }
  void fill_row(int64_t b, int64_t h, int64_t i, double value) {
    for (int64_t x = 0; x < size(3); ++x) set(b, h, i, x, value);
  }
  int64_t size(int axis) const { return view().shape[axis]; }
  int64_t index(int64_t b, int64_t h, int64_t i, int64_t x) const {
    return ((b * size(1) + h) * size(2) + i) * size(3) + x;
  }
};

// Which part of the plan has a pair: 0 and 1 are tiles (1 in residue classes), 2 is gathered;
// -1: the pair does not attend. Group 1 is another pattern than group 0.
using PartOf = int (*)(int32_t group, int64_t q, int64_t k);

struct Case {
  const char* name;
  DType dtype;
  int64_t batch, heads, kv_heads, q_len, k_len, head_dim, v_head_dim;
  TileShape tile;
  PartOf part_of;
  int32_t stride = 1;  // of part 1
  double softcap = 0;
  bool has_sink = false;
};
std::ostream& operator<<(std::ostream& stream, const Case& c) { return stream << c.name; }

int dense(int32_t, int64_t, int64_t) { return 0; }
int causal(int32_t, int64_t q, int64_t k) { return k <= q ? 0 : -1; }
int streaming(int32_t group, int64_t q, int64_t k) {
  return k <= q && (q - k < 20 + 30 * group || k < 5) ? 0 : -1;
}
int nobody(int32_t, int64_t, int64_t) { return -1; }
int holes(int32_t group, int64_t q, int64_t k) {  // rows and columns without a pair
  return q % 7 != 0 && k % 5 != 2 && (q * 31 + k * 17 + group) % 3 != 0 ? 0 : -1;
}
int dilated(int32_t, int64_t q, int64_t k) { return (q + 300 - k) % 3 == 0 && k <= q ? 1 : -1; }
int gathered(int32_t group, int64_t q, int64_t k) {
  return (q * 7 + k * 13) % 11 == group ? 2 : -1;
}
int all_forms(int32_t group, int64_t q, int64_t k) {  // with q_len == k_len - 3 * n
  if (q % 13 == 5) return -1;
  if (k <= q && q - k < 9) return 0;
  if ((q + 300 - k) % 3 == 0) return 1;
  return gathered(group, q, k);
}

const Case kCases[] = {
    {"dense", DType::f32, 1, 2, 2, 130, 130, 64, 64, {64, 64}, dense},
    {"causal ragged", DType::f32, 2, 4, 2, 101, 101, 40, 24, {64, 64}, causal},
    {"small tiles", DType::f32, 1, 2, 1, 77, 77, 33, 65, {16, 16}, streaming},
    {"middle tiles, long strips", DType::f32, 1, 2, 2, 200, 300, 20, 16, {32, 32}, dense},
    {"odd head dims", DType::f32, 1, 1, 1, 50, 70, 1, 3, {32, 32}, holes},
    {"wide head dims", DType::f32, 1, 2, 1, 40, 40, 576, 573, {64, 64}, causal},
    {"nobody attends", DType::f32, 1, 2, 2, 20, 20, 8, 8, {16, 16}, nobody},
    {"no keys", DType::f32, 1, 1, 1, 5, 0, 8, 8, {16, 16}, dense},
    {"one token", DType::f32, 1, 1, 1, 1, 1, 7, 5, {64, 64}, dense},
    {"softcap", DType::f32, 1, 2, 2, 90, 90, 32, 32, {32, 32}, causal, 1, 3.0},
    {"sink", DType::f32, 2, 4, 2, 66, 66, 16, 16, {64, 64}, holes, 1, 0, true},
    {"sink and nobody", DType::f32, 1, 2, 2, 20, 20, 8, 8, {16, 16}, nobody, 1, 0, true},
    {"dilated", DType::f32, 1, 2, 1, 100, 100, 32, 20, {16, 16}, dilated, 3},
    {"gathered", DType::f32, 1, 4, 2, 60, 90, 24, 40, {16, 16}, gathered},
    {"gathered softcap sink",
     DType::f32,
     1,
     4,
     2,
     60,
     90,
     24,
     40,
     {16, 16},
     gathered,
     1,
     2.0,
     true},
    {"all forms", DType::f32, 2, 4, 2, 84, 90, 17, 19, {32, 32}, all_forms, 3},
    {"all forms, softcap, sink",
     DType::f32,
     1,
     4,
     2,
     84,
     90,
     17,
     19,
     {16, 16},
     all_forms,
     3,
     4,
     true},
    {"fp64", DType::f64, 1, 4, 2, 70, 75, 21, 35, {32, 32}, holes},
    {"fp64 all forms", DType::f64, 1, 4, 2, 84, 90, 17, 19, {16, 16}, all_forms, 3, 4, true},
    {"fp16", DType::f16, 1, 4, 2, 70, 75, 21, 35, {32, 32}, holes},
    {"fp16 all forms", DType::f16, 1, 2, 2, 84, 90, 32, 64, {64, 64}, all_forms, 3},
    {"bf16", DType::bf16, 1, 4, 2, 70, 75, 21, 35, {32, 32}, holes},
};

// A plan by hand, tensors with random contents, and every array a call needs.
struct Call {
  explicit Call(const Case& with)
      : c(with),
        compute(c.dtype == DType::f64 ? DType::f64 : DType::f32),
        q(c.dtype, c.batch, c.heads, c.q_len, c.head_dim),
        k(c.dtype, c.batch, c.kv_heads, c.k_len, c.head_dim),
        v(c.dtype, c.batch, c.kv_heads, c.k_len, c.v_head_dim),
        out(c.dtype, c.batch, c.heads, c.q_len, c.v_head_dim),
        lse(compute, c.batch, c.heads, c.q_len, 1),
        dout(c.dtype, c.batch, c.heads, c.q_len, c.v_head_dim),
        dq(c.dtype, c.batch, c.heads, c.q_len, c.head_dim),
        dk(c.dtype, c.batch, c.kv_heads, c.k_len, c.head_dim),
        dv(c.dtype, c.batch, c.kv_heads, c.k_len, c.v_head_dim) {
    std::mt19937 random(17);
    std::normal_distribution<double> normal;
    for (Tensor* tensor : {&q, &k, &v, &dout})
      tensor->fill([&](int64_t) { return normal(random); });
    for (int64_t h = 0; h < c.heads; ++h) sink.push_back(float(normal(random)));
    dsink.resize(size_t(c.heads));
    for (int64_t i = 0; i < c.batch * c.heads; ++i) group_of.push_back(int32_t(i % 2));
    make_parts();
  }
  void make_parts() {
    const auto in_part = [this](int part) {
      return [this, part](int32_t g, int64_t i, int64_t j) { return c.part_of(g, i, j) == part; };
    };
    bool used[3] = {};
    for (int32_t g = 0; g < 2; ++g)
      for (int64_t i = 0; i < c.q_len; ++i)
        for (int64_t j = 0; j < c.k_len; ++j)
          if (const int part = c.part_of(g, i, j); part >= 0) used[part] = true;
    if (used[0] || !(used[1] || used[2])) {
      tiles.emplace_back(c.q_len, c.k_len, c.tile, 1, 2, group_of, in_part(0));
    }
    if (used[1]) tiles.emplace_back(c.q_len, c.k_len, c.tile, c.stride, 2, group_of, in_part(1));
    if (used[2]) gathers.emplace_back(c.q_len, c.k_len, 1, 2, group_of, in_part(2));
    for (const HandTiles& part : tiles) tile_views.push_back(part.view());
    for (const HandGather& part : gathers) gather_views.push_back(part.view());
  }
  bool attends(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int32_t g = group_of[size_t(b * c.heads + h)];
    return g >= 0 && c.part_of(g, i, j) >= 0;
  }
  void run_forward(int threads) {
    ForwardArgs args;
    args.q = q.view(), args.k = k.view(), args.v = v.view(), args.out = out.view();
    args.lse = lse.view_3d();
    args.rule.scale = scale();
    args.rule.softcap = c.softcap;
    if (c.has_sink) args.sink = TensorView(sink.data(), DType::f32, {c.heads});
    args.plan = {tile_views, gather_views};
    args.threads = threads;
    entry(Operation::forward).forward(args);
  }
  void run_backward(int threads) {
    BackwardArgs args;
    args.q = q.view(), args.k = k.view(), args.v = v.view(), args.out = out.view();
    args.dout = dout.view(), args.lse = lse.view_3d();
    args.dq = dq.view(), args.dk = dk.view(), args.dv = dv.view();
    args.rule.scale = scale();
    args.rule.softcap = c.softcap;
    if (c.has_sink) {
      args.sink = TensorView(sink.data(), DType::f32, {c.heads});
      args.dsink = TensorView(dsink.data(), DType::f32, {c.heads});
    }
    args.plan = {tile_views, gather_views};
    args.threads = threads;
    entry(Operation::backward).backward(args);
  }
  double scale() const { return 1 / std::sqrt(double(c.head_dim)); }
  KernelEntry entry(Operation operation) const {
    for (const KernelEntry& entry : cpu::entries()) {
      if (entry.operation == operation && entry.dtype == c.dtype) return entry;
    }
    throw std::logic_error("no such entry");
  }

  const Case& c;
  DType compute;
  Tensor q, k, v, out, lse, dout, dq, dk, dv;
  std::vector<float> sink, dsink;
  std::vector<int32_t> group_of;
  std::deque<HandTiles> tiles;
  std::deque<HandGather> gathers;
  std::vector<TileView> tile_views;
  std::vector<GatherView> gather_views;
};

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1e-12;
    case DType::f32:
      return 2e-5;
    case DType::f16:
      return 4e-3;
    case DType::bf16:
      return 3e-2;
    case DType::e4m3:  // attention has none
      break;
  }
  return 0;
}

// The definition, pair by pair.
struct Naive {
  std::vector<double> out, lse, dq, dk, dv, dsink;

  explicit Naive(const Call& s)
      : out(count(s.out)),
        lse(count(s.lse)),
        dq(count(s.dq)),
        dk(count(s.dk)),
        dv(count(s.dv)),
        dsink(size_t(s.c.heads)) {
    for (int64_t b = 0; b < s.c.batch; ++b)
      for (int64_t h = 0; h < s.c.heads; ++h)
        for (int64_t i = 0; i < s.c.q_len; ++i) add_row(s, b, h, i);
  }
  static size_t count(const Tensor& t) { return size_t(t.num_elements()); }
  static size_t at(const Tensor& t, int64_t b, int64_t h, int64_t i, int64_t x) {
    return size_t(t.index(b, h, i, x));
  }
  void add_row(const Call& s, int64_t b, int64_t h, int64_t i) {
    const Case& c = s.c;
    const int64_t kv = h / (c.heads / c.kv_heads);
    const double sink = c.has_sink ? double(s.sink[size_t(h)]) : -kInfinity;
    std::vector<int64_t> keys;
    std::vector<double> scores, slopes;
    double top = sink;
    for (int64_t j = 0; j < c.k_len; ++j) {
      if (!s.attends(b, h, i, j)) continue;
      double dot = 0;
      for (int64_t x = 0; x < c.head_dim; ++x) dot += s.q.get(b, h, i, x) * s.k.get(b, kv, j, x);
      double score = dot * s.scale(), slope = s.scale();
      if (c.softcap > 0) {
        const double bent = std::tanh(score / c.softcap);
        score = c.softcap * bent, slope *= 1 - bent * bent;
      }
      keys.push_back(j), scores.push_back(score), slopes.push_back(slope);
      top = std::max(top, score);
    }
    double sum = top == -kInfinity ? 0 : std::exp(sink - top);
    for (const double score : scores) sum += std::exp(score - top);
    lse[at(s.lse, b, h, i, 0)] = sum == 0 ? -kInfinity : top + std::log(sum);
    for (size_t n = 0; n < keys.size(); ++n)
      for (int64_t x = 0; x < c.v_head_dim; ++x)
        out[at(s.out, b, h, i, x)] += std::exp(scores[n] - top) / sum * s.v.get(b, kv, keys[n], x);
    if (keys.empty()) return;
    double delta = 0;
    for (int64_t x = 0; x < c.v_head_dim; ++x)
      delta += s.dout.get(b, h, i, x) * out[at(s.out, b, h, i, x)];
    for (size_t n = 0; n < keys.size(); ++n) {
      const int64_t j = keys[n];
      const double p = std::exp(scores[n] - top) / sum;
      double dp = 0;
      for (int64_t x = 0; x < c.v_head_dim; ++x) {
        dp += s.dout.get(b, h, i, x) * s.v.get(b, kv, j, x);
        dv[at(s.dv, b, kv, j, x)] += p * s.dout.get(b, h, i, x);
      }
      const double ds = p * (dp - delta) * slopes[n];
      for (int64_t x = 0; x < c.head_dim; ++x) {
        dq[at(s.dq, b, h, i, x)] += ds * s.k.get(b, kv, j, x);
        dk[at(s.dk, b, kv, j, x)] += ds * s.q.get(b, h, i, x);
      }
    }
    if (c.has_sink) dsink[size_t(h)] -= std::exp(sink - top) / sum * delta;
  }
};

void expect_near(const Tensor& got, const std::vector<double>& want, double allowed,
                 const std::string& what) {
  double worst = 0;
  for (int64_t b = 0; b < got.size(0); ++b)
    for (int64_t h = 0; h < got.size(1); ++h)
      for (int64_t i = 0; i < got.size(2); ++i)
        for (int64_t x = 0; x < got.size(3); ++x) {
          const double w = want[Naive::at(got, b, h, i, x)], g = got.get(b, h, i, x);
          if (g == w || (std::isnan(g) && std::isnan(w))) continue;
          const double error = std::abs(g - w) / (1 + std::abs(w));
          worst = std::max(worst, std::isnan(error) ? kInfinity : error);
        }
  EXPECT_LE(worst, allowed) << what;
  EXPECT_EQ(got.damage(), "") << what;
}

void expect_forward(Call& s, const Naive& want) {
  expect_near(s.out, want.out, tolerance(s.c.dtype), "out");
  expect_near(s.lse, want.lse, tolerance(s.compute), "lse");
}
void expect_backward(Call& s, const Naive& want) {
  const double allowed = 4 * tolerance(s.c.dtype);
  expect_near(s.dq, want.dq, allowed, "dq");
  expect_near(s.dk, want.dk, allowed, "dk");
  expect_near(s.dv, want.dv, allowed, "dv");
  for (size_t h = 0; s.c.has_sink && h < s.dsink.size(); ++h) {
    EXPECT_NEAR(s.dsink[h], want.dsink[h], 1e-5 + allowed * (1 + std::abs(want.dsink[h]))) << h;
  }
}

class CpuKernels : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Cases, CpuKernels, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return "Case" + std::to_string(test.index); });

TEST_P(CpuKernels, FollowTheDefinition) {
  Call s(GetParam());
  s.run_forward(2);
  const Naive want(s);
  expect_forward(s, want);
  s.run_backward(2);
  expect_backward(s, want);
}

TEST_P(CpuKernels, GiveTheSameBitsForAnyNumberOfThreads) {
  Call one(GetParam());
  one.run_forward(1);
  one.run_backward(1);
  for (int threads = 2; threads <= 5; ++threads) {
    Call many(GetParam());
    many.run_forward(threads);
    many.run_backward(threads);
    EXPECT_EQ(one.out.memory(), many.out.memory()) << threads;
    EXPECT_EQ(one.lse.memory(), many.lse.memory()) << threads;
    EXPECT_EQ(one.dq.memory(), many.dq.memory()) << threads;
    EXPECT_EQ(one.dk.memory(), many.dk.memory()) << threads;
    EXPECT_EQ(one.dv.memory(), many.dv.memory()) << threads;
    EXPECT_EQ(one.dsink, many.dsink) << threads;
  }
}

// Keys 3, 4 and 40 are attended by nobody, queries 1 and 45 attend to nothing.
int moat(int32_t group, int64_t q, int64_t k) {
  if (k == 3 || k == 4 || k == 40 || q == 1 || q == 45) return -1;
  return all_forms(group, q, k);
}

TEST(CpuMoat, WhatNobodyAttendsToReachesNobody) {
  for (const bool has_sink : {false, true}) {
    const Case c = {"moat", DType::f32, 1, 4, 2, 84, 90, 17, 19, {32, 32}, moat, 3, 0, has_sink};
    Call s(c);
    const Naive want(s);
    for (int64_t h = 0; h < c.kv_heads; ++h) {
      s.k.fill_row(0, h, 3, kNaN), s.v.fill_row(0, h, 3, kNaN);
      s.k.fill_row(0, h, 4, kInfinity), s.v.fill_row(0, h, 4, -kInfinity);
      s.k.fill_row(0, h, 40, 3e38), s.v.fill_row(0, h, 40, 3e38);
    }
    s.run_forward(2);
    expect_forward(s, want);
    for (int64_t h = 0; h < c.heads; ++h) {
      for (const int64_t query : {1, 45}) {
        s.q.fill_row(0, h, query, kNaN), s.dout.fill_row(0, h, query, kNaN);
      }
    }
    s.run_backward(2);
    expect_backward(s, want);
  }
}

TEST(CpuMoat, WhatIsAttendedShows) {
  const Case c = {"poison", DType::f32, 1, 2, 1, 70, 70, 16, 16, {32, 32}, causal};
  Call s(c);
  s.v.set(0, 0, 50, 2, kNaN);
  s.k.set(0, 0, 60, 0, kNaN);
  s.run_forward(2);
  const Naive want(s);
  expect_forward(s, want);
  EXPECT_TRUE(std::isnan(s.out.get(0, 0, 50, 2)));
  EXPECT_FALSE(std::isnan(s.out.get(0, 0, 50, 1)));
  EXPECT_TRUE(std::isnan(s.out.get(0, 1, 65, 0)));
}

TEST(CpuHeads, AHeadWithoutAListIsEmpty) {
  for (PartOf part_of : {streaming, all_forms, gathered}) {
    const Case c = {"one head less", DType::f32, 1, 4, 2, 84, 90, 16, 16, {16, 16}, part_of, 3};
    Call s(c);
    s.group_of[2] = -1;
    s.tiles.clear(), s.gathers.clear(), s.tile_views.clear(), s.gather_views.clear();
    s.make_parts();
    s.run_forward(2);
    const Naive want(s);
    expect_forward(s, want);
    s.run_backward(2);
    expect_backward(s, want);
  }
}

TEST(CpuPlans, WithoutAnyPartEveryRowIsEmpty) {
  const Case c = {"no part", DType::f32, 1, 2, 1, 9, 9, 8, 8, {16, 16}, nobody};
  Call s(c);
  s.tile_views.clear();
  s.run_forward(1);
  const Naive want(s);
  expect_forward(s, want);
  s.run_backward(1);
  expect_backward(s, want);
}

// exp(lse) counts the keys when q is 0, whatever the list looks like.
TEST(CpuProbes, LseCountsTheKeys) {
  const Case c = {"count", DType::f32, 1, 2, 2, 90, 90, 8, 8, {16, 16}, all_forms, 3};
  Call s(c);
  s.q.fill(0);
  s.run_forward(1);
  for (int64_t h = 0; h < c.heads; ++h) {
    for (int64_t i = 0; i < c.q_len; ++i) {
      int64_t keys = 0;
      for (int64_t j = 0; j < c.k_len; ++j) keys += s.attends(0, h, i, j);
      EXPECT_NEAR(std::exp(s.lse.get(0, h, i, 0)), double(keys), 1e-4 * double(keys)) << i;
    }
  }
}

}  // namespace
}  // namespace keyhole::testing
