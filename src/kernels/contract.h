// src/kernels/contract.h
// The only types a kernel receives. The API has checked every tensor: ranks, sizes, dtypes and head
// counts match each other, lengths match the plan.
#pragma once

#include <climits>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/weight_rule.h"
#include "keyhole/tensor.h"
#include "plan/view.h"

namespace keyhole {

// Where a GPU kernel runs: the stream for its launches, and the scratch memory it is given.
struct Launch {
  void* stream = nullptr;     // cudaStream_t
  void* workspace = nullptr;  // 256-byte aligned, at least as large as the entry requires
  int64_t workspace_bytes = 0;
  int num_processors = 0;    // SMs of the GPU
  int64_t shared_bytes = 0;  // the maximum per CTA
  int64_t l2_cache_bytes = 0;
};

// The keys of each row that have weight, for kernels of entmax and top_k (keyhole/normalizer.h).
// Its rows are contiguous.
struct SupportRows {
  int32_t* keys = nullptr;  // null: not given
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0;

  bool is_given() const { return keys != nullptr; }
  int32_t* row(int64_t batch, int64_t head, int64_t query) const {
    return keys + batch * batch_stride + head * head_stride + query * row_stride;
  }
};

struct ForwardArgs {
  TensorView q, k, v;  // [batch, heads or kv_heads, length, head_dim]
  TensorView out;      // [batch, heads, q_len, v_head_dim], dtype of q
  TensorView lse;      // [batch, heads, q_len] f32 (f64 for f64 inputs), or not given
  SupportRows support;
  WeightRule rule;
  TensorView sink;  // [heads] f32, or not given
  PlanView plan;
  int threads = 0;  // cpu
  Launch launch;    // gpu
};

// How the gradients are added up, and in which order. Dispatch decides it once
// (runtime/dispatch.h).
enum class DqOrder : uint8_t {
  by_queries,  // a launch of its own, by query tile: always the same order
  written,     // the launch by key tile writes it: no query tile is visited twice
  atomic,      // the launch by key tile adds it up in any order
  by_turns,    // the launch by key tile adds it up, key tile after key tile: always the same order
};
// Whether the launch by key tile adds dq to sums.
constexpr bool is_added_up(DqOrder order) {
  return order == DqOrder::atomic || order == DqOrder::by_turns;
}
enum class SumOrder : uint8_t {
  fixed,     // a CTA follows one head after another, or there is one
  atomic,    // added to fp32 sums in any order
  by_turns,  // added to fp32 sums, head after head: always the same order
};
enum class KeyListOrder : uint8_t {
  by_key,   // key after key, from the lists that name it: always the same order
  by_span,  // spans of keys, list after list: always the same order (device/span_lists.h)
  atomic,   // list after list, added up in any order
};
struct BackwardSchedule {
  DqOrder dq = DqOrder::by_queries;
  SumOrder heads = SumOrder::fixed;               // dk and dv of query heads that share a kv head
  KeyListOrder key_lists = KeyListOrder::by_key;  // dk and dv of key lists
  bool splits_lists = false;  // long lists by key tile are split into chunks, combined in order
  bool operator==(const BackwardSchedule&) const = default;
};
std::string to_string(const BackwardSchedule& schedule);  // "dq atomic, dk and dv in order"

struct BackwardArgs {
  TensorView dout, q, k, v, out, lse;
  TensorView dq, dk, dv;
  TensorView sink, dsink;  // [heads] f32, or not given
  TensorView dlse;         // like lse, or not given; for entmax and top_k
  SupportRows support;
  WeightRule rule;
  PlanView plan;  // with transposed lists
  BackwardSchedule schedule;
  int threads = 0;  // cpu
  Launch launch;    // gpu
};

enum class Operation : uint8_t { forward, backward };
const char* to_string(Operation operation);

// What dispatch needs to know about lists before a kernel is chosen, whatever their source.
class ListFacts {
 public:
  virtual bool has_tiles() const = 0;
  virtual bool has_key_lists() const = 0;
  // The number of lists for query tiles of this shape, over all heads of the lists.
  virtual double num_lists(const TileShape& tile) const = 0;
  // An estimate of how many tiles of this shape they contain; negative: they do not support the
  // shape.
  virtual double num_tiles(const TileShape& tile) const = 0;
  // Which shapes they support, as text; empty: any.
  virtual std::string shapes() const = 0;
  // True if there are no key lists and no query tile has two key tiles.
  virtual bool visits_queries_once(const TileShape& tile) const = 0;

