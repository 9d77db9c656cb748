// src/runtime/list_facts.cpp
#include "runtime/list_facts.h"

#include "base/check.h"
#include "base/int_math.h"
#include "plan/plan_state.h"

namespace keyhole {

bool PlanFacts::has_tiles() const { return plan_->state().forms().has_tiles; }
bool PlanFacts::has_key_lists() const { return plan_->state().forms().has_key_lists; }
double PlanFacts::num_lists(const TileShape& tile) const {
  const Shape& shape = plan_->shape();
  return double(shape.batch * shape.heads) * double(ceil_div(shape.q_len, tile.q));
}
double PlanFacts::num_tiles(const TileShape& tile) const {
  return plan_->state().estimate_tiles(tile);
}
std::string PlanFacts::shapes() const {
  std::string text;
  for (const TileShape& tile : plan_->state().compiled_shapes()) {
    text += (text.empty() ? "" : ", ") + to_string(tile);
  }
  return "the plan's file has lists of " + text + " alone";
}
bool PlanFacts::visits_queries_once(const TileShape& tile) const {
  if (has_key_lists() || num_tiles(tile) < 0) return false;
  const PlanView view = plan_->state().view(tile, /*with_transposed=*/false);
  return view.tiles.size() == 1 && view.tiles[0].lengths.most <= 1;
}

double TileListFacts::num_lists(const TileShape& tile) const {
  const TileShape& whole = lists_->tile;
  const int64_t* const shape = lists_->tiles.shape;
  return double(shape[0] * shape[1] * shape[2]) * double(whole.q / tile.q);
}
double TileListFacts::num_tiles(const TileShape& tile) const {
  const TileShape& whole = lists_->tile;
  if (whole.q % tile.q != 0 || whole.k % tile.k != 0) return -1;
  return num_lists(tile) * double(lists_->tiles.shape[3]) * double(whole.k / tile.k);
}
std::string TileListFacts::shapes() const {
  return say("the lists are of tiles of ", to_string(lists_->tile));
}
bool TileListFacts::visits_queries_once(const TileShape& tile) const {
  return lists_->tiles.shape[3] * (lists_->tile.k / tile.k) <= 1;
}

FactsOf::FactsOf(const Lists& lists)
    : facts_(std::visit(
          [](const auto& from) -> std::variant<PlanFacts, IndexFacts, TileListFacts> {
            using From = std::decay_t<decltype(from)>;
            if constexpr (std::is_same_v<From, Plan>) {
              return PlanFacts(from);
            } else if constexpr (std::is_same_v<From, KeyListView>) {
              return IndexFacts();
            } else {
              return TileListFacts(from);
            }
          },
          lists.get())) {}

const ListFacts& FactsOf::get() const {
  return std::visit([](const auto& facts) -> const ListFacts& { return facts; }, facts_);
}

}  // namespace keyhole
