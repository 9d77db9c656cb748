// course/05_choosing_keys/top_k.cpp
// The k best of a row of scores, in five ways and by keyhole::top_k: the same set each time, also
// where scores are equal. What each way costs on scores of three kinds.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <queue>
#include <vector>

#include "common/stopwatch.h"
#include "common/tensors.h"

namespace {

using Row = std::vector<float>;
using List = std::vector<int32_t>;

// The one rule for all: higher scores first; of equal scores the lower index. So no two entries are
// equal, and there is exactly one right answer. -0 equals 0, because -0.0f != 0.0f is false. The
// rows here have no NaN, with which this would not be an order.
auto before(const Row& row) {
  return [&row](int32_t a, int32_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; };
}
List all_entries(const Row& row) {
  List entries(row.size());
  std::iota(entries.begin(), entries.end(), 0);
  return entries;
}
List ascending(List chosen) {
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

// L log L comparisons, for an order that nobody asked for.
List by_sort(const Row& row, int k) {
  List entries = all_entries(row);
  std::sort(entries.begin(), entries.end(), before(row));
  entries.resize(k);
  return ascending(entries);
}

// The k best so far, the worst of them on top: one comparison for an entry that is not better, log
// k for one that is. Rows that rise replace the worst each time.
List by_heap(const Row& row, int k) {
  std::priority_queue<int32_t, List, decltype(before(row))> best(before(row));
  for (int32_t i = 0; i < static_cast<int32_t>(row.size()); ++i) {
    if (static_cast<int>(best.size()) == k) {
      if (!before(row)(i, best.top())) continue;
      best.pop();
    }
    best.push(i);
  }
  List chosen;
  for (; !best.empty(); best.pop()) chosen.push_back(best.top());
  return ascending(chosen);
}

// Quickselect: about 3 L comparisons, but in an order that depends on the data.
List by_nth_element(const Row& row, int k) {
  List entries = all_entries(row);
  std::nth_element(entries.begin(), entries.begin() + k - 1, entries.end(), before(row));
  entries.resize(k);
  return ascending(entries);
}

// Unsigned integers in the order of the scores: all bits of a negative number turn over, the sign
// of the others is set. Adding 0 makes 0 of -0.
uint32_t ordered(float score) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// The k-th score first, digit by digit: a histogram of the highest 11 bits says in which bin it
// lies, one of the next 11 bits inside that bin says more, the last 10 say all. No comparison
// depends on the one before. select_gpu.cu does the same.
List by_histogram(const Row& row, int k) {
  std::vector<uint32_t> keys(row.size());
  std::transform(row.begin(), row.end(), keys.begin(), ordered);
  uint32_t threshold = 0, known = 0;  // the bits of the k-th score that are known; their mask
  int missing = k;                    // how many of the k best have these bits
  for (const auto& [shift, bits] : {std::pair{21, 11}, {10, 11}, {0, 10}}) {
    std::vector<int> histogram(size_t{1} << bits);
    for (const uint32_t key : keys) {
      if ((key & known) == threshold) ++histogram[key >> shift & ((1u << bits) - 1)];
    }
    uint32_t bin = (1u << bits) - 1;
    while (histogram[bin] < missing) missing -= histogram[bin--];
    threshold |= bin << shift;
    known |= ((1u << bits) - 1) << shift;
  }
  List chosen;
  for (size_t i = 0; i < keys.size(); ++i) {  // ascending, so the first of equal scores win
    const bool is_equal = keys[i] == threshold;
    if (keys[i] > threshold || (is_equal && missing > 0)) chosen.push_back(static_cast<int32_t>(i));
    missing -= is_equal;
  }
  return chosen;
}

List by_keyhole(const Row& row, int k) {
  List chosen(k);
  const auto length = static_cast<int64_t>(row.size());
  keyhole::top_k(keyhole::TensorView(row.data(), keyhole::DType::f32, {1, 1, 1, length}),
                 {keyhole::IndexView(chosen.data(), {1, 1, 1, k})}, {.k = k, .threads = 1});
  return chosen;
}

}  // namespace

int main(int argc, char** argv) {
  const int length = argc > 1 ? std::atoi(argv[1]) : 32768, k = length / 16;
  if (k < 1) return 2;
  const Row normal = course::random_values(static_cast<size_t>(length), 1);
  Row zeros = normal, rising = normal;
  for (float& x : zeros) x = x > 2 ? x : 0.0f;  // what max(q . k, 0) makes of most keys
  std::sort(rising.begin(), rising.end());      // the newest keys score best

  const std::vector<std::pair<const char*, std::function<List(const Row&, int)>>> ways = {
      {"sort", by_sort},           {"heap", by_heap},       {"nth_element", by_nth_element},
      {"histogram", by_histogram}, {"keyhole", by_keyhole},
  };
  bool is_right = true;
  std::printf("%d of %d scores; ms on one core\n\n", k, length);
  std::printf("%-12s %8s %8s %8s\n", "way", "normal", "zeros", "rising");
  for (const auto& [name, choose] : ways) {
    std::printf("%-12s", name);
    for (const Row* row : std::initializer_list<const Row*>{&normal, &zeros, &rising}) {
      is_right = is_right && choose(*row, k) == by_sort(*row, k);
      std::printf(" %8.3f", course::best_milliseconds([&] { choose(*row, k); }, 0.03));
    }
    std::printf("\n");
  }
  const Row ties = {2, 7, 7, -0.0f, 7, 0, 7};
  std::printf("\nthe same lists from all: %s\n", is_right ? "yes" : "no");
  for (const int few : {3, 6}) {
    std::printf("%d of {2, 7, 7, -0, 7, 0, 7}:", few);
    for (const int32_t i : by_keyhole(ties, few)) std::printf(" %d", i);
    is_right = is_right && by_keyhole(ties, few) == by_histogram(ties, few);
    std::printf("\n");
  }
  return is_right ? 0 : 1;
}
