// tests/judge/trials_test.cpp
// The trials of `keyhole check` are themselves checked: sound kernels pass them, and each kind of
// broken kernel is caught by the trial that is there for it.
#include "judge/trials.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "judge/poisoned_tensor.h"
#include "runtime/dispatch.h"
#include "runtime/registry.h"

namespace keyhole::judge {
namespace {

const KernelEntry& kernel_for(Operation operation) {
  return choose(kernel_table(), {"auto", operation, DType::f32, 24, 17});
}

// A pattern, and a plan that should be its own.
Subject subject_of(const Pattern& pattern, const Pattern& planned, uint64_t seed = 1) {
  return {.pattern = pattern,
          .plan = plan(planned, 70, 70),
          .batch = 2,
          .heads = 4,
          .kv_heads = 2,
          .q_len = 70,
          .k_len = 70,
          .head_dim = 24,
          .v_head_dim = 17,
          .seed = seed};
}

Finding run_trial(const std::string& name, const KernelEntry& kernel, const Subject& subject) {
  for (const Trial& trial : trials()) {
    if (trial.operation == kernel.operation && name == trial.name) {
      return trial.run(kernel, pick_tile(kernel, subject.plan), subject);
    }
  }
  ADD_FAILURE() << "no trial is called " << name;
  return {};
}

KernelEntry broken_forward(void (*forward)(const ForwardArgs&)) {
  KernelEntry kernel = kernel_for(Operation::forward);
  kernel.forward = forward;
  return kernel;
}

float* element(const TensorView& tensor, int64_t b, int64_t h, int64_t i, int64_t x) {
  return static_cast<float*>(tensor.data) + b * tensor.strides[0] + h * tensor.strides[1] +
         i * tensor.strides[2] + x;
}

TEST(Check, SoundKernelsPassEveryTrial) {
  const Pattern pattern = causal() & (window(9) | sinks(2));
  for (const KernelEntry& kernel : kernel_table()) {
    if (kernel.device != Device::Kind::cpu) continue;  // tests/kernels have them
    if (kernel.weights != Weights::softmax) continue;  // below
    for (const Trial& trial : trials()) {
      if (!suits(trial, kernel)) continue;
      for (uint64_t seed = 1; seed <= 2; ++seed) {
        const Subject subject = subject_of(pattern, pattern, seed);
        const Finding finding = trial.run(kernel, pick_tile(kernel, subject.plan), subject);
        EXPECT_EQ(finding.complaint, "")
            << kernel.name << " / " << trial.name << " / seed " << seed;
        EXPECT_LE(finding.error, finding.allowed) << kernel.name << " / " << trial.name;
      }
    }
  }
}

TEST(Check, SoundKernelsOfEntmaxAndTopKPassEveryTrial) {
  const Pattern pattern = causal() & (window(9) | sinks(2) | dilated(3));
  for (const KernelEntry& kernel : kernel_table()) {
    if (kernel.device != Device::Kind::cpu || kernel.weights != Weights::sparse) continue;
    for (const Normalizer& normalizer :
         {entmax(1.5), entmax(1.75, 8), entmax(2), entmax(1.25), softmax(8), entmax(1.02)}) {
      if (kernel.dtype != DType::f32 && !(normalizer == entmax(1.75, 8))) continue;
      for (const Trial& trial : trials()) {
        if (!suits(trial, kernel)) continue;
        Subject subject = subject_of(pattern, pattern);
        subject.normalizer = normalizer;
        const Finding finding = trial.run(kernel, pick_tile(kernel, subject.plan), subject);
        EXPECT_EQ(finding.complaint, "")
            << kernel.name << " / " << trial.name << " / " << to_string(normalizer);
      }
    }
  }
}

const KernelEntry& sparse_kernel_for(Operation operation) {
  Request request{"auto", operation, DType::f32, 24, 17};
  request.normalizer = entmax(1.5);
  return choose(kernel_table(), request);
}

// One key too many or too few, and equal scores of which the wrong ones are taken.
TEST(Check, TrialsOfEntmaxSeeWrongKeys) {
  const Pattern pattern = causal() & window(9);
  for (const Normalizer& normalizer : {entmax(1.5), entmax(2), softmax(4)}) {
    for (const Pattern& planned : {causal() & window(10), causal() & window(8), window(9, 1)}) {
      Subject subject = subject_of(pattern, planned);
      subject.normalizer = normalizer;
      for (const Operation operation : {Operation::forward, Operation::backward}) {
        // top_k takes as many keys of more
        if (operation == Operation::backward || normalizer.top_k == 0) {
          EXPECT_NE(run_trial("count of keys", sparse_kernel_for(operation), subject).complaint, "")
              << planned << ", " << to_string(normalizer);
        }
        EXPECT_NE(run_trial("strides, NaN around", sparse_kernel_for(operation), subject).complaint,
                  "")
            << planned << ", " << to_string(normalizer);
      }
      EXPECT_NE(run_trial("keys that have weight", sparse_kernel_for(Operation::forward), subject)
                    .complaint,
                "")
          << planned << ", " << to_string(normalizer);
    }
  }
}

TEST(Check, SeesAKeyThatIsListedAndHasNoWeight) {
  KernelEntry kernel = sparse_kernel_for(Operation::forward);
  kernel.forward = [](const ForwardArgs& args) {
    sparse_kernel_for(Operation::forward).forward(args);
    if (!args.support.is_given()) return;
    int32_t* const row = args.support.row(1, 2, 69);
    for (int32_t key = 0; key < kSupportKeys; ++key) row[key] = key;
  };
  Subject subject = subject_of(causal(), causal());
  subject.normalizer = entmax(1.5);
  EXPECT_NE(run_trial("keys that have weight", kernel, subject).complaint, "");
  EXPECT_EQ(run_trial("strides, NaN around", kernel, subject).complaint, "");
}

// Kernels that copy rows in pieces of 16 bytes are handed the same company.
TEST(Check, AlignedRowsHaveNanAroundThemToo) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const bool swaps : {false, true}) {
      const std::vector<int64_t> shape = {2, 3, 5, 17};
      PoisonedTensor tensor(place_apart(dtype, shape, swaps, /*is_aligned=*/true), true);
      EXPECT_TRUE(rows_are_aligned({&tensor.view()}));
      const PoisonedTensor other(place_apart(dtype, shape, swaps), true);
      EXPECT_FALSE(rows_are_aligned({&other.view()}));
      tensor.fill(1);
      EXPECT_EQ(tensor.damage(), "");
      EXPECT_EQ(tensor.values(), std::vector<double>(2 * 3 * 5 * 17, 1.0));
    }
  }
  Subject subject = subject_of(causal(), causal());
  subject.is_aligned = true;
  for (const Operation operation : {Operation::forward, Operation::backward}) {
    EXPECT_EQ(run_trial("strides, NaN around", kernel_for(operation), subject).complaint, "");
  }
}

