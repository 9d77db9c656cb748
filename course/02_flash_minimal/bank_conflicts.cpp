// course/02_flash_minimal/bank_conflicts.cpp
// Bank conflicts, counted by arithmetic. Shared memory has 32 banks; the 4-byte word w is in bank
// w % 32. A bank gives one word at a time. A warp's read takes as many passes as the busiest bank
// has different words to give.
#include <algorithm>
#include <array>
#include <cstdio>
#include <set>

namespace {

constexpr int kBanks = 32, kLanes = 32;

// word_of(lane): which word of shared memory a lane reads.
template <class WordOf>
int passes(WordOf&& word_of) {
  std::array<std::set<int>, kBanks> words;  // of each bank; several lanes may read the same word
  for (int lane = 0; lane < kLanes; ++lane) words[word_of(lane) % kBanks].insert(word_of(lane));
  size_t most = 0;
  for (const std::set<int>& bank : words) most = std::max(most, bank.size());
  return static_cast<int>(most);
}

// Which bank the first lanes meet, as a line of numbers.
void picture(int stride) {
  std::printf("stride %d, lanes 0 to 7 read banks", stride);
  for (int lane = 0; lane < 8; ++lane) std::printf(" %2d", lane * stride % kBanks);
  std::printf(" ...\n");
}

}  // namespace

int main() {
  // A tile in shared memory has rows of `stride` floats. Lane j reads column 5 of row j, as it does
  // in the scores of flash_gpu.cu; or it reads column j of row 5, as in the output.
  std::printf("%6s %14s %11s\n", "stride", "down_a_column", "along_a_row");
  for (const int stride : {1, 2, 4, 8, 16, 31, 32, 33, 34, 36, 63, 64, 65, 68, 128}) {
    std::printf("%6d %14d %11d\n", stride, passes([&](int lane) { return lane * stride + 5; }),
                passes([&](int lane) { return 5 * stride + lane; }));
  }
  std::printf("\n");
  picture(32);
  picture(33);
  picture(34);

  std::printf("\nthe reads of flash_gpu.cu, passes each\n");
  std::printf("  keys[lane][x], rows of 64:     %2d\n", passes([](int j) { return j * 64 + 7; }));
  std::printf("  keys[lane][x], rows of 65:     %2d\n", passes([](int j) { return j * 65 + 7; }));
  std::printf("  queries[row][x], one word:     %2d\n", passes([](int) { return 3 * 64 + 7; }));
  std::printf("  values[j][lane], rows of 64:   %2d\n", passes([](int j) { return 3 * 64 + j; }));

  // Another way without wasted words: column x of row j lies at column x ^ (j % 32). Each row is
  // permuted differently, so a column meets every bank once. Such a layout is called a swizzle.
  std::printf("  keys swizzled, rows of 64:     %2d\n",
              passes([](int j) { return j * 64 + (7 ^ (j % 32)); }));
}
