// tests/gpu/reference_test.cpp
// The judge of the GPU kernels is judged here: the numbers it draws are the host's, its reference
// and bounds are those of the CPU, and it notices what a wrong kernel would do.
#include <cmath>
#include <iostream>

#include "base/check.h"
#include "gpu/gpu_problem.h"
#include "kernels/table_cases.h"
#include "support/generator.h"
#include "support/gpu/check_on_gpu.h"
#include "support/gpu/gpu_case.h"
#include "support/gpu/judge.h"
#include "support/scale.h"
#include "support/tolerance.h"

namespace keyhole::test {
namespace {

using GpuJudge = GpuTest;

std::vector<Case> cases() {
  std::vector<Case> all;
  size_t number = 0;
  for (const char* line : kHostileCases) {
    Case c = parse_case(line);
    c.dtype = std::array{DType::f32, DType::bf16, DType::f16}[number++ % 3];
    all.push_back(c);
  }
  for (uint64_t seed = 0; seed < uint64_t(scaled(150)); ++seed) {
    all.push_back(draw_gpu_case(5'000'000 + seed));
    all.back().normalizer = softmax();
  }
  return all;
}

// A case on both sides.
struct BothSides {
  explicit BothSides(const Case& c) : on_gpu(c), in(make_inputs(c, on_gpu.allowed)) {}
  GpuCase on_gpu;
  Inputs in;
};

TEST_F(GpuJudge, TheNumbersOfACaseAreTheSameBytesOnBothSides) {
  int64_t bytes = 0;
  for (const Case& c : cases()) {
    const BothSides sides(c);
    const InputsOnGpu& gpu_in = sides.on_gpu.in();
    for (const auto& [name, host, gpu] :
         {std::tuple{"q", &sides.in.q, &gpu_in.q}, std::tuple{"k", &sides.in.k, &gpu_in.k},
          std::tuple{"v", &sides.in.v, &gpu_in.v}, std::tuple{"dout", &sides.in.dout, &gpu_in.dout},
          std::tuple{"sink", &sides.in.sink, &gpu_in.sink}}) {
      if (!gpu->is_given()) continue;
      ASSERT_TRUE(host->memory() == gpu->read()) << name << ", " << to_text(c);
      bytes += int64_t(host->memory().size());
    }
  }
  std::cout << bytes << " bytes of inputs and moats are equal\n";
}

// Far inside the bound that a kernel of fp32 has: what fp64 is allowed is less by 2^29.
void expect_near(const std::string& name, const std::vector<double>& got, const Expected& expected,
                 const Case& c) {
  ASSERT_EQ(got.size(), expected.want.size()) << name << ", " << to_text(c);
  for (size_t i = 0; i < got.size(); ++i) {
    const double want = expected.want[i];
    if (got[i] == want || (std::isnan(got[i]) && std::isnan(want))) continue;
    ASSERT_LE(std::abs(got[i] - want), 1e-6 * expected.bound[i])
        << name << "[" << i << "] is " << got[i] << ", not " << want << ", " << to_text(c);
  }
}

// Bounds are made from weights in fp32, which may differ a little where scores are huge.
void expect_like(const std::string& name, const std::vector<double>& got,
                 const std::vector<double>& want, const Case& c) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    ASSERT_GE(got[i], 0.5 * want[i]) << name << "[" << i << "], " << to_text(c);
    ASSERT_LE(got[i], 2 * want[i]) << name << "[" << i << "], " << to_text(c);
  }
}

TEST_F(GpuJudge, ReferenceAndBoundsAreThoseOfTheCpu) {
  int64_t elements = 0;
  for (const Case& c : cases()) {
    BothSides sides(c);
    GpuCase& gpu = sides.on_gpu;
    for (const bool rounds_weights : {false, true}) {
      const auto forward = expect_forward(c, gpu.pattern, gpu.allowed, sides.in, rounds_weights);
      const auto gradients =
          expect_gradients(c, gpu.pattern, gpu.allowed, sides.in, forward, rounds_weights);
      const GpuBounds& bounds = gpu.bounds(rounds_weights);
      const GpuReference& want = gpu.want();
      for (const auto& [name, expected, reference, bound] :
           {std::tuple{"out", &forward.out, &want.out, &bounds.out},
            std::tuple{"lse", &forward.lse, &want.lse, &bounds.lse},
            std::tuple{"dq", &gradients.dq, &want.dq, &bounds.dq},
            std::tuple{"dk", &gradients.dk, &want.dk, &bounds.dk},
            std::tuple{"dv", &gradients.dv, &want.dv, &bounds.dv},
            std::tuple{"dsink", &gradients.dsink, &want.dsink, &bounds.dsink}}) {
        expect_near(name, reference->read(), *expected, c);
        expect_like(say("bound of ", name), bound->bound.read(), expected->bound, c);
        const bool is_fp32 = expected == &forward.lse || expected == &gradients.dsink;
        EXPECT_EQ(disagreement(say("plain ", name), is_fp32 ? DType::f32 : c.dtype,
                               bound->plain.read(), *expected),
                  "")
            << to_text(c);
        elements += int64_t(expected->want.size());
        if (HasFailure()) return;
      }
    }
  }
  std::cout << elements << " elements of references and bounds agree\n";
}

