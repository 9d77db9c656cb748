// tests/kernels/laws_test.cpp
// Laws that hold without an oracle: merging, grouped heads, batches, reloaded plans, convexity, and
// the conservation of gradients.
#include "support/laws.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/dtype.h"
#include "base/random.h"
#include "keyhole/attention.h"
#include "plan/plan_state.h"
#include "support/check_case.h"

namespace keyhole::test {
namespace {

// A few patterns with every form of part, with and without extras.
std::vector<Case> law_cases() {
  std::vector<Case> cases;
  uint64_t data = 50;
  for (const char* pattern :
       {"dense", "causal", "and(causal,window(9))", "strided(8)", "exponential", "random(1,6,4)",
        "or(dilated(5),window(2))", "not(causal)", "per_head(causal,strided(4),dense,sinks(3))"}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      Case c;
      c.pattern = parse_expression(pattern);
      c.dtype = dtype;
      c.batch = 2, c.heads = 4, c.kv_heads = 2, c.q_len = 70, c.k_len = 83, c.head_dim = 9,
      c.v_head_dim = 6;
      c.tile = -1, c.threads = 2, c.data = ++data;
      c.forms = int(data % 5);
      if (data % 3 == 0) c.has_sink = true;
      if (data % 5 == 0) c.softcap = 3;
      cases.push_back(c);
      const Normalizer sparse[] = {entmax(1.5), entmax(2, 9), softmax(5), entmax(1.25),
                                   entmax(1.7)};
      c.normalizer = sparse[data % 5];
      cases.push_back(c);
    }
  }
  return cases;
}

// A case that has run: its pattern, plan, inputs and outputs.
struct Ran {
  Case c;
  KernelChoice kernel;
  Pattern pattern;
  Plan made;
  AllowedPairs allowed;
  Inputs in;
  Outputs o;

  Ran(const Case& the_case, const KernelChoice& choice)
      : c(the_case),
        kernel(choice),
        pattern(build(c.pattern, c.shape())),
        made(make_plan(pattern, c.shape(), c.policy())),
        allowed(pattern, c.shape()),
        in(make_inputs(c, allowed)),
        o(make_outputs(c)) {
    run_forward_of(c, kernel, made, in, o, c.threads);
    if (kernel.backward) run_backward_of(c, kernel, made, in, o, c.threads);
  }
};

template <class Check>
void for_each_run(const Check& check) {
  for (const Case& c : law_cases()) {
    for (const KernelChoice& kernel : kernels_for(c)) {
      SCOPED_TRACE(kernel.forward->name + " / " + to_text(c));
      check(Ran(c, kernel));
    }
  }
}

TEST(KernelLaws, AUnionOfDisjointPatternsIsTheMerge) {
  for_each_run([](const Ran& ran) {
    if (!ran.c.normalizer.is_plain_softmax()) return;  // merge refuses them
    const auto want = expect_forward(ran.c, ran.pattern, ran.allowed, ran.in);
    const Failure failure = merge_law(ran.c, ran.kernel, ran.pattern, ran.in, want);
    EXPECT_FALSE(failure) << failure.detail;
  });
}

TEST(KernelLaws, AReloadedPlanGivesTheSameBits) {
  for_each_run([](const Ran& ran) {
    const Failure failure = reload_law(ran.c, ran.kernel, ran.made, ran.in, ran.o);
    EXPECT_FALSE(failure) << failure.detail;
  });
}

TEST(KernelLaws, GroupedHeadsAreRepeatedKeys) {
  for_each_run([](const Ran& ran) {
    const Failure failure = repeated_heads_law(ran.c, ran.kernel, ran.made, ran.in, ran.o);
    EXPECT_FALSE(failure) << failure.detail;
  });
}

TEST(KernelLaws, ABatchEntryAloneGivesTheSameBits) {
  for_each_run([](const Ran& ran) {
    Case single = ran.c;
    single.batch = 1;
    const AllowedPairs allowed(ran.pattern, single.shape());
    Inputs in = make_inputs(single, allowed);
    for (int64_t batch = 0; batch < ran.c.batch; ++batch) {
      const auto take = [&](PoisonedTensor& to, const PoisonedTensor& from) {
        to.fill([&](int64_t i) { return from.get(batch * to.num_elements() + i); });
      };
      take(in.q, ran.in.q), take(in.k, ran.in.k), take(in.v, ran.in.v), take(in.dout, ran.in.dout);
      if (single.has_sink) in.sink.fill([&](int64_t i) { return ran.in.sink.get(i); });
      Outputs o = make_outputs(single);
      const Plan made = make_plan(ran.pattern, single.shape(), single.policy());
      run_forward_of(single, ran.kernel, made, in, o, 1);
      // Forward; how the backward pass cuts its work may depend on the batch.
      for (const auto& [name, alone, together] :
           {std::tuple{"out", &o.out, &ran.o.out}, std::tuple{"lse", &o.lse, &ran.o.lse}}) {
        for (int64_t i = 0; i < alone->num_elements(); ++i) {
          ASSERT_EQ(alone->get(i), together->get(batch * alone->num_elements() + i))
              << name << " " << i;
        }
      }
    }
  });
}

TEST(KernelLaws, OutputsLieBetweenTheValuesTheySee) {
  for_each_run([](const Ran& ran) {
    const Case& c = ran.c;
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t kv_row = (b * c.kv_heads + h / (c.heads / c.kv_heads)) * c.k_len;
        for (int64_t i = 0; i < c.q_len; ++i) {
          for (int64_t x = 0; x < c.v_head_dim; ++x) {
            double low = c.has_sink ? 0 : INFINITY, high = c.has_sink ? 0 : -INFINITY;
            for (int64_t j = 0; j < c.k_len; ++j) {
              if (!ran.allowed(b, h, i, j)) continue;
              const double value = ran.in.v.get((kv_row + j) * c.v_head_dim + x);
              low = std::min(low, value), high = std::max(high, value);
            }
            if (low > high) continue;  // an empty row
            const double slack = 4 * std::max(rounding_unit(c.dtype), 0x1p-22) *
                                 std::max(std::abs(low), std::abs(high));
            const double out = ran.o.out.get(((b * c.heads + h) * c.q_len + i) * c.v_head_dim + x);
            ASSERT_GE(out, low - slack);
            ASSERT_LE(out, high + slack);
          }
        }
      }
    }
  });
}

