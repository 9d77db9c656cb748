// bench/planning.cpp
// How long plans take to compile and how much memory that needs, on one core (processor time), for
// 128 x 128 tiles, beside the bar each has to clear. A program of its own: it counts what is
// allocated.
//
//   keyhole_planning [--json FILE] [--runs N]      exit code 1 when a bar is missed
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/check.h"
#include "cli/bench/machine.h"
#include "cli/bench/timing.h"
#include "cli/common.h"
#include "cli/files.h"
#include "keyhole/plan.h"
#include "plan/plan_state.h"

namespace {

std::atomic<int64_t> live_bytes{0}, peak_bytes{0};

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const int64_t live = live_bytes += int64_t(malloc_usable_size(memory));
  int64_t peak = peak_bytes;
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live)) {
  }
  return memory;
}

void release(void* memory) {
  live_bytes -= int64_t(malloc_usable_size(memory));
  std::free(memory);
}

void* aligned(std::size_t size, std::align_val_t alignment) {
  const auto step = std::size_t(alignment);
  return counted(std::aligned_alloc(step, (size + step - 1) / step * step));
}

}  // namespace

void* operator new(std::size_t size) { return counted(std::malloc(size)); }
void* operator new[](std::size_t size) { return counted(std::malloc(size)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return aligned(size, alignment);
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return aligned(size, alignment);
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace keyhole::bench {
namespace {

struct PlanningCase {
  std::string text;
  int64_t length;
  std::function<Pattern()> make;
  double most_ms;
  double most_mb = 0;  // 0: no bar
};

uint64_t next(uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 33;
}

Pattern random_documents(int64_t length) {
  std::vector<int64_t> lengths;
  uint64_t state = 1;
  for (int64_t left = length; left > 0; left -= lengths.back()) {
    lengths.push_back(std::min(left, int64_t(1 + next(state) % 1999)));  // 1 ... 1999: mean 1,000
  }
  return documents(std::move(lengths));
}

Pattern random_mask(int64_t length) {
  std::vector<uint8_t> allowed(size_t(length * length));
  uint64_t state = 1;
  for (uint8_t& pair : allowed) pair = next(state) & 1;
  return mask(allowed, length, length);
}

std::vector<PlanningCase> planning_cases() {
  constexpr int64_t kMillion = 1048576;
  const auto parsed = [](const char* text, int64_t length, double most_ms, double most_mb = 0) {
    return PlanningCase{text, length, [text] { return parse(text); }, most_ms, most_mb};
  };
  return {parsed("causal", kMillion, 10, 16),
          parsed("causal & window(4095)", kMillion, 10, 16),
          parsed("streaming(16, 64)", kMillion, 10, 16),
          parsed("bigbird(64, 3, 3, 2, 1)", 131072, 50),
          {"causal & documents(~1000, ...)", kMillion,
           [] { return causal() & random_documents(kMillion); }, 60},
          {"mask(4096 x 4096 random)", 4096, [] { return random_mask(4096); }, 100}};
}

struct Measured {
  Timing timing;
  double peak_mb = 0, plan_mb = 0;
  int64_t runs = 0, bitmaps = 0;  // of the plan
};

// A plan is compiled anew in each run: nothing may be kept from the one before.
Measured measure(const PlanningCase& c, int num_runs) {
  const Pattern pattern = c.make();
  const Shape shape{.batch = 1, .heads = 1, .q_len = c.length, .k_len = c.length, .offset = {}};
  Measured result;
  std::vector<double> samples;
  for (int run = 0; run <= num_runs; ++run) {
    const int64_t before = live_bytes;
    peak_bytes = before;
    const double begin = now_s(/*is_cpu_time=*/true);
    const Plan made = plan(pattern, shape);
    const CompiledTiles& lists = made.state().tiles({128, 128});
    const double elapsed_ms = 1e3 * (now_s(/*is_cpu_time=*/true) - begin);
    if (run > 0) samples.push_back(elapsed_ms);  // the first one warms up
    result.peak_mb = double(peak_bytes - before) * 1e-6;
    result.plan_mb = double(live_bytes - before) * 1e-6;
    result.runs = result.bitmaps = 0;
    for (const TileLists& part : lists.parts) {
      result.runs += int64_t(part.runs.size());
      result.bitmaps += part.num_bitmaps();
    }
  }
  result.timing = summarize(samples);
  return result;
}

int run(const std::vector<std::string>& words) {
  std::string json_path;
  int num_runs = 15;
  for (size_t i = 0; i < words.size(); i += 2) {
    KEYHOLE_CHECK((words[i] == "--json" || words[i] == "--runs") && i + 1 < words.size(),
                  "unexpected \"", words[i], "\"; accepted are --json FILE and --runs N");
    if (words[i] == "--json") json_path = words[i + 1];
    if (words[i] == "--runs") num_runs = std::max(1, std::atoi(words[i + 1].c_str()));
  }
  const Machine machine = this_machine();
  const Commit commit = this_commit();
  cli::Table table({"pattern", "tokens", "median ms", "p10 .. p90", "bar", "peak MB", "bar",
                    "plan MB", "runs", "bitmaps", "verdict"},
                   "lrrrrrrrrrl");
  std::string lines;
  bool is_all_met = true;
  for (const PlanningCase& c : planning_cases()) {
    const Measured m = measure(c, num_runs);
    const bool is_met = m.timing.median_ms < c.most_ms && (c.most_mb == 0 || m.peak_mb < c.most_mb);
    is_all_met = is_all_met && is_met;
    table.add(
        {c.text, cli::with_thousands(c.length), fmt::format("{:.2f}", m.timing.median_ms),
         fmt::format("{:.2f} .. {:.2f}", m.timing.p10_ms, m.timing.p90_ms),
         fmt::format("< {:.0f}", c.most_ms), fmt::format("{:.2f}", m.peak_mb),
         c.most_mb > 0 ? fmt::format("< {:.0f}", c.most_mb) : "-", fmt::format("{:.2f}", m.plan_mb),
         cli::with_thousands(m.runs), cli::with_thousands(m.bitmaps), is_met ? "met" : "MISSED"},
        is_met ? cli::Ink::plain : cli::Ink::red);
    const nlohmann::json record = {
        {"suite", "planning"},
        {"case", fmt::format("planning {} at {}", c.text, c.length)},
        {"tile", "128x128"},
        {"ms",
         {{"median", m.timing.median_ms},
          {"p10", m.timing.p10_ms},
          {"p90", m.timing.p90_ms},
          {"min", m.timing.min_ms},
          {"runs", m.timing.runs}}},
        {"bar_ms", c.most_ms},
        {"peak_mb", m.peak_mb},
        {"plan_mb", m.plan_mb},
        {"bar_mb", c.most_mb > 0 ? nlohmann::json(c.most_mb) : nlohmann::json(nullptr)},
        {"is_met", is_met},
        {"machine", to_json(machine)},
        {"commit", commit.id},
        {"dirty", commit.is_dirty},
        {"time", utc_now()},
        {"threads", 1},
        {"clock", "cpu"}};
    lines += record.dump() + "\n";
  }
  fmt::print("{}\ncommit {}{}, {}\n\nplans of 128x128 tiles, processor time on one core\n{}",
             describe(machine), commit.id, commit.is_dirty ? " with changes" : "", utc_now(),
             table.text());
  if (!json_path.empty()) cli::write_file(json_path, lines);
  return is_all_met ? 0 : 1;
}

}  // namespace
}  // namespace keyhole::bench

int main(int count, char** words) {
  try {
    return keyhole::bench::run({words + 1, words + count});
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
}
