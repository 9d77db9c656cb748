// include/keyhole/plan.h
// Plan: a pattern compiled for a shape. Compiled once, used by every kernel; it can be printed,
// saved and loaded.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "keyhole/pattern.h"

namespace keyhole {

// Rows (queries) and columns (keys) of one tile. The kernel chooses it, never the user.
struct TileShape {
  int32_t q = 0, k = 0;
  bool operator==(const TileShape&) const = default;
  auto operator<=>(const TileShape&) const = default;
};

std::string to_string(const TileShape& tile);  // "128x128"

// What explain() reports about one part of a plan.
struct PartReport {
  std::string form;    // "tiles" or "gather"
  int64_t stride = 1;  // > 1: compiled inside residue classes modulo stride
  int64_t pairs = 0;   // pairs that attend, over all heads and batch entries
  int64_t groups = 0;  // groups of heads with equal lists
  int64_t heads = 0;   // (batch entry, head) combinations that have this part
  int64_t tiles = 0, full_tiles = 0, partial_tiles = 0,
          grid_tiles = 0;                           // tiles form; over all heads
  int64_t runs = 0, bitmaps = 0, bitmap_bytes = 0;  // tiles form; stored
  int64_t lists = 0, keys = 0;                      // gather form; stored
  int64_t visited_pairs = 0;  // pairs a kernel computes for this part, attending or not
};

// The cost of a plan in numbers. FLOPs and bytes are for the given head_dim and dtype size.
struct PlanReport {
  std::string pattern;
  Shape shape;
  TileShape tile;
  std::vector<PartReport> parts;
  int64_t pairs = 0, all_pairs = 0;
  int64_t visited_pairs = 0;
  double waste = 0;            // share of visited pairs that do not attend
  double flops_forward = 0;    // 4 * pairs * head_dim
  double flops_backward = 0;   // 10 * pairs * head_dim
  double flops_per_token = 0;  // forward, of all heads
  double dense_flops_forward = 0;
  double bytes_moved = 0;  // q, k, v read once per list that visits them, out and lse written
  // Over dense attention of the same shape in tiles of the same shape, by the pairs that both
  // visit; 0 if this plan visits none.
  double predicted_speedup = 0;
  double compile_ms = 0;
  int64_t plan_bytes = 0;
  bool draws_pair_by_pair = false;  // a lambda made the compiler visit every pair

  std::string speedup_text() const;  // "13.3x"; "0.27x" where dense is faster; "none" for 0
  std::string text() const;
  std::string json() const;
};

class PlanState;  // src/plan/plan_state.h

// A Plan is a cheap handle; copies share what was compiled. Safe to use from several threads.
class Plan {
 public:
  explicit Plan(std::shared_ptr<PlanState> state) : state_(std::move(state)) {}

  const Shape& shape() const;
  const std::string& pattern_text() const;

  // What the plan costs in tiles of this shape, per call with this head_dim and element size.
  PlanReport explain(TileShape tile, int64_t head_dim = 128, int64_t element_bytes = 4) const;
  // With tiles of 128x128. A plan loaded from a file may lack them; then with tiles it has.
  PlanReport explain() const;
  std::string text() const { return explain().text(); }

  // Checks every list compiled so far. Throws Error(internal) that names the first violation.
  void verify() const;

  // Writes to a temporary file and renames it: the path holds the old plan or the new one. A pipe
  // or a device is written to as it stands.
  void save(const std::string& path) const;
  static Plan load(const std::string& path);

  PlanState& state() const { return *state_; }

 private:
  std::shared_ptr<PlanState> state_;
};

// Compiles what does not depend on a tile shape. Tile lists are compiled on first use.
Plan plan(const Pattern& pattern, const Shape& shape);
Plan plan(const Pattern& pattern, int64_t q_len, int64_t k_len);

}  // namespace keyhole
