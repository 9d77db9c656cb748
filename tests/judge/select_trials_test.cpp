// tests/judge/select_trials_test.cpp
// The trials of selections are themselves checked: sound kernels pass them, and each kind of broken
// kernel is caught by the trial that is there for it.
#include "judge/select_trials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace keyhole::judge {
namespace {

SelectSubject subject_of(const std::optional<Pattern>& visible) {
  return {.visible = visible,
          .shape = {.batch = 2, .heads = 2, .q_len = 33, .k_len = 70},
          .one_plan_for_all = true};
}

const SelectKernel& kernel_for(SelectOperation operation, DType dtype = DType::f32) {
  return choose_select(select_table(),
                       {.backend = "cpu", .operation = operation, .dtype = dtype, .k = 9});
}

// The complaints of a kernel by the name of the trial; "" if all its cases pass.
std::map<std::string, std::string> complaints_about(const SelectKernel& kernel,
                                                    const SelectSubject& subject) {
  std::map<std::string, std::string> complaints;
  for (const SelectTrial& trial : select_trials()) {
    if (trial.operation != kernel.operation) continue;
    std::string& complaint = complaints[trial.name];
    for (const AnySelectCase& any : trial.cases(kernel, subject)) {
      const Finding finding =
          std::visit([&](const auto& c) { return run_and_judge(kernel, c); }, any);
      EXPECT_EQ(finding.complaint.empty(), finding.error <= finding.allowed) << finding.complaint;
      if (complaint.empty()) complaint = finding.complaint;
    }
  }
  return complaints;
}

void expect_caught(const SelectKernel& kernel, const std::string& trial, const std::string& says,
                   const std::optional<Pattern>& visible = {}) {
  const auto complaints = complaints_about(kernel, subject_of(visible));
  ASSERT_TRUE(complaints.contains(trial)) << trial;
  EXPECT_NE(complaints.at(trial).find(says), std::string::npos)
      << kernel.name << ", " << trial << ": " << complaints.at(trial);
}

TEST(SelectTrials, SoundKernelsPassEveryTrial) {
  for (const SelectKernel& kernel : select_table()) {
    if (kernel.device != Device::Kind::cpu) continue;
    for (const std::optional<Pattern>& visible :
         {std::optional<Pattern>(), std::optional(causal() & (window(20) | dilated(3))),
          std::optional(~dense())}) {
      const auto complaints = complaints_about(kernel, subject_of(visible));
      EXPECT_FALSE(complaints.empty()) << kernel.name << " has no trial";
      for (const auto& [trial, complaint] : complaints) {
        EXPECT_EQ(complaint, "") << kernel.name << ", " << trial;
      }
    }
  }
}

// Every score of the indexer, as a kernel of scores gives it.
float& score(const ScoreArgs& args, int64_t i) {
  const TensorView& s = args.scores;
  const int64_t entry = i % s.shape[3], query = i / s.shape[3] % s.shape[2];
  const int64_t group = i / s.shape[3] / s.shape[2] % s.shape[1];
  const int64_t batch = i / s.shape[3] / s.shape[2] / s.shape[1];
  return static_cast<float*>(
      s.data)[batch * s.strides[0] + group * s.strides[1] + query * s.strides[2] + entry];
}

SelectKernel broken_scores(void (*scores)(const ScoreArgs&)) {
  SelectKernel kernel = kernel_for(SelectOperation::scores);
  kernel.scores = scores;
  return kernel;
}

TEST(SelectTrials, SeeLostPrecision) {
  expect_caught(broken_scores([](const ScoreArgs& args) {
                  kernel_for(SelectOperation::scores).scores(args);
                  for (int64_t i = 0; i < args.scores.num_elements(); ++i) score(args, i) *= 1.001f;
                }),
                "strides, NaN around", "the reference says");
}

TEST(SelectTrials, SeeALaunderedNan) {
  expect_caught(broken_scores([](const ScoreArgs& args) {
                  kernel_for(SelectOperation::scores).scores(args);
                  for (int64_t i = 0; i < args.scores.num_elements(); ++i) {
                    if (std::isnan(score(args, i))) score(args, i) = 0;
                  }
                }),
                "NaN and infinity", "is 0, the reference says");
}

TEST(SelectTrials, SeeAScoreOfWhatIsNotVisible) {
  expect_caught(broken_scores([](const ScoreArgs& args) {
                  ScoreArgs all = args;
                  all.visible = nullptr;
                  kernel_for(SelectOperation::scores).scores(all);
                }),
                "strides, NaN around", "the reference says -inf", causal());
}

TEST(SelectTrials, SeeAForgottenScale) {
  const SelectKernel forgets = broken_scores([](const ScoreArgs& args) {
    ScoreArgs plain = args;
    plain.k_scale = {};
    kernel_for(SelectOperation::scores).scores(plain);
  });
  expect_caught(forgets, "k_scale, no w", "the reference says");
  EXPECT_EQ(complaints_about(forgets, subject_of({})).at("strides, NaN around"), "");
}

SelectKernel broken_top_k(void (*top_k)(const TopKArgs&)) {
  SelectKernel kernel = kernel_for(SelectOperation::top_k);
  kernel.top_k = top_k;
  return kernel;
}

template <class Visit>
void for_each_list(const TopKArgs& args, Visit visit) {
  for (int64_t b = 0; b < args.scores.shape[0]; ++b) {
    for (int64_t g = 0; g < args.scores.shape[1]; ++g) {
      for (int64_t t = 0; t < args.scores.shape[2]; ++t) {
        visit(args.indices + b * args.batch_stride + g * args.group_stride + t * args.row_stride);
      }
    }
  }
}

TEST(SelectTrials, SeeTheWrongOneOfEqualScores) {
  const SelectKernel takes_next = broken_top_k([](const TopKArgs& args) {
    kernel_for(SelectOperation::top_k).top_k(args);
    for_each_list(args, [&](int32_t* list) {  // of equal scores not the lowest entry
      const float* scores = static_cast<const float*>(args.scores.data);
      int32_t* const last = std::find(list, list + args.k, -1) - 1;
      const bool has_next = last >= list && *last + 1 < args.scores.shape[3];
      if (has_next && scores[*last] == scores[*last + 1]) ++*last;
    });
  });
  expect_caught(takes_next, "ties, zeros of both signs", "the reference says");
}

TEST(SelectTrials, SeeChosenNan) {
  expect_caught(broken_top_k([](const TopKArgs& args) {
                  kernel_for(SelectOperation::top_k).top_k(args);
                  for_each_list(args, [&](int32_t* list) {
                    if (list[0] == -1) list[0] = 0;
                  });
                }),
                "NaN and infinity", "the reference says -1");
}

TEST(SelectTrials, SeeAnEntryThatIsNotVisible) {
  expect_caught(broken_top_k([](const TopKArgs& args) {
                  TopKArgs all = args;
                  all.visible = nullptr;
                  kernel_for(SelectOperation::top_k).top_k(all);
                }),
                "strides, NaN around", "the reference says", causal());
}

TEST(SelectTrials, SeeAForgottenAlways) {
  const SelectKernel forgets = broken_top_k([](const TopKArgs& args) {
    TopKArgs plain = args;
    plain.always = nullptr;
    kernel_for(SelectOperation::top_k).top_k(plain);
  });
  expect_caught(forgets, "keys that are always taken", "the reference says");
  EXPECT_EQ(complaints_about(forgets, subject_of({})).at("strides, NaN around"), "");
}

TEST(SelectTrials, SeeAListWithoutPadding) {
  expect_caught(broken_top_k([](const TopKArgs& args) {
                  TopKArgs narrow = args;
                  narrow.columns = args.k;
                  kernel_for(SelectOperation::top_k).top_k(narrow);
                }),
                "strides, NaN around", "the reference says -1");
}

TEST(SelectTrials, SeeAWriteBesideTheLists) {
  expect_caught(broken_top_k([](const TopKArgs& args) {
                  kernel_for(SelectOperation::top_k).top_k(args);
                  args.indices[args.columns] = 7;
                }),
                "strides, NaN around", "wrote outside the lists");
}

TEST(SelectTrials, SeeScoresOfShortRowsThatWereRead) {
  SelectKernel kernel = kernel_for(SelectOperation::select);
  kernel.select = [](const ScoreArgs& scores, const TopKArgs& choice) {
    TopKArgs by_scores = choice;
    by_scores.takes_short_rows = false;
    kernel_for(SelectOperation::select).select(scores, by_scores);
  };
  expect_caught(kernel, "rows shorter than k", "the reference says");
}

TEST(SelectTrials, SeeAWrongLoss) {
  SelectKernel kernel = kernel_for(SelectOperation::loss);
  kernel.loss = [](const IndexLossArgs& args) {
    IndexLossArgs all = args;
    all.has_rows = false;
    kernel_for(SelectOperation::loss).loss(all);
  };
  expect_caught(kernel, "some queries", "the reference says");
  kernel.loss = [](const IndexLossArgs& args) {
    IndexLossArgs plain = args;
    plain.rule.softcap = 0;
    kernel_for(SelectOperation::loss).loss(plain);
  };
  expect_caught(kernel, "softcap, keys elsewhere", "the reference says");
  kernel.loss = [](const IndexLossArgs& args) {  // the first of the keys, for all of an entry's
    IndexLossArgs first = args;
    first.target_k.strides[2] *= args.keys_per_entry;
    first.target_k.shape[2] = args.k.shape[2];
    first.keys_per_entry = 1;
    first.lists = {};
    kernel_for(SelectOperation::loss).loss(first);
  };
  expect_caught(kernel, "several keys an entry", "the reference says");
}

TEST(SelectTrials, SeeAWrongGradient) {
  SelectKernel kernel = kernel_for(SelectOperation::gradients);
  kernel.gradients = [](const IndexGradientArgs& args) {
    kernel_for(SelectOperation::gradients).gradients(args);
    *static_cast<float*>(args.dk.data) += 1;
  };
  for (const char* trial : {"strides, NaN around", "lists with padding", "softcap, keys elsewhere",
                            "several keys an entry", "some queries"}) {
    expect_caught(kernel, trial, "dk[0]");
  }
}

TEST(SelectTrials, SeeAnInputThatWasWrittenTo) {
  SelectKernel kernel = kernel_for(SelectOperation::gradients);
  kernel.gradients = [](const IndexGradientArgs& args) {
    kernel_for(SelectOperation::gradients).gradients(args);
    *static_cast<float*>(args.loss.q.data) += 1;
  };
  expect_caught(kernel, "strides, NaN around", "an input was written to");
}

// Kernels of each operation and dtype have trials, with names of their own.
TEST(SelectTrials, EveryOperationHasTrials) {
  std::set<std::pair<SelectOperation, std::string>> names;
  for (const SelectTrial& trial : select_trials()) {
    EXPECT_TRUE(names.emplace(trial.operation, trial.name).second) << trial.name;
  }
  for (const SelectKernel& kernel : select_table()) {
    EXPECT_TRUE(std::ranges::any_of(names, [&](const auto& name) {
      return name.first == kernel.operation;
    })) << kernel.name;
  }
}

}  // namespace
}  // namespace keyhole::judge