// A forward and backward pass as a plain loop on the host would do it, in the memory of the GPU.
struct Answer {
  Case c;
  BothSides sides;
  Outputs host;
  OutputsOnGpu on_gpu;

  explicit Answer(const Case& the_case) : c(the_case), sides(c), host(make_outputs(c)) {
    const GpuCase& gpu = sides.on_gpu;
    const auto forward = expect_forward(c, gpu.pattern, gpu.allowed, sides.in);
    const auto gradients = expect_gradients(c, gpu.pattern, gpu.allowed, sides.in, forward);
    const auto put = [](PoisonedTensor& to, const Expected& from) {
      to.fill([&](int64_t i) { return from.plain[size_t(i)]; });
    };
    put(host.out, forward.out), put(host.lse, forward.lse);
    put(host.dq, gradients.dq), put(host.dk, gradients.dk), put(host.dv, gradients.dv);
    put(host.dsink, gradients.dsink);
    allocate(c, on_gpu);
  }
  Failure judged() {
    for (const auto& [to, from] : {std::pair{&on_gpu.out, &host.out},
                                   {&on_gpu.lse, &host.lse},
                                   {&on_gpu.dq, &host.dq},
                                   {&on_gpu.dk, &host.dk},
                                   {&on_gpu.dv, &host.dv},
                                   {&on_gpu.dsink, &host.dsink}}) {
      to->write(from->memory());
    }
    Judge judge;
    GpuCase& gpu = sides.on_gpu;
    const GpuReference& want = gpu.want();
    const GpuBounds& bounds = gpu.bounds(false);
    for (const auto& [name, got, reference, bound] :
         {std::tuple{"out", &on_gpu.out, &want.out, &bounds.out},
          std::tuple{"lse", &on_gpu.lse, &want.lse, &bounds.lse},
          std::tuple{"dq", &on_gpu.dq, &want.dq, &bounds.dq},
          std::tuple{"dk", &on_gpu.dk, &want.dk, &bounds.dk},
          std::tuple{"dv", &on_gpu.dv, &want.dv, &bounds.dv},
          std::tuple{"dsink", &on_gpu.dsink, &want.dsink, &bounds.dsink}}) {
      judge.expect_no_damage(name, *got);
      judge.expect_values(name, name, *got,
                          {reference->get(), bound->bound.get(), bound->plain.get()});
    }
    judge.expect_empty_rows(gpu.reference_in(), on_gpu.out, on_gpu.lse, on_gpu.dq.view());
    return judge.verdict();
  }
};

// Query 0 sees nothing, the others some keys.
Case telling_case(DType dtype) {
  Case c = parse_case(
      "pattern=and(causal,not(window(0))) batch=2 heads=4 kv_heads=2 q_len=40 k_len=40 head_dim=16 "
      "v_head_dim=24 sink=1 data=5 out=sliced lse=padded dq=bshd dk=padded dv=odd_offset");
  c.dtype = dtype;
  return c;
}

TEST_F(GpuJudge, NoticesOneWrongElementOfEveryTensor) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Answer answer(telling_case(dtype));
    const Failure sound = answer.judged();
    ASSERT_FALSE(sound) << sound.kind << ": " << sound.detail;
    Outputs& o = answer.host;
    for (const auto& [name, tensor] : {std::pair{"out", &o.out},
                                       {"lse", &o.lse},
                                       {"dq", &o.dq},
                                       {"dk", &o.dk},
                                       {"dv", &o.dv},
                                       {"dsink", &o.dsink}}) {
      const int64_t at = tensor->num_elements() - 1;
      const double right = tensor->get(at);
      for (const double wrong : {right + 0.5 * std::abs(right) + 0.1, double(NAN), HUGE_VAL}) {
        tensor->set(at, wrong);
        EXPECT_EQ(answer.judged().kind, name) << to_string(dtype) << ", " << wrong;
      }
      tensor->set(at, right);
    }
  }
}

TEST_F(GpuJudge, NoticesASmallErrorOfAWholeTensor) {
  Answer answer(telling_case(DType::f32));
  // Within the bound of every element, but further off than any plain loop.
  const Expected expected = expect_forward(answer.c, answer.sides.on_gpu.pattern,
                                           answer.sides.on_gpu.allowed, answer.sides.in)
                                .out;
  answer.host.out.fill([&](int64_t i) {
    const double want = expected.want[size_t(i)];
    return want == 0 ? 0 : want + 0.9 * expected.bound[size_t(i)];
  });
  const Failure failure = answer.judged();
  EXPECT_EQ(failure.kind, "out");
  EXPECT_NE(failure.detail.find("in norm"), std::string::npos) << failure.detail;
}

