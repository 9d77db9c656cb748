// cli/bench/sweep.cpp
// All catalog patterns at growing lengths: keys per query, sparsity, work, time and speed-up over
// dense. What would take longer than the limit is not run; its time is told from the rate at the
// longest length that did run. And the comparison of the patterns, from the same measurements.
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "cli/bench/patterns.h"
#include "cli/bench/session.h"

namespace keyhole::bench {
namespace {

struct SweepPoint {
  int64_t length = 0;
  double ms = 0, pairs = 0, keys_per_query = 0;
};
using SweepPoints = std::map<std::string, std::vector<SweepPoint>>;  // by name, lengths that grow

struct Row {
  std::vector<std::string> cells;
  cli::Ink ink = cli::Ink::plain;
};

class Sweep {
 public:
  Sweep(Session& session, const Range& range) : session_(session), range_(range) {}

  SweepPoints run(int64_t factor, bool prints_table);

 private:
  Case case_at(const SizedPattern& sized, int64_t length) const;
  double expected_ms(const std::string& name, const Case& c);
  bool is_too_long(double ms) const { return ms > 1e3 * session_.options().limit_s; }
  DenseTwin dense_at(const Case& twin);
  Row measure(const CatalogEntry& entry, int64_t length);
  Row measure(const SizedPattern& sized, const Case& c);

