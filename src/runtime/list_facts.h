// src/runtime/list_facts.h
// What dispatch needs to know about lists: those of a plan, an index tensor, or tile lists.
#pragma once

#include <variant>

#include "kernels/contract.h"
#include "keyhole/lists.h"

namespace keyhole {

class PlanFacts final : public ListFacts {
 public:
  explicit PlanFacts(const Plan& plan) : plan_(&plan) {}
  bool has_tiles() const override;
  bool has_key_lists() const override;
  double num_lists(const TileShape& tile) const override;
  double num_tiles(const TileShape& tile) const override;
  std::string shapes() const override;
  bool visits_queries_once(const TileShape& tile) const override;

 private:
  const Plan* plan_;
};

class IndexFacts final : public ListFacts {
 public:
  bool has_tiles() const override { return false; }
  bool has_key_lists() const override { return true; }
  double num_lists(const TileShape&) const override { return 0; }
  double num_tiles(const TileShape&) const override { return 0; }
  std::string shapes() const override { return {}; }
  bool visits_queries_once(const TileShape&) const override { return false; }
};

// Only the capacity of such lists is known, not their contents: costs assume full lists.
class TileListFacts final : public ListFacts {
 public:
  explicit TileListFacts(const TileListView& lists) : lists_(&lists) {}
  bool has_tiles() const override { return true; }
  bool has_key_lists() const override { return false; }
  double num_lists(const TileShape& tile) const override;
  double num_tiles(const TileShape& tile) const override;
  std::string shapes() const override;
  bool visits_queries_once(const TileShape& tile) const override;

 private:
  const TileListView* lists_;
};

// The facts of any lists. The lists must outlive it.
class FactsOf {
 public:
  explicit FactsOf(const Lists& lists);
  const ListFacts& get() const;
  operator const ListFacts&() const { return get(); }  // NOLINT: meant to convert

 private:
  std::variant<PlanFacts, IndexFacts, TileListFacts> facts_;
};

}  // namespace keyhole
