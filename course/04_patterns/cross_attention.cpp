// course/04_patterns/cross_attention.cpp
// Queries of one sequence, keys of another: a decoder's words look at an encoder's frames. Word 5
// and frame 5 need not belong together, so a pattern must be told at which frame a word stands.
#include <cstdio>

#include "definition.h"

using namespace keyhole;

namespace {

std::vector<int64_t> positions(int64_t count, int64_t step = 1) {
  std::vector<int64_t> made;
  for (int64_t i = 0; i < count; ++i) made.push_back(i * step);
  return made;
}

void show(const char* words, const Pattern& pattern, int64_t q_len, int64_t k_len) {
  const course::Head head = course::random_head(q_len, k_len, 16);
  const double error = course::largest_difference(
      course::by_library(head, plan(pattern, q_len, k_len)), course::by_definition(head, pattern));
  std::printf("%s: %lld of %lld pairs; kernel and definition agree: %s\n%s\n", words,
              static_cast<long long>(count_pairs(pattern, q_len, k_len)),
              static_cast<long long>(q_len * k_len), error < 1e-5 ? "yes" : "no",
              picture(pattern, q_len, k_len).c_str());
}

}  // namespace

int main() {
  // Six words, 24 frames: four frames a word.
  constexpr int64_t kWords = 6, kFrames = 24;

  // 1. The usual cross-attention: every word sees every frame. All frames are there before the
  // first word is written, so nothing of it is the future and no causal mask belongs here.
  show("dense", dense(), kWords, kFrames);

  // 2. A mistake. Without other instructions the last query stands at the last key, as in decoding
  // with a cache: word 0 stands at frame 18.
  show("a mistake: causal & window(5)", causal() & window(5), kWords, kFrames);

  // 3. Word i stands at frame 4 i + 2, the middle of its four: a band along the diagonal, for
  // speech or translation, where both sequences run in the same order.
  std::vector<int64_t> words = positions(kWords, 4);
  for (int64_t& position : words) position += 2;
  show("a band", at(words, positions(kFrames), window(5, 4)), kWords, kFrames);

  // 4. Translating while the speaker speaks: word i may see the frames that have arrived, up to its
  // own last one: a causal mask over frames.
  show("frames that have arrived",
       at(positions(kWords, 4), positions(kFrames), window(kUnbounded, 3)), kWords, kFrames);

  // 5. A batch without padding: two pairs of sequences, 4 words with 10 frames, 2 words with 14.
  show("packed", packed({4, 2}, {10, 14}, dense()), kWords, kFrames);

  // 6. Text that looks at an image of 4 x 6 patches, each word at its region: two columns of
  // patches a word, given as a mask. A detector of objects could make such a mask.
  std::vector<uint8_t> regions;
  for (int64_t word = 0; word < kWords; ++word) {
    for (int64_t patch = 0; patch < kFrames; ++patch) {
      regions.push_back(patch % 6 == word || patch % 6 == (word + 1) % 6);
    }
  }
  // Rows of a mask are positions; query 0 of six stands at 18. Positions given by `at` put it at 0.
  show("regions of an image",
       at(positions(kWords), positions(kFrames), mask(regions, kWords, kFrames)), kWords, kFrames);

  // 7. What it costs. Queries and keys grow apart: pairs are q_len * k_len, and a band's are
  // q_len * width, however long the keys are.
  std::printf("%6s %8s %12s %12s %8s\n", "words", "frames", "dense", "band", "ratio");
  for (const int64_t count : {64, 256, 1024}) {
    const Pattern band =
        at(positions(count, 16), positions(16 * count), window(127, 128));  // 256 frames
    const int64_t kept = count_pairs(band, count, 16 * count);
    std::printf("%6lld %8lld %12lld %12lld %8.1f\n", static_cast<long long>(count),
                static_cast<long long>(16 * count), static_cast<long long>(16 * count * count),
                static_cast<long long>(kept),
                static_cast<double>(16 * count * count) / static_cast<double>(kept));
  }
}
