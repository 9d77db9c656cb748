// course/02_flash_minimal/races.cpp
// What a missing barrier does, without a GPU: four warps sum up four numbers in shared memory.
// Warps run in any order, so this program runs every order there is, with the barriers and without,
// and counts how many different sums come out.
#include <array>
#include <cstdio>
#include <map>

namespace {

constexpr int kWarps = 4;
constexpr std::array<int, kWarps> kValues = {1, 20, 300, 4000};
constexpr int kOld = 70000;  // what the previous tile left in shared memory

// How many steps each warp makes. Step 0: shared[w] = the warp's value. Step 1: warps 0 and 1 add
// shared[w + 2]. Step 2: warp 0 adds shared[1]. Each step adds the upper half of what is left to
// the lower half, as kernels do with larger arrays.
constexpr std::array<int, kWarps> kSteps = {3, 2, 1, 1};

struct State {
  std::array<int, kWarps> shared = {kOld, kOld, kOld, kOld};
  std::array<int, kWarps> done = {};  // how many steps each warp has made
};

void step(State& state, int warp) {
  const int number = state.done[warp]++;
  if (number == 0) state.shared[warp] = kValues[warp];
  if (number == 1) state.shared[warp] += state.shared[warp + 2];
  if (number == 2) state.shared[warp] += state.shared[warp + 1];
}

// A barrier holds a warp until all others have made the steps before it, or have none left.
bool may_step(const State& state, int warp, bool barriers) {
  if (state.done[warp] == kSteps[warp]) return false;
  if (!barriers) return true;
  for (int other = 0; other < kWarps; ++other) {
    const bool has_more = state.done[other] < kSteps[other];
    if (has_more && state.done[other] < state.done[warp]) return false;
  }
  return true;
}

// sums[s]: how many orders of steps end with the sum s.
void run_all_orders(const State& state, bool barriers, std::map<int, int>& sums) {
  bool ended = true;
  for (int warp = 0; warp < kWarps; ++warp) {
    if (!may_step(state, warp, barriers)) continue;
    ended = false;
    State next = state;
    step(next, warp);
    run_all_orders(next, barriers, sums);
  }
  if (ended) ++sums[state.shared[0]];
}

void report(const char* title, bool barriers) {
  std::map<int, int> sums;
  run_all_orders(State(), barriers, sums);
  int orders = 0, right = 0;
  for (const auto& [sum, count] : sums) {
    orders += count;
    if (sum == 4321) right += count;
  }
  std::printf("%s: %d orders, %d of them give 4321 (%.0f%%)\n", title, orders, right,
              100.0 * right / orders);
  for (const auto& [sum, count] : sums) std::printf("  %7d in %3d orders\n", sum, count);
}

}  // namespace

int main() {
  report("with a barrier after each step", true);
  report("without barriers", false);
}
