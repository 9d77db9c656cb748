// course/07_measuring/count.cpp
// FLOPs and bytes by arithmetic, before anything is measured: the two tables of the outline that
// this course grew from, counted again. `too_much` says how far its figures are off.
#include <keyhole/keyhole.h>

#include <cstdint>
#include <cstdio>
#include <initializer_list>

// Attention needs two multiply-adds for every pair (query, key) and each of the head_dim numbers:
// one for the score, one for the output. A multiply-add is two FLOPs. Exponentials, maxima and sums
// are left out, as is usual.
double attention_flops(double pairs, double head_dim) { return 4 * pairs * head_dim; }

// Prints one row. `matrices` of scores exist at the same time; `passes` is how often one of them is
// written or read.
void one_way(const char* name, double matrices, double passes, double outline_mb,
             double outline_gb) {
  const double batch = 16, heads = 12, length = 2048, head_dim = 64, bytes = 2;
  const double pairs = batch * heads * length * length;
  const double tensor_bytes = batch * heads * length * head_dim * bytes;  // one of q, k, v, out
  const double lse_bytes =
      passes == 0 ? batch * heads * length * 4 : 0;  // one float a row, kept for the backward pass
  const double memory = 4 * tensor_bytes + lse_bytes + matrices * pairs * bytes;
  const double moved = 4 * tensor_bytes + lse_bytes + passes * pairs * bytes;
  std::printf("%-10s  %8.0f  %6.0f  %9.0f  %10.0f  %8.2f  %10.1f  %13.0f\n", name, matrices, passes,
              memory / 1e6, outline_mb, moved / 1e9, outline_gb,
              attention_flops(pairs, head_dim) / moved);
}

void first_table() {
  const double pairs = 16.0 * 12 * 2048 * 2048;
  std::printf("First table: batch 16, 12 heads, 2048 tokens, head_dim 64, 2 bytes a number\n\n");
  std::printf("pairs                 batch * heads * L * L  %12.0f\n", pairs);
  std::printf("FLOPs                 4 * pairs * d          %12.2f GFLOP\n",
              attention_flops(pairs, 64) / 1e9);
  std::printf("one tensor            batch * heads * L * d  %12.1f MB\n",
              16 * 12 * 2048 * 64 * 2 / 1e6);
  std::printf("one matrix of scores  2 * pairs              %12.1f MB\n\n", 2 * pairs / 1e6);
  // naive: scores are written; read and written to scale them; read and written by softmax; weights
  // are read. optimised: the scale is part of the product, and softmax works in place.
  std::printf("%-10s  %8s  %6s  %9s  %10s  %8s  %10s  %13s\n", "way", "matrices", "passes",
              "memory_MB", "outline_MB", "moved_GB", "outline_GB", "FLOP_per_byte");
  one_way("naive", 2, 6, 2048, 8.4);
  one_way("optimised", 1, 4, 2048, 6.1);
  one_way("flash", 0, 0, 128, 0.4);
  one_way("flash_2", 0, 0, 128, 0.4);
}

// Prints one row: the FLOPs of one token in one head, and of more tokens or heads.
void one_method(const char* name, double keys, double outline) {
  const double length = 32768, head_dim = 128;
  const double flops = attention_flops(keys, head_dim);
  std::printf("%-10s  %6.0f  %13.0f  %13.3f  %10.0f  %10.0f  %7.0f\n", name, keys, flops,
              flops * length / 1e9, flops * 64, outline, outline / flops);
}

void second_table() {
  std::printf("\nSecond table: 32768 tokens, head_dim 128, no mask; 64 heads make a layer\n\n");
  std::printf("%-10s  %6s  %13s  %13s  %10s  %10s  %7s\n", "method", "keys", "token_a_head",
              "GFLOP_a_head", "64_heads", "outline", "too_much");
  one_method("dense", 32768, 1073741824);  // the outline prints 1.07B and 16.8M
  one_method("flash", 32768, 1073741824);
  one_method("local", 512, 16777216);
  one_method("chosen", 512, 16777216);

  std::printf("\nWhere the 64 may come from:\n");
  std::printf("pairs of one head      32768 * 32768          %11.0f   pairs, not FLOPs\n",
              32768.0 * 32768);
  std::printf("one token in 64 heads  4 * 32768 * 128 * 64   %11.0f   a layer, not one head\n",
              4.0 * 32768 * 128 * 64);
  std::printf("\nThe outline's FLOPs 'per head', all tokens:\n");
  for (const double keys : {32768.0, 512.0}) {
    const double pairs = 32768 * keys, flops = attention_flops(pairs, 128);
    std::printf("%5.0f keys   %6.1fM instead of %8.1fM, too few by %.0f\n", keys, pairs / 1e6,
                flops / 1e6, flops / pairs);
  }

  // An indexer scores every key before it keeps 512: its heads, not k, decide what choosing costs.
  std::printf(
      "\nWhat choosing 512 of 32768 keys costs one token in a layer of 64 heads, in MFLOP:\n\n");
  const double attention = 64 * attention_flops(512, 128) / 1e6,
               dense = 64 * attention_flops(32768, 128) / 1e6;
  std::printf("%11s  %7s  %9s  %7s  %5s\n", "index_heads", "indexer", "attention", "dense",
              "fewer");
  for (const int index_heads : {0, 1, 4, 16, 64}) {
    const double indexer =
        2.0 * index_heads * 128 * 32768 / 1e6;  // one product of 128 numbers for every head and key
    std::printf("%11d  %7.1f  %9.1f  %7.1f  %5.1f\n", index_heads, indexer, attention, dense,
                dense / (indexer + attention));
  }
}

// The library counts the pairs of any pattern, also at the edges: a window has fewer keys there.
void as_the_library_counts() {
  std::printf("\nThe library's count, one head of 128, 32768 tokens:\n\n");
  std::printf("%-23s  %10s  %8s  %14s\n", "pattern", "pairs", "GFLOP", "FLOPs_a_token");
  for (const char* text : {"dense", "causal", "window(255,256)", "causal&window(511)"}) {
    const keyhole::PlanReport report =
        keyhole::plan(keyhole::parse(text), 32768, 32768).explain({128, 128}, /*head_dim=*/128);
    std::printf("%-23s  %10lld  %8.3f  %14.0f\n", text, static_cast<long long>(report.pairs),
                report.flops_forward / 1e9, report.flops_per_token);
  }
}

int main() {
  first_table();
  second_table();
  as_the_library_counts();
}
