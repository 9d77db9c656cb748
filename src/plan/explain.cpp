// src/plan/explain.cpp
// The report on a plan: what it keeps, what it visits, what that costs.
#include <bit>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/amounts.h"
#include "base/bits.h"
#include "base/int_math.h"
#include "keyhole/plan.h"
#include "plan/plan_state.h"

namespace keyhole {
namespace {

std::vector<int64_t> heads_of_groups(const std::vector<int32_t>& group_of, int32_t groups) {
  std::vector<int64_t> heads(size_t(groups), 0);
  for (const int32_t group : group_of) {
    if (group >= 0) ++heads[size_t(group)];
  }
  return heads;
}

template <class Array>
int64_t bytes_in(const Array& array) {
  return int64_t(array.size() * sizeof(array[0]));
}

// `loaded_tiles`: key tiles fetched over all heads, for the traffic estimate.
PartReport report_tiles(const TileLists& lists, int64_t& plan_bytes) {
  PartReport part;
  part.form = "tiles";
  part.stride = lists.stride;
  part.groups = lists.groups;
  part.runs = int64_t(lists.runs.size());
  part.bitmaps = lists.num_bitmaps();
  part.bitmap_bytes = bytes_in(lists.bitmaps);
  plan_bytes += bytes_in(lists.runs) + bytes_in(lists.bitmaps) + bytes_in(lists.list_begin) +
                bytes_in(lists.list_count) + bytes_in(lists.order);
  std::vector<int64_t> bits(size_t(part.bitmaps), 0);
  for (size_t i = 0; i < lists.bitmaps.size(); ++i) {
    bits[i / size_t(lists.bitmap_words())] += std::popcount(lists.bitmaps[i]);
  }
  const std::vector<int64_t> heads = heads_of_groups(lists.group_of, lists.groups);
  const int64_t tile_pairs = int64_t{lists.tile.q} * lists.tile.k;
  for (size_t list = 0; list < lists.list_begin.size(); ++list) {
    const int64_t copies = heads[list / size_t(lists.lists_per_group())];
    for (int32_t i = 0; i < lists.list_count[list]; ++i) {
      const TileRun& run = lists.runs[size_t(lists.list_begin[list] + i)];
      const bool is_full = run.bitmap == kFull;
      (is_full ? part.full_tiles : part.partial_tiles) += copies * run.count;
      part.pairs += copies * (is_full ? run.count * tile_pairs : bits[size_t(run.bitmap)]);
    }
  }
  for (const int64_t copies : heads) {
    part.heads += copies;
    part.grid_tiles += copies * lists.stride * lists.q_tiles * lists.k_tiles;
  }
  part.tiles = part.full_tiles + part.partial_tiles;
  part.visited_pairs = part.tiles * tile_pairs;
  return part;
}

PartReport report_keys(const KeyLists& lists, int64_t& plan_bytes) {
  PartReport part;
  part.form = "gather";
  part.groups = lists.groups;
  part.lists = int64_t(lists.list_begin.size());
  part.keys = int64_t(lists.keys.size());
  plan_bytes += bytes_in(lists.keys) + bytes_in(lists.list_begin) + bytes_in(lists.list_count);
  const std::vector<int64_t> heads = heads_of_groups(lists.group_of, lists.groups);
  for (size_t list = 0; list < lists.list_begin.size(); ++list) {
    part.pairs += heads[list / size_t(lists.q_len)] * lists.list_count[list];
  }
  for (const int64_t copies : heads) part.heads += copies;
  part.visited_pairs = part.pairs;
  return part;
}

std::string in_bytes(double bytes) {
  char text[64];
  if (bytes < 1024 * 1024) {
    std::snprintf(text, sizeof text, "%.1f KiB", bytes / 1024);
  } else {
    std::snprintf(text, sizeof text, "%.1f MiB", bytes / (1024 * 1024));
  }
  return text;
}

}  // namespace

PlanReport Plan::explain() const { return explain(state_->usual_tile()); }

PlanReport Plan::explain(TileShape tile, int64_t head_dim, int64_t element_bytes) const {
  const CompiledTiles& compiled = state_->tiles(tile);
  const Shape& shape = state_->shape();
  PlanReport report;
  report.pattern = state_->pattern_text();
  report.shape = shape;
  report.tile = tile;
  report.compile_ms = compiled.compile_ms;
  report.draws_pair_by_pair = state_->is_opaque();
  for (const TileLists& part : compiled.parts) {
    report.parts.push_back(report_tiles(part, report.plan_bytes));
  }
  for (const KeyLists& part : state_->gathers()) {
    report.parts.push_back(report_keys(part, report.plan_bytes));
  }

  const double row_bytes = double(head_dim * element_bytes);
  // q is read and out written once per part; K and V once for every list that visits them.
  for (const PartReport& part : report.parts) {
    report.pairs += part.pairs;
    report.visited_pairs += part.visited_pairs;
    const double keys_loaded =
        part.form == "tiles" ? double(part.tiles) * tile.k : double(part.pairs);
    report.bytes_moved += 2 * row_bytes * double(part.heads) * double(shape.q_len) +
                          2 * row_bytes * keys_loaded +
                          4 * double(part.heads) * double(shape.q_len);
  }
  report.all_pairs =
      checked_mul(checked_mul(shape.batch * shape.heads, shape.q_len, "explain: pairs"),
                  shape.k_len, "explain: pairs");
  report.waste = report.visited_pairs > 0
                     ? double(report.visited_pairs - report.pairs) / double(report.visited_pairs)
                     : 0;
  report.flops_forward = 4.0 * double(report.pairs) * double(head_dim);
  report.flops_backward = 2.5 * report.flops_forward;
  report.flops_per_token = shape.q_len > 0 ? report.flops_forward / double(shape.q_len) : 0;
  report.dense_flops_forward = 4.0 * double(report.all_pairs) * double(head_dim);
  // A gathered pair costs several times a pair in a tile; split_parts.cpp has the factor.
  double visited_cost = 0;
  for (const PartReport& part : report.parts) {
    const double queries = double(part.heads) * double(report.shape.q_len);
    visited_cost +=
        part.form == "gather" && queries > 0
            ? queries * gather_row_cost(double(part.visited_pairs) / queries, report.shape.k_len)
            : double(part.visited_pairs);
  }
  // A tile is computed as a whole, also where it reaches past the end of a short sequence: dense
  // attention pays for that, too.
  const double dense_cost = double(shape.batch * shape.heads) *
                            double(ceil_div(shape.q_len, int64_t{tile.q}) * tile.q) *
                            double(ceil_div(shape.k_len, int64_t{tile.k}) * tile.k);
  report.predicted_speedup = visited_cost > 0 ? dense_cost / visited_cost : 0;
  return report;
}

std::string PlanReport::speedup_text() const {
  if (predicted_speedup == 0) return "none";
  char text[32];
  std::snprintf(text, sizeof text, predicted_speedup < 0.95 ? "%.2gx" : "%.1fx", predicted_speedup);
  return text;
}

std::string PlanReport::text() const {
  std::string text;
  const auto line = [&text](const char* name, const std::string& value) {
    text += report_line(name, value);
  };
  line("pairs", std::to_string(pairs) + " of " + std::to_string(all_pairs) + " (" +
                    percent_of(double(pairs), double(all_pairs)) + ")");
  for (const PartReport& part : parts) {
    const std::string where =
        part.stride > 1 ? ", in residue classes modulo " + std::to_string(part.stride) : "";
    if (part.form == "gather") {
      line("gather", std::to_string(part.keys) + " keys in " + std::to_string(part.lists) +
                         " lists, one a query");
      continue;
    }
    line("tiles", std::to_string(part.tiles) + " of " + std::to_string(part.grid_tiles) + ": " +
                      std::to_string(part.full_tiles) + " full, " +
                      std::to_string(part.partial_tiles) + " partial" + where);
    line("bitmaps", std::to_string(part.bitmaps) + " distinct for " +
                        std::to_string(part.partial_tiles) + " partial tiles, " +
                        in_bytes(double(part.bitmap_bytes)));
  }
  line("waste", percent_of(waste, 1) + " of the visited pairs do not attend");
  line("flops", in_units(flops_forward, "FLOP") + " forward, " + in_units(flops_backward, "FLOP") +
                    " backward, " + in_units(flops_per_token, "FLOP") + " a token forward");
  line("bytes", in_bytes(bytes_moved) + " moved, the plan itself " + in_bytes(double(plan_bytes)));
  const char* against = predicted_speedup < 0.95 ? ", slower than dense" : " over dense";
  line("speed-up", predicted_speedup == 0
                       ? "none, there is nothing to compute"
                       : speedup_text() + against + ", predicted from visited pairs");
  if (draws_pair_by_pair) {
    line("note", "a lambda is called for every pair; a pattern made of leaves compiles faster");
  }
  return text;
}

std::string PlanReport::json() const {
  nlohmann::ordered_json json;
  json["pattern"] = pattern;
  json["shape"] = {{"batch", shape.batch},
                   {"heads", shape.heads},
                   {"q_len", shape.q_len},
                   {"k_len", shape.k_len},
                   {"offset", shape.q_offset()}};
  json["tile"] = {{"q", tile.q}, {"k", tile.k}};
  json["pairs"] = pairs;
  json["all_pairs"] = all_pairs;
  json["visited_pairs"] = visited_pairs;
  json["waste"] = waste;
  json["flops_forward"] = flops_forward;
  json["flops_backward"] = flops_backward;
  json["flops_per_token"] = flops_per_token;
  json["dense_flops_forward"] = dense_flops_forward;
  json["bytes_moved"] = bytes_moved;
  json["plan_bytes"] = plan_bytes;
  json["predicted_speedup"] = predicted_speedup;
  json["compile_ms"] = compile_ms;
  json["draws_pair_by_pair"] = draws_pair_by_pair;
  json["parts"] = nlohmann::ordered_json::array();
  for (const PartReport& part : parts) {
    json["parts"].push_back({{"form", part.form},
                             {"stride", part.stride},
                             {"pairs", part.pairs},
                             {"visited_pairs", part.visited_pairs},
                             {"groups", part.groups},
                             {"heads", part.heads},
                             {"tiles", part.tiles},
                             {"full_tiles", part.full_tiles},
                             {"partial_tiles", part.partial_tiles},
                             {"grid_tiles", part.grid_tiles},
                             {"runs", part.runs},
                             {"bitmaps", part.bitmaps},
                             {"bitmap_bytes", part.bitmap_bytes},
                             {"lists", part.lists},
                             {"keys", part.keys}});
  }
  return json.dump(2) + "\n";
}

}  // namespace keyhole