TEST(KernelLaws, GradientsAreConserved) {
  for_each_run([](const Ran& ran) {
    const Case& c = ran.c;
    if (c.dtype == DType::f16 || c.dtype == DType::bf16) return;  // outputs are rounded one by one
    if (ran.kernel.backward == nullptr) return;  // its backend has a forward pass only
    const double unit = c.dtype == DType::f64 ? 1e-11 : 1e-4;
    if (!c.has_sink) {
      double sent = 0, received = 0;
      for (int64_t row = 0; row < ran.o.lse.num_elements(); ++row) {
        if (ran.o.lse.get(row) == -INFINITY) continue;
        for (int64_t x = 0; x < c.v_head_dim; ++x) sent += ran.in.dout.get(row * c.v_head_dim + x);
      }
      for (const double value : ran.o.dv.values()) received += value;
      EXPECT_NEAR(sent, received, unit * 100);
    }
    double through_q = 0, through_k = 0, size = 1;
    for (int64_t i = 0; i < ran.in.q.num_elements(); ++i) {
      const double product = ran.in.q.get(i) * ran.o.dq.get(i);
      through_q += product, size += std::abs(product);
    }
    for (int64_t i = 0; i < ran.in.k.num_elements(); ++i)
      through_k += ran.in.k.get(i) * ran.o.dk.get(i);
    EXPECT_NEAR(through_q, through_k, unit * size);
  });
}

