// tests/support/loss_cases.h
// The cases of index losses that kernels of every device are compared with the definition on.
#pragma once

#include <span>

#include "base/random.h"
#include "support/select_checks.h"

namespace keyhole::test {

inline std::vector<LossCase> loss_cases_of_plans(std::span<const DType> dtypes) {
  std::vector<LossCase> cases;
  for (const char* pattern : {"causal", "dense", "window(9)", "dilated(3)", "causal | dilated(5)",
                              "random(4, 1, 7)", "~dense"}) {
    for (const DType dtype : dtypes) {
      cases.push_back({.batch = 2,
                       .groups = 2,
                       .heads = 3,
                       .target_heads = 4,
                       .kv_heads = 2,
                       .q_len = 70,
                       .entries = 75,
                       .dtype = dtype,
                       .target_dtype = dtype,
                       .has_scale = true,
                       .pattern = parse(pattern),
                       .layout = Layout::padded});
    }
  }
  return cases;
}

inline std::vector<LossCase> loss_cases_of_selected_keys(std::span<const DType> dtypes) {
  std::vector<LossCase> cases;
  for (const int64_t selected : {1, 7, 64, 100, 200}) {
    for (const DType dtype : dtypes) {
      cases.push_back({.batch = 2,
                       .groups = 2,
                       .heads = 3,
                       .target_heads = 8,
                       .kv_heads = 2,
                       .q_len = 20,
                       .entries = 150,
                       .dtype = dtype,
                       .target_dtype = dtype == DType::e4m3 ? DType::bf16 : dtype,
                       .has_w = selected != 7,
                       .pattern = causal(),
                       .selected = selected});
    }
  }
  return cases;
}

// One group for all heads, a kv head for several groups, a group with several kv heads.
inline std::vector<LossCase> loss_cases_of_heads() {
  struct Heads {
    int64_t groups, heads, target_heads, kv_heads;
  };
  std::vector<LossCase> cases;
  for (const Heads& h : {Heads{1, 64, 8, 8}, Heads{4, 1, 4, 1}, Heads{2, 2, 12, 6},
                         Heads{1, 1, 1, 1}, Heads{3, 2, 6, 2}, Heads{1, 33, 70, 1}}) {
    for (const int64_t selected : {0, 5}) {
      cases.push_back({.groups = h.groups,
                       .heads = h.heads,
                       .head_dim = 130,
                       .target_heads = h.target_heads,
                       .kv_heads = h.kv_heads,
                       .target_dim = 70,
                       .q_len = 40,
                       .entries = 40,
                       .selected = selected});
    }
  }
  return cases;
}

// Entries that stand for several keys; the last one has fewer, and the query's own is not over.
inline std::vector<LossCase> loss_cases_of_pooled_keys(std::span<const DType> dtypes) {
  std::vector<LossCase> cases;
  for (const int64_t keys_per_entry : {2, 4, 33}) {
    for (const int64_t selected : {0, 1, 6, 200}) {
      for (const DType dtype : dtypes) {
        cases.push_back(
            {.batch = 2,
             .groups = 2,
             .heads = 3,
             .target_heads = 8,
             .kv_heads = 2,
             .q_len = 70,
             .entries = 180 / keys_per_entry,
             .keys_per_entry = keys_per_entry,
             .missing_keys = keys_per_entry / 2,
             .dtype = dtype,
             .target_dtype = dtype,
             .has_scale = keys_per_entry == 4,
             .pattern = selected == 0 && keys_per_entry == 2 ? parse("dilated(3)") : causal(),
             .selected = selected,
             .rows = selected == 6 ? std::vector<int32_t>{0, 3, 69} : std::vector<int32_t>{},
             .other_weight = 0.5});
      }
    }
  }
  return cases;
}

// What tensor cores take: heads in one tile and in several, a kv head for several groups and the
// other way round, columns that fill no tile, rows of no key, a few, and more than a block; few
// rows, whose keys several CTAs share.
inline std::vector<LossCase> loss_cases_of_tensor_cores(DType dtype) {
  const LossCase plain{.heads = 3,
                       .head_dim = 32,
                       .target_heads = 4,
                       .kv_heads = 2,
                       .target_dim = 40,
                       .q_len = 70,
                       .entries = 75,
                       .dtype = dtype,
                       .target_dtype = dtype};
  const auto with = [&](auto change) {
    LossCase c = plain;
    change(c);
    return c;
  };
  std::vector<LossCase> cases;
  for (const int64_t selected : {0, 1, 40, 200}) {
    cases.push_back(with([&](LossCase& c) {
      c.batch = 2, c.groups = 2, c.has_scale = true, c.selected = selected;
      c.layout = Layout::bshd;
    }));
    cases.push_back(with([&](LossCase& c) {
      c.heads = 33, c.head_dim = 64, c.target_heads = 16, c.kv_heads = 1, c.target_dim = 136;
      c.q_len = 20, c.entries = 300, c.offset = 280, c.selected = selected;
      c.has_w = selected != 1;
    }));
    cases.push_back(with([&](LossCase& c) {
      c.groups = 2, c.heads = 64, c.head_dim = 128, c.target_heads = 160, c.kv_heads = 1;
      c.target_dim = 72, c.q_len = 9, c.entries = 400, c.pattern = parse("dilated(3)");
      c.selected = selected;
    }));
    cases.push_back(with([&](LossCase& c) {
      c.heads = 20, c.target_heads = 40, c.kv_heads = 10, c.softcap = 0.8, c.scale = 0.5;
      c.other_weight = 3, c.rows = {0, 3, 4, 69}, c.selected = selected;
    }));
    cases.push_back(with([&](LossCase& c) {
      c.heads = 128, c.head_dim = 200, c.target_heads = 300, c.kv_heads = 1, c.target_dim = 8;
      c.q_len = 3, c.entries = 700, c.pattern = selected == 40 ? ~dense() : window(200);
      c.offset = 600, c.selected = selected;
    }));
    cases.push_back(with([&](LossCase& c) {
      c.heads = 16, c.head_dim = 64, c.target_dim = 64, c.q_len = 2, c.entries = 5000;
      c.pattern = dense(), c.selected = selected * 20, c.rows = {1};
    }));
  }
  return cases;
}

// Softcap, scale, and keys elsewhere that share the softmax: a window, a sink.
inline std::vector<LossCase> loss_cases_of_rules() {
  std::vector<LossCase> cases;
  for (const int64_t selected : {0, 9}) {
    LossCase c{.target_heads = 4, .q_len = 40, .entries = 40, .selected = selected};
    c.softcap = 0.8;
    cases.push_back(c);
    c.scale = 0.5;
    cases.push_back(c);
    c.other_weight = 3;
    cases.push_back(c);
    c.target_dtype = DType::f64;
    cases.push_back(c);
  }
  return cases;
}

inline std::vector<LossCase> loss_cases_of_rows() {
  std::vector<LossCase> cases;
  for (const int64_t selected : {0, 9}) {
    for (const std::vector<int32_t>& rows : {std::vector<int32_t>{0}, {3, 4, 5, 39}, {38}}) {
      cases.push_back(
          {.groups = 2, .q_len = 40, .entries = 40, .selected = selected, .rows = rows});
    }
  }
  return cases;
}

inline LossCase random_loss_case(uint64_t seed, std::vector<DType> dtypes) {
  Random random(seed);
  const int64_t groups = random.between(1, 3), kv_heads = random.between(1, 2) * groups;
  return {.batch = random.between(1, 2),
          .groups = groups,
          .heads = random.between(1, 5),
          .head_dim = random.pick<int64_t>({1, 8, 65}),
          .target_heads = kv_heads * random.between(1, 3),
          .kv_heads = kv_heads,
          .target_dim = random.pick<int64_t>({1, 16, 80}),
          .q_len = random.pick<int64_t>({1, 33, 65}),
          .entries = random.pick<int64_t>({1, 64, 130}),
          .dtype = dtypes[size_t(random.below(int64_t(dtypes.size())))],
          .has_w = random.chance(70),
          .has_scale = random.chance(40),
          .pattern = random.pick<Pattern>({causal(), dense(), window(7), dilated(4)}),
          .selected = random.chance(50) ? random.between(1, 70) : 0,
          .softcap = random.chance(20) ? 2.0 : 0.0,
          .layout = random.pick({Layout::contiguous, Layout::bshd, Layout::padded}),
          .threads = int(random.between(0, 3)),
          .seed = random.next()};
}

}  // namespace keyhole::test
