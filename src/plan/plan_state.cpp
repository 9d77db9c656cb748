// src/plan/plan_state.cpp
// Compiles lists on first use, under one lock. Compiled lists are never moved or changed
// afterwards, except that transposed lists are added once.
#include "plan/plan_state.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "pattern/node.h"
#include "plan/compile.h"
#include "plan/estimate.h"

namespace keyhole {
namespace {

bool is_tiles(const PartSpec& part) { return part.key.form == PartForm::tiles; }

std::vector<TileView> views_of(const std::vector<TileLists>& parts) {
  std::vector<TileView> views;
  for (const TileLists& part : parts) views.push_back(part.view());
  return views;
}

std::string join_shapes(const std::vector<TileShape>& shapes) {
  std::string text;
  for (const TileShape& shape : shapes) text += (text.empty() ? "" : ", ") + to_string(shape);
  return text.empty() ? "none" : text;
}

}  // namespace

PlanState::PlanState(const Pattern& pattern, const Shape& shape, SplitPolicy policy)
    : pattern_text_(pattern.text()), shape_(shape), parts_(split_parts(pattern, shape, policy)) {
  for (const PartSpec& part : *parts_) {
    (is_tiles(part) ? forms_.has_tiles : forms_.has_key_lists) = true;
  }
  forms_.num_parts = parts_->size();
}

PlanState::PlanState(std::string pattern_text, const Shape& shape,
                     std::optional<std::vector<PartSpec>> tile_parts,
                     std::map<TileShape, CompiledTiles> tiles, std::vector<KeyLists> gathers)
    : pattern_text_(std::move(pattern_text)), shape_(shape), parts_(std::move(tile_parts)) {
  for (auto& [tile, compiled] : tiles) {
    compiled.views = views_of(compiled.parts);
    tiles_[tile] = std::make_unique<CompiledTiles>(std::move(compiled));
  }
  gathers_ = std::move(gathers);
  forms_.has_key_lists = !gathers_.empty();
  for (const auto& [tile, compiled] : tiles_) {
    forms_.has_tiles = forms_.has_tiles || !compiled->parts.empty();
    forms_.num_parts = compiled->parts.size() + gathers_.size();
  }
  for (const KeyLists& lists : gathers_) gather_views_.push_back(lists.view());
  gathers_are_compiled_ = true;
}

bool PlanState::is_opaque() const {
  if (!parts_) return false;
  return std::any_of(parts_->begin(), parts_->end(), [](const PartSpec& part) {
    return std::any_of(part.group_nodes.begin(), part.group_nodes.end(),
                       [](const NodePtr& node) { return node->is_opaque(); });
  });
}

CompiledTiles& PlanState::compiled(TileShape tile) {
  KEYHOLE_CHECK(tile.q >= 1 && tile.k >= 1 && tile.q <= 1024 && tile.k <= 1024, "plan: tile ",
                to_string(tile), " is outside 1x1 .. 1024x1024");
  if (const auto known = tiles_.find(tile); known != tiles_.end()) return *known->second;
  if (!parts_) {
    throw Error(ErrorKind::unsupported,
                say("plan: it was loaded from a file and its pattern ", pattern_text_,
                    " cannot be made again from that text, so there are no lists for tile ",
                    to_string(tile), "; it holds lists for ", join_shapes(shapes_locked()),
                    "; make the plan from its pattern instead"));
  }
  const auto begin = std::chrono::steady_clock::now();
  auto result = std::make_unique<CompiledTiles>();
  for (const PartSpec& part : *parts_) {
    if (is_tiles(part)) result->parts.push_back(compile_tiles(part, shape_, tile));
  }
  result->views = views_of(result->parts);
  result->compile_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return *(tiles_[tile] = std::move(result));
}

std::vector<TileShape> PlanState::shapes_locked() const {
  std::vector<TileShape> shapes;
  for (const auto& [tile, compiled] : tiles_) shapes.push_back(tile);
  return shapes;
}

bool PlanState::can_compile(TileShape tile) {
  const std::lock_guard lock(mutex_);
  return tiles_.contains(tile) || parts_.has_value();
}

TileShape PlanState::usual_tile() {
  constexpr TileShape kUsual = {128, 128};
  if (can_compile(kUsual)) return kUsual;
  const std::vector<TileShape> shapes = compiled_shapes();
  return shapes.empty() ? kUsual : shapes.front();
}

std::vector<TileShape> PlanState::compiled_shapes() {
  const std::lock_guard lock(mutex_);
  return shapes_locked();
}

const CompiledTiles& PlanState::tiles(TileShape tile) {
  const std::lock_guard lock(mutex_);
  return compiled(tile);
}

void PlanState::compile_gathers() {
  if (gathers_are_compiled_) return;
  std::vector<KeyLists> lists;
  for (const PartSpec& part : *parts_) {
    if (!is_tiles(part)) lists.push_back(compile_keys(part, shape_));
  }
  gathers_ = std::move(lists);
  for (const KeyLists& gather : gathers_) gather_views_.push_back(gather.view());
  gathers_are_compiled_ = true;
}

const std::vector<KeyLists>& PlanState::gathers() {
  const std::lock_guard lock(mutex_);
  compile_gathers();
  return gathers_;
}

const std::vector<GatherView>& PlanState::gather_views() {
  const std::lock_guard lock(mutex_);
  compile_gathers();
  return gather_views_;
}

PlanView PlanState::view(TileShape tile, bool with_transposed) {
  const std::lock_guard lock(mutex_);
  CompiledTiles& compiled_tiles = compiled(tile);
  compile_gathers();
  if (with_transposed && !compiled_tiles.is_transposed) {
    // Views handed out before keep pointing at the forward lists, which do not move.
    for (TileLists& part : compiled_tiles.parts) transpose(part);
    compiled_tiles.transposed_views = views_of(compiled_tiles.parts);
    compiled_tiles.is_transposed = true;
  }
  if (with_transposed && !gathers_are_transposed_) {
    for (KeyLists& gather : gathers_) transpose(gather);
    for (const KeyLists& gather : gathers_) transposed_gather_views_.push_back(gather.view());
    gathers_are_transposed_ = true;
  }
  if (with_transposed) return {compiled_tiles.transposed_views, transposed_gather_views_};
  return {compiled_tiles.views, gather_views_};
}

std::shared_ptr<void> PlanState::attached(const std::string& name,
                                          const std::function<std::shared_ptr<void>()>& make) {
  const std::lock_guard lock(attached_mutex_);
  std::shared_ptr<void>& found = attached_[name];
  if (found == nullptr) found = make();
  return found;
}

double PlanState::estimate_tiles(TileShape tile) {
  const std::lock_guard lock(mutex_);
  if (const auto known = estimates_.find(tile); known != estimates_.end()) return known->second;
  double total = 0;
  if (tiles_.contains(tile)) {
    for (const TileLists& part : compiled(tile).parts) {
      std::vector<double> tiles_of_group(size_t(part.groups), 0);
      const int64_t per_group = part.lists_per_group();
      for (size_t list = 0; list < part.list_count.size(); ++list) {
        for (int32_t i = 0; i < part.list_count[list]; ++i) {
          tiles_of_group[list / size_t(per_group)] +=
              part.runs[size_t(part.list_begin[list] + i)].count;
        }
      }
      for (const int32_t group : part.group_of)
        total += group < 0 ? 0 : tiles_of_group[size_t(group)];
    }
  } else if (!parts_) {
    return -1;
  } else {
    for (const PartSpec& part : *parts_) {
      if (!is_tiles(part)) continue;
      std::vector<double> tiles_of_group;
      for (const NodePtr& node : part.group_nodes) {
        tiles_of_group.push_back(keyhole::estimate_tiles(*node, shape_, part.key.stride, tile));
      }
      for (const int32_t group : part.group_of)
        total += group < 0 ? 0 : tiles_of_group[size_t(group)];
    }
  }
  estimates_[tile] = total;
  return total;
}

}  // namespace keyhole
