// src/runtime/index_lists.h
// An index tensor for kernels. On a GPU it is read in place. On the host every entry is checked,
// and the tensor is copied only if a kernel cannot read it in place.
#pragma once

#include <cstdint>
#include <vector>

#include "keyhole/lists.h"
#include "plan/view.h"

namespace keyhole {

// The lists as a view for kernels. They have been checked, and q and k match them.
GatherView key_table(const KeyListView& keys, const TensorView& q, const TensorView& k);

// One entry of a tensor in host memory. group: batch * heads + head, with the tensor's own heads.
int64_t index_at(const IndexView& indices, int64_t group, int64_t list, int64_t place);

// An entry of a table that names no key and is not padding.
struct BadEntry {
  int32_t group = 0;
  int64_t list = 0, place = 0;
  int64_t value = 0;
};
[[noreturn]] void refuse(const char* who, const GatherView& view, const BadEntry& bad);

// An entry of a table by its index in [groups][lists][count].
BadEntry entry_of(const GatherView& view, int64_t number);

// For CPU kernels: a table of contiguous 32-bit keys, then padding. Each entry is one key, and all
// that a list does not use is padding.
class IndexLists {
 public:
  // Throws Error(usage), which begins with `who` and names the first bad entry, or count.
  IndexLists(const GatherView& view, int threads, bool with_transposed, const char* who);
  IndexLists(const IndexLists&) = delete;
  IndexLists& operator=(const IndexLists&) = delete;

  PlanView plan() const { return {{}, {&view_, 1}}; }

 private:
  void check_counts(const char* who) const;
  bool check(int threads, const char* who) const;  // whether kernels can read the table in place
  void copy_keys(int threads);
  void transpose(int threads);

  GatherView view_;
  std::vector<int32_t> keys_;  // [groups][lists][room]
  std::vector<int64_t> t_begin_;
  std::vector<int32_t> t_count_, t_lists_;
};

}  // namespace keyhole