// Runs `other`, whose inputs are rows of `ran`'s in another place, and compares out and lse row by
// row. source(row): which query of `ran` the query `row` of `other` is; k_source the same for keys.
void expect_same_rows(const Ran& ran, const Case& other, const Pattern& pattern,
                      const std::function<int64_t(int64_t)>& source,
                      const std::function<int64_t(int64_t)>& k_source) {
  const Plan made = make_plan(pattern, other.shape(), other.policy());
  Inputs in = make_inputs(other, AllowedPairs(pattern, other.shape()));
  const auto take = [](PoisonedTensor& to, int64_t rows, const PoisonedTensor& from,
                       int64_t from_rows, int64_t columns,
                       const std::function<int64_t(int64_t)>& from_row) {
    to.fill([&](int64_t i) {
      const int64_t head = i / columns / rows, row = i / columns % rows;
      return from.get((head * from_rows + from_row(row)) * columns + i % columns);
    });
  };
  const Case& c = ran.c;
  take(in.q, other.q_len, ran.in.q, c.q_len, c.head_dim, source);
  take(in.k, other.k_len, ran.in.k, c.k_len, c.head_dim, k_source);
  take(in.v, other.k_len, ran.in.v, c.k_len, c.v_head_dim, k_source);
  if (c.has_sink) in.sink.fill([&](int64_t i) { return ran.in.sink.get(i); });
  Outputs o = make_outputs(other);
  run_forward_of(other, ran.kernel, made, in, o, 1);
  const double unit = 40 * std::max(rounding_unit(c.dtype), 0x1p-24);
  for (int64_t row = 0; row < o.lse.num_elements(); ++row) {
    const int64_t was = row / other.q_len * c.q_len + source(row % other.q_len);
    const double lse = ran.o.lse.get(was);
    if (lse != o.lse.get(row)) {  // -inf is not near -inf
      ASSERT_NEAR(o.lse.get(row), lse, 1e-5) << "row " << row;
    }
    for (int64_t x = 0; x < c.v_head_dim; ++x) {
      ASSERT_NEAR(o.out.get(row * c.v_head_dim + x), ran.o.out.get(was * c.v_head_dim + x), unit);
    }
  }
}

const auto kSame = [](int64_t row) { return row; };

TEST(KernelLaws, QueriesMayComeInChunks) {
  for_each_run([](const Ran& ran) {
    const int64_t cuts[] = {0, 1, 17, 64, ran.c.q_len};
    for (size_t i = 0; i + 1 < std::size(cuts); ++i) {
      Case chunk = ran.c;
      chunk.q_len = cuts[i + 1] - cuts[i];
      chunk.offset = ran.c.shape().q_offset() + cuts[i];
      expect_same_rows(ran, chunk, ran.pattern, [&](int64_t row) { return row + cuts[i]; }, kSame);
    }
  });
}

TEST(KernelLaws, KeysMayStandInAnyOrderWhenTheirPositionsFollow) {
  for_each_run([](const Ran& ran) {
    const Case& c = ran.c;
    std::vector<int64_t> q_positions, k_positions, order;
    for (int64_t i = 0; i < c.q_len; ++i) q_positions.push_back(i + c.shape().q_offset());
    for (int64_t j = 0; j < c.k_len; ++j) order.push_back(j * 31 % c.k_len);  // 83 is prime
    k_positions = order;
    expect_same_rows(ran, c, at(q_positions, k_positions, ran.pattern), kSame,
                     [&](int64_t row) { return order[size_t(row)]; });
  });
}

TEST(KernelLaws, PaddingThatNobodySeesChangesNothing) {
  for_each_run([](const Ran& ran) {
    if (ran.c.pattern.name == "random") return;  // its blocks are drawn for the number of keys
    Case longer = ran.c;
    longer.k_len += 70;
    longer.offset = ran.c.shape().q_offset();
    expect_same_rows(ran, longer, ran.pattern & sinks(ran.c.k_len), kSame,
                     [&](int64_t row) { return row % ran.c.k_len; });
  });
}

// Partial results for the merge laws: rows of any weight, some of them empty.
struct Partial {
  PoisonedTensor out, lse;
  Partial(DType dtype, Layout layout, uint64_t seed, int empty_percent)
      : out(place(dtype, {2, 3, 5, 4}, layout), true),
        lse(place(dtype == DType::f64 ? DType::f64 : DType::f32, {2, 3, 5}, Layout::padded), true) {
    Random random(seed);
    lse.fill(
        [&](int64_t) { return random.chance(empty_percent) ? -INFINITY : 5 * random.normal(); });
    out.fill([&](int64_t i) { return lse.get(i / 4) == -INFINITY ? 0.0 : random.normal(); });
  }
  void absorb(const Partial& other) {
    merge(out.view(), lse.view(), other.out.view(), other.lse.view());
    EXPECT_EQ(out.damage() + lse.damage(), "");
  }
};

constexpr DType kDTypes[] = {DType::f16, DType::bf16, DType::f32, DType::f64};