// One key too many or too few: the probes see it whatever the tolerance is.
TEST(Check, ProbesSeeOneWrongKey) {
  const Pattern pattern = causal() & window(9);
  for (const Pattern& planned : {causal() & window(10), causal() & window(8), window(9, 1)}) {
    const Subject subject = subject_of(pattern, planned);
    for (const Operation operation : {Operation::forward, Operation::backward}) {
      EXPECT_NE(run_trial("count of keys", kernel_for(operation), subject).complaint, "")
          << planned;
      EXPECT_NE(run_trial("strides, NaN around", kernel_for(operation), subject).complaint, "")
          << planned;
    }
    int caught = 0;  // a spike is at one random edge a head; some of them are the wrong one
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      caught += !run_trial("spike at an edge", kernel_for(Operation::forward),
                           subject_of(pattern, planned, seed))
                     .complaint.empty();
    }
    EXPECT_GT(caught, 0) << planned;
  }
}

TEST(Check, SeesAWriteBesideTheOutput) {
  const KernelEntry kernel = broken_forward([](const ForwardArgs& args) {
    kernel_for(Operation::forward).forward(args);
    *element(args.out, 1, 2, 33, args.out.shape[3]) = 1;  // one behind the end of a row
  });
  const Finding finding = run_trial("strides, NaN around", kernel, subject_of(causal(), causal()));
  EXPECT_TRUE(finding.complaint.starts_with("out: an output was written outside, "))
      << finding.complaint;
}

TEST(Check, SeesARowThatWasNotWritten) {
  const KernelEntry kernel = broken_forward([](const ForwardArgs& args) {
    kernel_for(Operation::forward).forward(args);
    for (int64_t x = 0; x < args.out.shape[3]; ++x) *element(args.out, 0, 1, 69, x) = NAN;
  });
  const Finding finding = run_trial("strides, NaN around", kernel, subject_of(causal(), causal()));
  EXPECT_NE(finding.complaint, "");
  EXPECT_TRUE(std::isinf(finding.error));
}

// A NaN that is attended to must show; a kernel that turns it into 0 is refused.
TEST(Check, SeesALaunderedNan) {
  const KernelEntry kernel = broken_forward([](const ForwardArgs& args) {
    kernel_for(Operation::forward).forward(args);
    for (int64_t row = 0; row < 2 * 4 * 70; ++row) {
      for (int64_t x = 0; x < args.out.shape[3]; ++x) {
        float* value = element(args.out, row / 280, row / 70 % 4, row % 70, x);
        if (std::isnan(*value)) *value = 0;
      }
    }
  });
  const Subject subject = subject_of(causal(), causal());
  EXPECT_NE(run_trial("NaN in one key", kernel, subject).complaint, "");
  EXPECT_EQ(run_trial("strides, NaN around", kernel, subject).complaint, "");
}

// A relative error of 1e-4 is far below what a mask error costs, and still seen.
TEST(Check, SeesLostPrecision) {
  const KernelEntry kernel = broken_forward([](const ForwardArgs& args) {
    kernel_for(Operation::forward).forward(args);
    for (int64_t x = 0; x < args.out.shape[3]; ++x) *element(args.out, 1, 0, 0, x) *= 1.0001f;
  });
  EXPECT_NE(run_trial("strides, NaN around", kernel, subject_of(causal(), causal())).complaint, "");
}

}  // namespace
}  // namespace keyhole::judge
