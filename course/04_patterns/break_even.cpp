// course/04_patterns/break_even.cpp
// From which length on is a sparse pattern faster than causal attention? Processor time of one
// thread, one head, head_dim 64. Three patterns keep about 64 keys a query, near or scattered;
// `strided` keeps more the longer the sequence is.
//   break_even [longest length]
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "definition.h"

using namespace keyhole;

namespace {

struct Entry {
  const char* name;
  Pattern (*make)(int64_t length);
};

int64_t near_root_of(int64_t length) {
  return std::max<int64_t>(1, std::lround(std::sqrt(static_cast<double>(length))));
}

const std::vector<Entry> kEntries = {
    {"causal", [](int64_t) { return causal(); }},
    {"window", [](int64_t) { return causal() & window(63); }},
    {"random_blocks", [](int64_t) { return causal() & random(32, 4, 7); }},
    {"strided", [](int64_t length) { return strided(near_root_of(length)); }},
    {"random_tokens", [](int64_t) { return causal() & random(1, 128, 7); }},
};

struct Measured {
  double ms, kept_share;  // of the causal pairs
};

// All patterns at one length, in turns, so that a disturbance does not hit one of them alone.
std::vector<Measured> measure(int64_t length) {
  const course::Head head = course::random_head(length, length, 64);
  std::vector<Plan> plans;
  std::vector<Measured> measured;
  for (const Entry& entry : kEntries) {
    plans.push_back(plan(entry.make(length), length, length));
    const auto pairs = static_cast<double>(plans.back().explain().pairs);
    measured.push_back({1e300, pairs / static_cast<double>(length * (length + 1) / 2)});
  }
  course::Values out;
  for (int round = 0; round < 4; ++round) {
    for (std::size_t p = 0; p < plans.size(); ++p) {
      const auto call = [&] { course::run_library(head, plans[p], out); };
      measured[p].ms = std::min(measured[p].ms, course::cpu_milliseconds(call, 0.005));
    }
  }
  return measured;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t longest = argc > 1 ? std::atoll(argv[1]) : 1024;
  std::vector<int64_t> lengths;
  std::vector<std::vector<Measured>> table;  // [length][pattern]
  std::printf("%6s", "length");
  for (const Entry& entry : kEntries) std::printf(" %13s", entry.name);
  std::printf("\n");
  for (int64_t length = 32; length <= longest; length *= 2) {
    lengths.push_back(length);
    table.push_back(measure(length));
    std::printf("%6lld", static_cast<long long>(length));
    for (const Measured& measured : table.back()) std::printf(" %13.4f", measured.ms);
    std::printf("\n");
  }

  // A pattern wins at a length where it keeps fewer pairs and is 3 % faster. It has broken even at
  // the shortest length from which on it wins at all lengths.
  std::printf("\n%-13s %10s %6s %10s %10s\n", "pattern", "faster_at", "keeps", "keeps_last",
              "times_last");
  for (std::size_t p = 1; p < kEntries.size(); ++p) {
    double from = std::numeric_limits<double>::infinity(), keeps = 0;
    for (std::size_t i = lengths.size(); i-- > 0;) {
      if (table[i][p].kept_share == 1 || table[i][0].ms < 1.03 * table[i][p].ms) break;
      from = static_cast<double>(lengths[i]);
      keeps = table[i][p].kept_share;
    }
    std::printf("%-13s %10g %5.1f%% %9.1f%% %10.2f\n", kEntries[p].name, from, 100 * keeps,
                100 * table.back()[p].kept_share, table.back()[0].ms / table.back()[p].ms);
  }
}