TEST(Merge, AnEmptyPartIsNeutralOnEitherSide) {
  for (const DType dtype : kDTypes) {
    const Partial part(dtype, Layout::bshd, 1, 30), nothing(dtype, Layout::contiguous, 2, 100);
    Partial left(dtype, Layout::bshd, 1, 30), right(dtype, Layout::contiguous, 2, 100);
    left.absorb(nothing);
    right.absorb(part);
    EXPECT_EQ(left.out.values(), part.out.values()) << to_string(dtype);
    EXPECT_EQ(left.lse.values(), part.lse.values()) << to_string(dtype);
    EXPECT_EQ(right.out.values(), part.out.values()) << to_string(dtype);
    EXPECT_EQ(right.lse.values(), part.lse.values()) << to_string(dtype);
  }
}

TEST(Merge, ANanShowsFromEitherSideEvenBesideAnEmptyRow) {
  for (const DType dtype : kDTypes) {
    for (const int empty_percent : {0, 100}) {
      Partial clean(dtype, Layout::contiguous, 1, empty_percent),
          spoilt(dtype, Layout::padded, 2, 0);
      spoilt.lse.set(7, NAN);
      clean.absorb(spoilt);
      spoilt.absorb(Partial(dtype, Layout::contiguous, 1, empty_percent));
      for (const Partial* merged : {&clean, &spoilt}) {
        for (int64_t row = 0; row < merged->lse.num_elements(); ++row) {
          EXPECT_EQ(std::isnan(merged->lse.get(row)), row == 7)
              << to_string(dtype) << " row " << row;
        }
      }
    }
  }
}

TEST(Merge, IsAssociativeAndCommutativeUpToRounding) {
  for (const DType dtype : kDTypes) {
    const double unit = 16 * rounding_unit(dtype) + 1e-15,
                 lse_unit = dtype == DType::f64 ? 1e-14 : 4e-6;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const Partial b(dtype, Layout::sliced, 3 * seed + 1, 30),
          c(dtype, Layout::padded, 3 * seed + 2, 30);
      Partial left(dtype, Layout::contiguous, 3 * seed, 30);  // (a b) c
      left.absorb(b), left.absorb(c);
      Partial right(dtype, Layout::contiguous, 3 * seed, 30),
          bc(dtype, Layout::sliced, 3 * seed + 1, 30);
      bc.absorb(c), right.absorb(bc);  // a (b c)
      Partial turned(dtype, Layout::padded, 3 * seed + 2, 30);
      turned.absorb(b), turned.absorb(Partial(dtype, Layout::contiguous, 3 * seed, 30));  // (c b) a
      for (const Partial* other : {&right, &turned}) {
        for (int64_t i = 0; i < left.out.num_elements(); ++i) {
          EXPECT_NEAR(left.out.get(i), other->out.get(i), unit * 6)
              << to_string(dtype) << " seed " << seed;
        }
        for (int64_t i = 0; i < left.lse.num_elements(); ++i) {
          if (left.lse.get(i) == other->lse.get(i)) continue;  // -inf too
          EXPECT_NEAR(left.lse.get(i), other->lse.get(i), lse_unit * 20);
        }
      }
    }
  }
}

TEST(Merge, GradientsOverDisjointKeysAddUp) {
  Case c = law_cases()[0];
  c.pattern = parse_expression("causal"), c.dtype = DType::f64;
  const KernelChoice kernel = kernels_for(c).at(0);
  const Ran whole(c, kernel);
  Outputs parts[2] = {make_outputs(c), make_outputs(c)};
  const Pattern halves[2] = {whole.pattern & sinks(40), whole.pattern & ~sinks(40)};
  for (int half = 0; half < 2; ++half) {
    // The merged out and lse, so that each part knows its share of the whole.
    parts[half].out.fill([&](int64_t i) { return whole.o.out.get(i); });
    parts[half].lse.fill([&](int64_t i) { return whole.o.lse.get(i); });
    run_backward_of(c, kernel, plan(halves[half], c.shape()), whole.in, parts[half], 1);
  }
  const auto expect_sum = [&](PoisonedTensor Outputs::* member) {
    for (int64_t i = 0; i < (whole.o.*member).num_elements(); ++i) {
      EXPECT_NEAR((parts[0].*member).get(i) + (parts[1].*member).get(i), (whole.o.*member).get(i),
                  1e-12);
    }
  };
  expect_sum(&Outputs::dq), expect_sum(&Outputs::dk), expect_sum(&Outputs::dv);
}

}  // namespace
}  // namespace keyhole::test