TEST_F(GpuJudge, NoticesEmptyRowsThatAreNotEmpty) {
  Answer answer(telling_case(DType::f32));
  const double right = answer.host.lse.get(0);  // the sink of head 0
  answer.host.out.set(0, -0.0);
  EXPECT_EQ(answer.judged().kind, "empty row");
  answer.host.out.set(0, 0.0);
  answer.host.lse.set(0, right * (1 + 1e-6));
  EXPECT_EQ(answer.judged().kind, "empty row");
  answer.host.lse.set(0, right);
  EXPECT_FALSE(answer.judged());
}

TEST_F(GpuJudge, NoticesAByteBesideATensor) {
  Answer answer(telling_case(DType::bf16));
  std::vector<std::byte>& memory = answer.host.dk.memory();
  const size_t inside_a_row = size_t(answer.host.dk.offset_bytes()) + 2 * 16;  // rows of 16 + 3
  for (const size_t at : {size_t{0}, inside_a_row, memory.size() - 1}) {
    memory[at] ^= std::byte{1};
    const Failure failure = answer.judged();
    EXPECT_EQ(failure.kind, "poison") << at;
    memory[at] ^= std::byte{1};
  }
  EXPECT_FALSE(answer.judged());
}

TEST_F(GpuJudge, NoticesAChangedInputABitAndACount) {
  GpuCase gpu(telling_case(DType::f32));
  {
    std::vector<std::byte> bytes = gpu.in().k.read();
    Judge judge;
    judge.expect_no_damage("k", gpu.in().k);
    EXPECT_FALSE(judge.verdict());
    bytes[bytes.size() / 2] ^= std::byte{1};
    gpu.in().k.write(bytes);
    Judge again;
    again.expect_no_damage("k", gpu.in().k);
    EXPECT_EQ(again.verdict().kind, "poison");
    bytes[bytes.size() / 2] ^= std::byte{1};
    gpu.in().k.write(bytes);
  }
  Case counting = with_contiguous_layouts(gpu.c);
  counting.has_sink = false;
  Outputs host = make_outputs(counting);
  host.lse.fill([&](int64_t row) {
    const int64_t query = row % gpu.c.q_len, head = row / gpu.c.q_len % gpu.c.heads;
    const int64_t keys = gpu.allowed.count(row / gpu.c.q_len / gpu.c.heads, head, query);
    return keys == 0 ? -INFINITY : std::log(double(keys));
  });
  OutputsOnGpu o, other;
  allocate(counting, o), allocate(counting, other);
  const auto counted = [&] {
    o.lse.write(host.lse.memory());
    Judge judge;
    judge.expect_counts(gpu.reference_in(), o.lse);
    return judge.verdict().kind;
  };
  EXPECT_EQ(counted(), "");
  const double right = host.lse.get(39);
  host.lse.set(39, std::log(std::exp(right) + 1));
  EXPECT_EQ(counted(), "count");
  other.lse.write(host.lse.memory());
  host.lse.set(39, right);
  EXPECT_EQ(counted(), "");
  Judge judge;
  judge.expect_same_bits("rerun", "lse", o.lse, o.lse);
  EXPECT_FALSE(judge.verdict());
  judge.expect_same_bits("rerun", "lse", o.lse, other.lse);
  EXPECT_EQ(judge.verdict().kind, "rerun");
}

// What the fuzzer does, in one process: compute-sanitizer looks at this one.
TEST_F(GpuJudge, KernelsPassOnRandomCases) {
  CheckStats stats;
  for (uint64_t seed = 0; seed < uint64_t(scaled(500)); ++seed) {
    const Case c = draw_gpu_case(7'000'000 + seed);
    for (KernelChoice kernel : kernels_for(c)) {
      if (kernel.forward->device != Device::Kind::cuda) continue;
      const std::vector<int64_t> limits = shared_limits(*kernel.forward);
      kernel.shared_bytes = limits[seed % limits.size()];
      const Failure failure = check_case_with(c, kernel, &stats);
      EXPECT_FALSE(failure) << kernel.forward->name << "\n  " << failure.kind << ": "
                            << failure.detail << "\n  keyhole_fuzz --gpu --case '" << to_text(c)
                            << "'";
    }
  }
  std::cout << "random cases: " << stats.kernel_runs << " kernel runs, " << stats.pairs
            << " pairs, at most " << stats.worst << " of the rounding bound used; "
            << stats.refused.total() << " refused" << stats.refused.text() << "\n";
}

}  // namespace
}  // namespace keyhole::test
