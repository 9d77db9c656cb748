// src/plan/plan_state.h
// What a Plan holds: its parts, and the lists compiled from them so far. Lists are compiled when a
// tile shape is first requested, and then kept. A view stays valid as long as the state lives.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "keyhole/plan.h"
#include "plan/lists.h"
#include "plan/split_parts.h"

namespace keyhole {

// All tiles-form parts of a plan for one tile shape.
struct CompiledTiles {
  std::vector<TileLists> parts;
  std::vector<TileView> views;
  std::vector<TileView> transposed_views;  // of the same lists, with the transposed ones
  bool is_transposed = false;
  double compile_ms = 0;
};

// What a kernel must support to run the plan.
struct PlanForms {
  bool has_tiles = false, has_key_lists = false;
  size_t num_parts = 0;
};

// plan(pattern, shape) with a policy other than cost for the forms of its parts; for tests.
Plan make_plan(const Pattern& pattern, const Shape& shape, SplitPolicy policy);

class PlanState {
 public:
  // From a pattern.
  PlanState(const Pattern& pattern, const Shape& shape, SplitPolicy policy);
  // From a file: its compiled lists, and the parts in tiles form they were compiled from. Other
  // tile shapes are compiled from these parts, never from a new split: a new split may differ
  // between releases, and the key lists of the file match only the old one. No parts: the file
  // could not describe them (arrays, functions), and its lists are all there is.
  PlanState(std::string pattern_text, const Shape& shape,
            std::optional<std::vector<PartSpec>> tile_parts,
            std::map<TileShape, CompiledTiles> tiles, std::vector<KeyLists> gathers);

  const Shape& shape() const { return shape_; }
  const std::string& pattern_text() const { return pattern_text_; }
  bool is_opaque() const;  // some part was drawn pair by pair
  PlanForms forms() const { return forms_; }
  // The parts that tile lists are compiled from. A plan from a file has no key-list parts here,
  // only their lists. Nothing: the file could not describe the parts.
  const std::optional<std::vector<PartSpec>>& parts() const { return parts_; }

  const CompiledTiles& tiles(TileShape tile);
  const std::vector<KeyLists>& gathers();
  const std::vector<GatherView>& gather_views();
  // with_transposed: also the lists by key tile that a backward pass needs.
  PlanView view(TileShape tile, bool with_transposed);

  // How many tiles of this shape the plan visits over all heads: exact if already compiled, else
  // estimated from a sample of its lists. Negative: the plan cannot have this shape (a plan from a
  // file).
  double estimate_tiles(TileShape tile);
  // The tile shapes compiled so far.
  std::vector<TileShape> compiled_shapes();
  // A plan from a file has the lists of the file; other shapes need parts that the file describes.
  bool can_compile(TileShape tile);
  // The tile shape for reports: 128x128, or one that a plan from a file has if it cannot have that.
  TileShape usual_tile();

  // Data that others keep with the plan as long as it lives, such as its lists in GPU memory.
  // Created on the first request for a name.
  std::shared_ptr<void> attached(const std::string& name,
                                 const std::function<std::shared_ptr<void>()>& make);

 private:
  // Called with the mutex held.
  CompiledTiles& compiled(TileShape tile);
  void compile_gathers();
  std::vector<TileShape> shapes_locked() const;

  std::string pattern_text_;
  Shape shape_;
  const std::optional<std::vector<PartSpec>> parts_;  // never changes: read without the mutex
  PlanForms forms_;                                   // the same for all tile shapes
  std::mutex mutex_;
  std::map<TileShape, std::unique_ptr<CompiledTiles>> tiles_;
  std::map<TileShape, double> estimates_;
  std::vector<KeyLists> gathers_;
  std::vector<GatherView> gather_views_;
  std::vector<GatherView> transposed_gather_views_;
  bool gathers_are_compiled_ = false, gathers_are_transposed_ = false;
  std::mutex attached_mutex_;  // separate: attached data may request lists
  std::map<std::string, std::shared_ptr<void>> attached_;
};

}  // namespace keyhole
