// tests/support/gather_cases.h
// The cases of index tensors that every backend is held to.
#pragma once

#include <vector>

#include "support/gather_problem.h"

namespace keyhole::test {

// Entries are 32-bit and side by side; with each case goes one of 64-bit entries and one of strided
// ones.
inline std::vector<GatherCase> gather_cases() {
  return {
      {.name = "one list", .q_len = 5, .k_len = 70, .entries = 40},
      {.name = "heads of a group share lists",
       .batch = 2,
       .heads = 8,
       .kv_heads = 2,
       .index_heads = 2,
       .q_len = 9,
       .k_len = 90,
       .entries = 33,
       .filling = Filling::gaps},
      {.name = "heads with lists of their own",
       .heads = 6,
       .kv_heads = 2,
       .index_heads = 6,
       .q_len = 7,
       .k_len = 50,
       .entries = 80},
      {.name = "all heads share lists",
       .batch = 3,
       .heads = 4,
       .kv_heads = 2,
       .index_heads = 1,
       .q_len = 6,
       .k_len = 40,
       .entries = 17,
       .filling = Filling::full},
      {.name = "sixteen heads, long lists, long gaps",
       .heads = 16,
       .kv_heads = 1,
       .index_heads = 1,
       .q_len = 11,
       .k_len = 300,
       .entries = 333,
       .head_dim = 64,
       .v_head_dim = 64,
       .filling = Filling::gaps,
       .has_sink = true},
      {.name = "queries share a list, the last one has few",
       .heads = 4,
       .kv_heads = 2,
       .index_heads = 2,
       .q_len = 21,
       .k_len = 60,
       .entries = 30,
       .head_dim = 24,
       .v_head_dim = 40,
       .rows_per_list = 8},
      {.name = "one list for all queries, twenty heads",
       .heads = 20,
       .kv_heads = 1,
       .index_heads = 20,
       .q_len = 5,
       .k_len = 33,
       .entries = 70,
       .rows_per_list = 100,
       .filling = Filling::gaps},
      {.name = "keys are named many times", .q_len = 4, .k_len = 3, .entries = 100},
      {.name = "softcap",
       .batch = 2,
       .heads = 4,
       .kv_heads = 1,
       .index_heads = 1,
       .q_len = 6,
       .k_len = 50,
       .entries = 20,
       .has_sink = true,
       .softcap = 1.5},
      {.name = "wide heads",
       .heads = 3,
       .kv_heads = 1,
       .index_heads = 3,
       .q_len = 4,
       .k_len = 40,
       .entries = 21,
       .head_dim = 130,
       .v_head_dim = 200},
      {.name = "widest heads",
       .q_len = 3,
       .k_len = 40,
       .entries = 21,
       .head_dim = 576,
       .v_head_dim = 321},
      {.name = "nothing but padding",
       .batch = 2,
       .heads = 4,
       .kv_heads = 2,
       .index_heads = 2,
       .q_len = 5,
       .k_len = 20,
       .entries = 40,
       .filling = Filling::empty,
       .has_sink = true},
      {.name = "no entries", .heads = 2, .q_len = 5, .k_len = 20, .entries = 0},
      {.name = "no queries", .heads = 2, .q_len = 0, .k_len = 20, .entries = 4},
      {.name = "no keys", .heads = 2, .q_len = 3, .k_len = 0, .entries = 4},
      {.name = "no batch", .batch = 0, .q_len = 3, .k_len = 9, .entries = 4},
  };
}

// The same lists in the other forms of memory.
inline std::vector<GatherCase> in_all_forms(const GatherCase& c) {
  std::vector<GatherCase> forms(3, c);
  forms[1].is_wide = true;
  forms[2].is_strided = true;
  forms[2].is_wide = c.entries % 2 != 0;
  return forms;
}

}  // namespace keyhole::test
