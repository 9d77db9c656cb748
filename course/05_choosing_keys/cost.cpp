// course/05_choosing_keys/cost.cpp
// What choosing keys costs, by arithmetic: per query, as the text grows, and in the least time that
// a GPU could take. One multiplication and one addition are 2 FLOP.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>

using namespace keyhole;

namespace {

// The work of one layer for one pair (query, key), in multiplications.
struct Layer {
  const char* name;
  double dense;    // dense attention, all heads together
  double chosen;   // attention over a chosen key
  double indexer;  // a score; all heads of the attention share the choice
  int64_t k;
};

// DeepSeek-V3.2: 128 latent heads. Dense attention has keys of 192 and values of 128 for each head.
// Of a chosen key all heads read one stored row of 576 numbers, 512 of which are the value, too:
// more work, but one row for all heads.
constexpr Layer kDeepSeek = {"DeepSeek-V3.2", 128 * (192 + 128), 128 * (576 + 512), 64 * 128, 2048};
constexpr double kGrouped = 32 * 2 * 128;  // 32 heads of 128

double giga(double multiplications) { return 2 * multiplications / 1e9; }

// Pairs of a causal text, and those that are left if a query keeps at most k keys.
double pairs_of(double length) { return length * (length + 1) / 2; }
double kept_of(double length, double k) {
  const double few = std::min(length, k);  // the first queries see no more than k keys
  return pairs_of(few) + (length - few) * k;
}

}  // namespace

int main() {
  // 1. The example of many texts: L = 32768, d = 128, k = 512, one query that sees all keys.
  constexpr int64_t length = 32768, dim = 128, k = 512;
  std::printf("One query, one head, L = %lld, d = %lld, k = %lld\n", static_cast<long long>(length),
              static_cast<long long>(dim), static_cast<long long>(k));
  std::printf("dense    4 L d = %9lld FLOP\n", static_cast<long long>(4 * length * dim));
  std::printf("chosen   4 k d = %9lld FLOP, %lld times fewer\n",
              static_cast<long long>(4 * k * dim), static_cast<long long>(length / k));
  std::printf("indexer  2 L h e = %lld FLOP with %d heads of %d, %lld times dense\n\n",
              static_cast<long long>(2 * length * 64 * 128), 64, 128,
              static_cast<long long>(64 * 128 / (2 * dim)));

  // 2. The indexer is paid once for all heads of a layer. The same query, in MFLOP.
  const double keys = length;
  const Layer layers[] = {
      {"1_head,_lists_for_nothing", 2 * 128, 2 * 128, 0, k},
      {"1_head,_64_x_128", 2 * 128, 2 * 128, 64 * 128, k},
      {"32_heads,_64_x_128", kGrouped, kGrouped, 64 * 128, k},
      {"32_heads,_16_x_64", kGrouped, kGrouped, 16 * 64, k},
      {"DeepSeek,_64_x_128", kDeepSeek.dense, kDeepSeek.chosen, kDeepSeek.indexer, kDeepSeek.k},
  };
  std::printf("%-26s %8s %8s %8s %6s\n", "heads_and_indexer", "dense", "indexer", "chosen",
              "fewer");
  for (const Layer& at : layers) {
    const double dense = keys * at.dense, indexer = keys * at.indexer;
    const double chosen = static_cast<double>(at.k) * at.chosen;
    std::printf("%-26s %8.1f %8.1f %8.1f %6.2f\n", at.name, 2e-6 * dense, 2e-6 * indexer,
                2e-6 * chosen, dense / (indexer + chosen));
  }

  // 3. O(L^2) with a small constant plus O(L k): one causal DeepSeek layer over a text, in GFLOP.
  std::printf("\n%7s %8s %8s %8s %6s\n", "length", "dense", "indexer", "chosen", "fewer");
  for (double tokens = 4096; tokens <= 1048576; tokens *= 4) {
    const double dense = pairs_of(tokens) * kDeepSeek.dense;
    const double indexer = pairs_of(tokens) * kDeepSeek.indexer;
    const double chosen = kept_of(tokens, static_cast<double>(kDeepSeek.k)) * kDeepSeek.chosen;
    std::printf("%7.0f %8.0f %8.0f %8.0f %6.2f\n", tokens, giga(dense), giga(indexer), giga(chosen),
                dense / (indexer + chosen));
  }
  std::printf("in the limit: %.2f times fewer, and the indexer is all the work\n\n",
              kDeepSeek.dense / kDeepSeek.indexer);

  // 4. Least times: the work at the full rates of an H200, which explain_selection assumes. Tensor
  // cores have about twice the rate in 8 bits. Keys of a list are read row by row, which can limit
  // attention, too. Kernels are slower than that.
  const SelectionCall call{.q_len = 131072,
                           .k_len = 131072,
                           .k = 2048,
                           .q_heads = 128,
                           .head_dim = 128,
                           .v_head_dim = 128,
                           .latent_dim = 512};
  std::printf("%-22s %8s %8s %8s %8s %8s\n", "131072_tokens,_least_ms", "dense", "indexer",
              "chosen", "speed-up", "from");
  const auto line = [](const char* name, const SelectionCall& of) {
    const SelectionReport report = explain_selection(of);
    std::printf("%-22s %8.1f %8.1f %8.1f %8.2f %8lld\n", name, 1e3 * report.dense.seconds,
                1e3 * report.indexer.seconds, 1e3 * report.chosen.seconds, report.speedup,
                static_cast<long long>(report.wins_from.value_or(-1)));
  };
  SelectionCall other = call;
  line("e4m3_indexer", call);
  other.index_dtype = DType::bf16;
  line("bf16_indexer", other);
  other = call;
  other.index_heads = 16;
  other.index_dim = 64;
  line("16_x_64_indexer", other);
  other = call;
  other.shared_by = 4;
  line("shared_by_4_layers", other);
  other = {.q_len = 131072, .k_len = 131072, .k = 2048, .q_heads = 32, .kv_heads = 8};
  line("grouped,_32:8_heads", other);
  return 0;
}
