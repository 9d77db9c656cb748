// cli/bench/tables.h
// The tables of `keyhole bench`, one function each. Each checks, measures, prints, and keeps
// records.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/bench/session.h"

namespace keyhole::bench {

// What most tables walk: lengths that grow, of tensors that are otherwise the same.
struct Range {
  int64_t first_len = 0, last_len = 0;
  int64_t heads = 1, head_dim = 64;
  DType dtype = DType::f32;

  // The case of so many queries and keys, on the device of the session.
  Case at(const Session& session, std::string name, const Pattern& pattern, std::string text,
          int64_t length) const;
};

// Case by case: median, spread, useful work, share of the machine's peak.
void bench_cases(Session& session, const std::string& suite, const std::vector<Case>& cases);

// The classic streaming table: so many channels as several heads and as one.
void bench_streaming(Session& session, Range range, int64_t channels, int64_t sinks,
                     int64_t window);

// The classic block-diagonal table, with and without causal.
void bench_blocks(Session& session, const Range& range, int64_t block);

// All patterns of the catalog at lengths that grow by a factor; and, from the same measurements,
// how their times grow.
struct SweepPoint {
  std::string name;  // of the catalog
  int64_t length = 0;
  double ms = 0, pairs = 0, keys_per_query = 0;
};
std::vector<SweepPoint> bench_sweep(Session& session, const Range& range, int64_t factor,
                                    bool prints_table = true);
void bench_compare(Session& session, const std::vector<SweepPoint>& points);

// The shortest length at which each pattern beats dense.
void bench_break_even(Session& session, const Range& range);

// Memory a call needs besides its tensors, at the first length and at the last.
void bench_memory(Session& session, const Range& range);

// Entmax or top-K beside softmax of the same pattern: time, pairs that keep weight, memory.
void bench_splash(Session& session, const Range& range, const Pattern& pattern,
                  const Normalizer& normalizer);

// The steps of a key selection, and the attention that it is for (bench/latent_layer.h).
struct SelectRange {
  int64_t queries = 0, entries = 0, heads = 0, head_dim = 0, k = 0;
  int64_t q_heads = 0;  // of the attention; 0: none
  DType dtype = DType::f32;
  std::optional<Pattern> visible = {};
};
void bench_select(Session& session, const SelectRange& range);

// What it takes to compile plans of up to a million tokens.
void bench_planning(Session& session);

}  // namespace keyhole::bench