 protected:
  ~ListFacts() = default;
};

// The sizes of the key lists of a call: of an index tensor, or of a plan.
struct KeyListSizes {
  // That share a list: query heads of a kv head, for every query of the list. 0: not known.
  int64_t rows = 0;
  int64_t room = 0;  // keys of the longest list, counting padding
  int64_t keys = 0;  // of a list: the mean in a plan, all that have room in an index tensor
  int64_t k_len = 0;
};

// A request for a kernel.
struct Request {
  std::string backend;  // "auto" or a backend's name
  Operation operation = Operation::forward;
  DType dtype = DType::f32;
  int64_t head_dim = 0, v_head_dim = 0;
  Device device = {};          // where the tensors are
  int compute_capability = 0;  // of a GPU: 10 * major + minor
  int64_t shared_bytes = 0;    // of a GPU, per CTA
  Normalizer normalizer = {};
  bool has_softcap = false;
  double softcap = 0;
  bool has_sink = false;
  bool deterministic = false;        // for a backward pass: the same bits every time
  bool shares_kv_heads = false;      // several query heads share a kv head
  const ListFacts* lists = nullptr;  // null: any
  KeyListSizes key_lists = {};       // for a deterministic pass
  bool is_aligned = true;            // every row of every tensor begins at a multiple of 16 bytes
  // Why TMA cannot read and write the tensors in place, as text; empty when it can.
  std::string why_no_tma = {};
  // Why a call is not in latent form, as text; empty when it is: key lists that all query heads of
  // a kv head share, and v that is the first columns of k.
  std::string why_not_latent = "takes v as the first columns of k";
};

// A kernel with persistent CTAs, each of which processes its share of the work items (view.h).
struct Persistence {
  int ctas_per_processor = 1;  // 0: one CTA per item for this tile
  double tiles_per_item = 0;   // the fixed cost of an item, in tiles
  double cache_share = 0;      // the share of the L2 cache that a section of heads may fill
};

// Which calls a kernel is compiled for: plain softmax, or entmax and top_k.
enum class Weights : uint8_t { softmax, sparse };
constexpr Weights weights_of(const Normalizer& normalizer) {
  return normalizer.is_plain_softmax() ? Weights::softmax : Weights::sparse;
}

// One row of the kernel table.
struct KernelEntry {
  std::string name;     // backend.operation.dtype
  std::string backend;  // "cpu", "simple", "sm80", "sm90"
  Device::Kind device = Device::Kind::cpu;
  Operation operation;
  DType dtype;
  int64_t max_head_dim;          // of q, k and of v
  std::vector<TileShape> tiles;  // it supports; the runtime takes the cheapest for the lists
  // The cost of `num_tiles` tiles in `num_lists` lists. The unit is a pair in the best tile of the
  // best kernel of its rank.
  double (*cost)(const TileShape& tile, double num_tiles, double num_lists);
  void (*forward)(const ForwardArgs& args);    // null unless operation == forward
  void (*backward)(const BackwardArgs& args);  // null unless operation == backward

  // Among kernels without an objection, the lowest rank wins, then the lowest cost.
  int rank = 0;
  Weights weights = Weights::softmax;
  Bend bend = Bend::either;  // the calls it is compiled for: with a softcap, without, or both
  // How a backward pass adds up gradients; null: in a fixed order.
  BackwardSchedule (*schedule)(const Request& request, const TileShape& tile) = nullptr;

  // GPU kernels.
  BitmapLayout bitmaps = BitmapLayout::row_major;
  int min_compute_capability = 0;
  int max_compute_capability = INT_MAX;  // for instructions that only one generation has
  // Tensor cores: weights and score gradients are rounded to the dtype before they are multiplied.
  bool rounds_weights = false;
  // Other requests it refuses, with the reason as text; null: none.
  std::string (*objection)(const Request& request) = nullptr;
  // For the chosen tile; null: one CTA per item.
  Persistence (*persistence)(const TileShape& tile) = nullptr;
  // The workspace of a call. The structs of its plan are filled in, but its pointers need not be
  // valid. Null: none.
  int64_t (*forward_workspace)(const ForwardArgs& args) = nullptr;
  int64_t (*backward_workspace)(const BackwardArgs& args) = nullptr;
};

}  // namespace keyhole