  Session& session_;
  Range range_;
  std::shared_ptr<Inputs> inputs_;
  std::map<std::pair<std::string, int64_t>, DenseTwin> dense_;  // by ("dense" or "causal", length)
  SweepPoints points_;
};

Case Sweep::case_at(const SizedPattern& sized, int64_t length) const {
  return range_.at(session_, fmt::format("{}-{}", sized.name, length), sized.pattern, sized.text,
                   length);
}

// From the longest length that was measured, by pairs. Counting pairs means compiling the plan, so
// that it is done only where pairs that grow with the square of the length would break the limit.
double Sweep::expected_ms(const std::string& name, const Case& c) {
  if (points_[name].empty()) {  // nothing known yet: as dense at a third of the machine's peak
    return c.all_pairs() * flops_per_pair(c) / (session_.peak(c.dtype).gflops / 3 * 1e6);
  }
  const SweepPoint& last = points_[name].back();
  const double growth = double(c.q_len) / double(last.length);
  const double most = last.ms * growth * growth;
  if (!is_too_long(most) || name == "dense" || name == "causal") return most;
  return last.ms / last.pairs * double(plan(c.pattern, c.shape()).explain().pairs);
}

// Measured as a pattern of the catalog, or told from the rate at a shorter length.
DenseTwin Sweep::dense_at(const Case& twin) {
  const auto key = std::pair(twin.pattern_text, twin.q_len);
  if (const auto found = dense_.find(key); found != dense_.end()) return found->second;
  const double pairs = twin.pattern_text == "causal" ? twin.all_pairs() / 2 : twin.all_pairs();
  return dense_[key] = {.pattern_text = twin.pattern_text,
                        .timing = {.median_ms = expected_ms(twin.pattern_text, twin)},
                        .pairs = pairs,
                        .visited_pairs = pairs,
                        .tiles = kept_tiles(twin),
                        .is_measured = false};
}

Row Sweep::measure(const CatalogEntry& entry, int64_t length) {
  const auto not_run = [&](const std::string& text, const std::string& why) {
    return Row{{text, cli::with_thousands(length), "", "", "", "not run (" + why + ")"},
               cli::Ink::dim};
  };
  std::string why;
  const auto sized = sized_pattern(entry, length, range_.heads, &why);
  if (!sized) return not_run(std::string(entry.name), why);
  const Case c = case_at(*sized, length);
  const double expected = expected_ms(sized->name, c);
  if (is_too_long(expected)) return not_run(sized->text, duration_text(expected / 1e3));
  return measure(*sized, c);
}

Row Sweep::measure(const SizedPattern& sized, const Case& c) {
  const auto subject = session_.prepare(c, inputs_);
  const std::string length = cli::with_thousands(c.q_len);
  if (!subject) {
    return {{sized.text, length, "", "", "", "check failed"}, cli::Ink::red};
  }
  const Timing timing = time_call(subject->call(), session_.effort().timing);
  nlohmann::json record = to_json(*subject, timing);
  const double keys_per_query = record["keys_per_query"], kept_share = record["kept_share"];
  points_[sized.name].push_back({.length = c.q_len,
                                 .ms = timing.median_ms,
                                 .pairs = std::max(1.0, double(subject->report().pairs)),
                                 .keys_per_query = keys_per_query});

  std::string speedup, times_tiles, times_visited;
  if (sized.name == "dense" || sized.name == "causal") {
    dense_[{sized.name, c.q_len}] = dense_twin_of(*subject, timing);
  } else {
    const DenseTwin twin = dense_at(dense_twin(c));
    add_dense(record, twin);
    speedup = (twin.is_measured ? "" : "~") + speedup_text(record["speedup"]);
    times_tiles = fmt::format("{:.2f}", record["times_tiles"].get<double>());
    times_visited = fmt::format("{:.2f}", record["times_visited"].get<double>());
  }
  record["name"] = sized.name;
  Row row{{sized.text, length, fmt::format("{:.1f}", keys_per_query),
           fmt::format("{:.2f}%", 100 * (1 - kept_share)),
           cli::flops_text(record["flops_per_token"]), ms_text(timing.median_ms), speedup,
           times_tiles, times_visited}};
  session_.keep("sweep", std::move(record));
  return row;
}

SweepPoints Sweep::run(int64_t factor, bool prints_table) {
  const auto lengths = doubling(range_.lengths, factor);
  std::map<std::string_view, std::vector<Row>> rows;
  {
    // Length by length: tensors are made once for each, and a rate is known before it is needed.
    cli::Progress progress("bench sweep", int64_t(lengths.size() * catalog().size()));
    for (const int64_t length : lengths) {
      for (const CatalogEntry& entry : catalog()) {
        progress.step(fmt::format("{}, {} tokens", entry.name, length));
        rows[entry.name].push_back(measure(entry, length));
      }
    }
  }
  if (prints_table) {
    session_.print(fmt::format(
        "\nsweep: {}{}, {}; dense is causal for causal patterns. ~: its time was not measured\n"
        "but told from its rate. x tiles: time over dense time x share of the {} tiles that hold a "
        "pair;\nx visited: the same by pairs, in the smaller tiles, classes and key lists that "
        "were "
        "followed\n",
        session_.options().is_training ? "" : "forward, ", range_.heads_text(),
        session_.conditions(range_.dtype),
        to_string(dense_tile(case_at({"dense", "dense"}, lengths.front())))));
    cli::Table table({"pattern", "length", "keys/query", "sparsity", "work/token", "ms", "speed-up",
                      "x tiles", "x visited"},
                     "lrrrrrrrr");
    for (const CatalogEntry& entry : catalog()) {
      for (const Row& row : rows[entry.name]) table.add(row.cells, row.ink);
    }
    session_.print(table);
  }
  return std::move(points_);
}

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

// What a pattern costs by its definition, what it can see, and how its time was measured to grow.
void compare(Session& session, const SweepPoints& all) {
  cli::Table table(
      {"pattern", "pairs", "keys/query", "at length", "global context", "time grows as"}, "llrrll");
  for (const CatalogEntry& entry : catalog()) {
    const std::string name(entry.name);
    const auto found = all.find(name);
    if (found == all.end() || found->second.empty()) continue;
    const SweepPoint& longest = found->second.back();
    const auto exponent = growth(found->second);
    table.add({name, std::string(entry.complexity), fmt::format("{:.1f}", longest.keys_per_query),
               cli::with_thousands(longest.length), std::string(entry.reach),
               exponent ? fmt::format("L^{:.2f}", *exponent) : "one length only"});
    if (!exponent) continue;
    session.keep("compare", {{"case", "compare-" + name},
                             {"name", name},
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

SweepPoints sweep(Session& session, bool prints_table) {
  const bool is_quick = session.options().is_quick;
  const int64_t last = positive(session.options().max_len, "--max-len");
  const Lengths lengths{std::min<int64_t>(is_quick ? 2048 : 1024, last), last};
  return Sweep(session, Range(session, lengths, 2)).run(is_quick ? 4 : 2, prints_table);
}

}  // namespace

void bench_sweep(Session& session) { sweep(session, /*prints_table=*/true); }
void bench_compare(Session& session) { compare(session, sweep(session, /*prints_table=*/false)); }
void bench_sweep_and_compare(Session& session) {
  compare(session, sweep(session, /*prints_table=*/true));
}

}  // namespace keyhole::bench
