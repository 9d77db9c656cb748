// cli/bench/tables.h
// The tables of `keyhole bench`, one function each. Each checks, measures, prints, and keeps
// records.
#pragma once

#include <string>
#include <vector>

#include "cli/bench/session.h"

namespace keyhole::bench {

// Case by case: median, spread, useful work, share of the machine's peak.
void bench_cases(Session& session, const std::string& suite, const std::vector<Case>& cases);

// The classic streaming table: the same channels as several heads and as one.
struct StreamingOptions {
  int64_t first_len = 128, last_len = 4096;
  int64_t window = 64, sinks = 16;
  int64_t channels = 384, head_dim = 64;
  DType dtype = DType::f32;
};
void bench_streaming(Session& session, const StreamingOptions& options);

// The classic block-diagonal table, with and without causal.
struct BlocksOptions {
  int64_t first_len = 128, last_len = 4096;
  int64_t block = 16, heads = 1, head_dim = 64;
  DType dtype = DType::f32;
};
void bench_blocks(Session& session, const BlocksOptions& options);

// All patterns of the catalog at growing lengths; and, from the same measurements, how their times
// grow.
struct SweepOptions {
  int64_t first_len = 1024, last_len = 131072, factor = 2;
  int64_t heads = 2, head_dim = 64;
  DType dtype = DType::f32;
};
struct SweepPoint {
  std::string name;  // of the catalog
  int64_t length = 0;
  double ms = 0, pairs = 0, keys_per_query = 0;
};
std::vector<SweepPoint> bench_sweep(Session& session, const SweepOptions& options);
void bench_compare(Session& session, const std::vector<SweepPoint>& points);
std::vector<SweepPoint> measure_for_compare(Session& session, const SweepOptions& options);

// The shortest length at which each pattern beats dense.
struct BreakEvenOptions {
  int64_t first_len = 16, last_len = 4096;
  int64_t heads = 2, head_dim = 64;
  DType dtype = DType::f32;
};
void bench_break_even(Session& session, const BreakEvenOptions& options);

// Memory a call needs besides its tensors, at a length and at four times that length.
struct MemoryOptions {
  int64_t first_len = 4096, last_len = 16384;
  int64_t heads = 2, head_dim = 64;
  DType dtype = DType::f32;
};
void bench_memory(Session& session, const MemoryOptions& options);

// What it takes to compile plans of up to a million tokens.
void bench_planning(Session& session);

}  // namespace keyhole::bench
