// course/04_patterns/gallery.cpp
// Every pattern of the chapter: its picture at 16 tokens, three beside each other, then how many
// pairs it keeps and how that number grows. An exponent of 1: linear in the length; 2: quadratic.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace keyhole;

namespace {

// A pattern for `length` tokens. `unit` widens what has a width, so that one line serves pictures
// of 16 tokens (unit 1) and real lengths (unit 16).
struct Entry {
  const char* name;
  Pattern (*make)(int64_t length, int64_t unit);
};

// Tiles of your choice: each row of tiles takes the first, the one before its own, and its own.
Pattern chosen_tiles(int64_t length, int64_t tile) {
  std::vector<int64_t> offsets = {0}, keys;
  for (int64_t row = 0; row < length / tile; ++row) {
    for (int64_t key_tile = 0; key_tile <= row; ++key_tile) {
      if (key_tile == 0 || key_tile + 1 >= row) keys.push_back(key_tile);
    }
    offsets.push_back(static_cast<int64_t>(keys.size()));
  }
  return tiles(tile, tile, offsets, keys);
}

// A square image, read row by row: token t is the pixel (t / side, t % side).
Pattern image(int64_t length, int64_t radius) {
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(length))));
  return neighborhood(side, side, radius, radius);
}

const std::vector<Entry> kEntries = {
    {"dense", [](int64_t, int64_t) { return dense(); }},
    {"causal", [](int64_t, int64_t) { return causal(); }},
    {"window", [](int64_t, int64_t unit) { return window(2 * unit); }},
    {"causal_window", [](int64_t, int64_t unit) { return causal() & window(4 * unit - 1); }},
    {"streaming", [](int64_t, int64_t unit) { return streaming(unit, 4 * unit); }},
    {"global", [](int64_t, int64_t unit) { return global(unit); }},
    {"dilated", [](int64_t, int64_t unit) { return dilated(4 * unit); }},
    {"strided", [](int64_t, int64_t unit) { return strided(4 * unit); }},
    {"exponential", [](int64_t, int64_t) { return exponential(); }},
    {"blocks", [](int64_t, int64_t unit) { return blocks(4 * unit); }},
    {"tiles", [](int64_t length, int64_t unit) { return chosen_tiles(length, 4 * unit); }},
    {"random", [](int64_t, int64_t unit) { return random(2 * unit, 2, 7); }},
    {"bigbird", [](int64_t, int64_t unit) { return bigbird(2 * unit, 3, 1, 1, 7); }},
    {"longformer", [](int64_t, int64_t unit) { return longformer(4 * unit, unit); }},
    {"neighborhood", [](int64_t length, int64_t unit) { return image(length, unit == 1 ? 1 : 3); }},
};

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

void print_pictures(std::size_t first, std::size_t last) {
  constexpr int kLength = 16;
  std::vector<std::vector<std::string>> pictures;
  for (std::size_t i = first; i < last; ++i) {
    const Pattern pattern = kEntries[i].make(kLength, 1);
    pictures.push_back(lines_of(picture(pattern, kLength, kLength)));
    std::string title = pattern.text();
    if (title.size() > 2 * kLength) title = kEntries[i].name;  // too long for its column
    std::printf("%-*s", 2 * kLength + 3, title.c_str());
  }
  std::printf("\n");
  for (std::size_t row = 0; row < kLength; ++row) {
    for (const auto& lines : pictures) std::printf("%-*s", 2 * kLength + 3, lines[row].c_str());
    std::printf("\n");
  }
  std::printf("\n");
}

// Keys of the query that has fewest and of the one that has most.
std::pair<int, int> fewest_and_most(const Pattern& pattern, int64_t length) {
  const HeadPattern asked = pattern.for_head({.q_len = length, .k_len = length, .offset = {}});
  int fewest = static_cast<int>(length), most = 0;
  for (int64_t query = 0; query < length; ++query) {
    int keys = 0;
    for (int64_t key = 0; key < length; ++key) keys += asked.allows(query, key);
    fewest = std::min(fewest, keys);
    most = std::max(most, keys);
  }
  return {fewest, most};
}

}  // namespace

int main() {
  for (std::size_t i = 0; i < kEntries.size(); i += 3) print_pictures(i, i + 3);

  std::printf("%-13s %5s %7s %6s %4s %10s %10s %8s\n", "pattern", "pairs", "share", "fewest",
              "most", "pairs_1024", "pairs_4096", "exponent");
  for (const Entry& entry : kEntries) {
    const Pattern small = entry.make(16, 1);
    const int64_t pairs = count_pairs(small, 16, 16);
    const auto [fewest, most] = fewest_and_most(small, 16);
    const int64_t at_1024 = count_pairs(entry.make(1024, 16), 1024, 1024);
    const int64_t at_4096 = count_pairs(entry.make(4096, 16), 4096, 4096);
    const double growth = static_cast<double>(at_4096) / static_cast<double>(at_1024);
    std::printf("%-13s %5lld %6.1f%% %6d %4d %10lld %10lld %8.2f\n", entry.name,
                static_cast<long long>(pairs), 100.0 * static_cast<double>(pairs) / 256, fewest,
                most, static_cast<long long>(at_1024), static_cast<long long>(at_4096),
                std::log2(growth) / 2);  // log4: the length has grown 4 times
  }
}
