// tests/support/gather_problem.h
// Attention over an index tensor, for tests: poisoned tensors on the host, lists drawn from a seed
// with padding anywhere and keys named twice, and what the definition makes of them in fp64.
#pragma once

#include <string>
#include <vector>

#include "keyhole/gather.h"
#include "support/case_tensors.h"

namespace keyhole::test {

enum class Filling {
  mixed,    // some keys, some padding after them; some lists are empty
  full,     // no padding
  gaps,     // padding anywhere, also before the first key and over whole steps of a kernel
  empty,    // nothing but padding
  hostile,  // gaps, where entries that are no keys at all stand beside -1
};

struct GatherCase {
  const char* name = "";
  int64_t batch = 1, heads = 1, kv_heads = 1, index_heads = 1;
  int64_t q_len = 1, k_len = 1, entries = 1;
  int64_t head_dim = 16, v_head_dim = 16, rows_per_list = 1;
  int64_t keys_per_entry = 1;
  bool has_counts = false;  // behind a count stand entries that must not be read
  bool causal = false;
  Filling filling = Filling::mixed;
  bool is_wide = false, is_strided = false;
  bool has_sink = false;
  double softcap = 0;
  DType dtype = DType::f32;
};
std::string to_text(const GatherCase& c);

// What stands in the indices, wherever they lie.
class IndexMemory {
 public:
  IndexMemory(const GatherCase& c, uint64_t seed);

  IndexView view() const;     // in host memory
  KeyListView lists() const;  // the same with all that the case says of its entries
  // All of it, gaps between strided entries included, and where the view begins there.
  std::vector<std::byte> bytes() const;
  int64_t offset_bytes() const { return first_ * (c_.is_wide ? 8 : 4); }
  std::vector<std::byte> count_bytes() const;  // nothing, if there are none

  int64_t get(int64_t batch, int64_t head, int64_t list, int64_t place) const;
  void set(int64_t batch, int64_t head, int64_t list, int64_t place, int64_t value);
  // The keys that a query of a query head attends to, one for each time it is named.
  std::vector<int64_t> keys(int64_t batch, int64_t head, int64_t query) const;

 private:
  int64_t place_of(int64_t batch, int64_t head, int64_t list, int64_t place) const;
  int64_t number_of(int64_t batch, int64_t head, int64_t list) const {
    return (batch * shape_[1] + head) * shape_[2] + list;
  }

  GatherCase c_;
  int64_t shape_[4], strides_[4], first_ = 0;
  std::vector<int32_t> narrow_;
  std::vector<int64_t> wide_;
  // Per list; those of narrow entries are wide, and the other way round.
  std::vector<int64_t> counts_;
  std::vector<int32_t> narrow_counts_;
};

struct GatherProblem : InputTensors<PoisonedTensor>, OutputTensors<PoisonedTensor> {
  GatherProblem(const GatherCase& c, uint64_t seed);

  GatherCase c;
  IndexMemory indices;

  GatherOptions options() const;  // softcap and sink of the case
  std::string damage() const;     // of any tensor, after a call
  // Of out, lse, dq, dk and dv.
  std::vector<uint64_t> result_bits() const;
};

struct ListAttention {
  std::vector<double> out, lse, dq, dk, dv, dsink;
};
ListAttention by_definition(const GatherProblem& problem);

// In words, how a tensor differs from what the definition gives, beyond what rounding to `dtype`
// does; empty: not.
std::string difference(const char* name, const PoisonedTensor& got, const std::vector<double>& want,
                       DType dtype);
// The results of a pass, and bytes written where none belong.
std::string forward_difference(const GatherProblem& problem, const ListAttention& want);
std::string backward_difference(const GatherProblem& problem, const ListAttention& want);

}  // namespace keyhole::test
