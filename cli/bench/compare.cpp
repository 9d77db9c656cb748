// cli/bench/compare.cpp
// Takes the points of a sweep, gives the comparison table: what a pattern costs by its definition,
// what it can see, and how its time was measured to grow.
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "cli/bench/tables.h"
#include "pattern/catalog.h"

namespace keyhole::bench {
namespace {

// The exponent x of time = c * length^x: the slope of the least-squares line through the points,
// both axes logarithmic. Nothing from fewer than two lengths.
std::optional<double> growth(const std::vector<SweepPoint>& points) {
  if (points.size() < 2) return std::nullopt;
  double mean_x = 0, mean_y = 0;
  for (const SweepPoint& point : points) {
    mean_x += std::log(double(point.length)) / double(points.size());
    mean_y += std::log(point.ms) / double(points.size());
  }
  double products = 0, squares = 0;
  for (const SweepPoint& point : points) {
    const double x = std::log(double(point.length)) - mean_x;
    products += x * (std::log(point.ms) - mean_y);
    squares += x * x;
  }
  return products / squares;
}

}  // namespace

void bench_compare(Session& session, const std::vector<SweepPoint>& points) {
  std::map<std::string, std::vector<SweepPoint>> by_name;
  for (const SweepPoint& point : points) by_name[point.name].push_back(point);

  cli::Table table(
      {"pattern", "pairs", "keys/query", "at length", "global context", "time grows as"}, "llrrll");
  for (const CatalogEntry& entry : catalog()) {
    const auto found = by_name.find(std::string(entry.name));
    if (found == by_name.end()) continue;
    const SweepPoint& longest = found->second.back();
    const auto exponent = growth(found->second);
    table.add({found->first, std::string(entry.complexity),
               fmt::format("{:.1f}", longest.keys_per_query), cli::with_thousands(longest.length),
               std::string(entry.reach),
               exponent ? fmt::format("L^{:.2f}", *exponent) : "one length only"});
    if (!exponent) continue;
    session.keep("compare", {{"case", "compare-" + found->first},
                             {"name", found->first},
                             {"check", "ok"},
                             {"complexity", entry.complexity},
                             {"reach", entry.reach},
                             {"growth", *exponent},
                             {"keys_per_query", longest.keys_per_query},
                             {"shortest", found->second.front().length},
                             {"longest", longest.length}});
  }
  session.print("\ncomparison: from the lengths that were measured\n");
  session.print(table);
}

}  // namespace keyhole::bench
