// cli/bench/tables.h
// The tables of `keyhole bench`, one function each: each checks, measures, prints, and keeps
// records. What it is asked for is in the options of the session.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/bench/session.h"

namespace keyhole::bench {

// ---- what the tables have in common ----

// "128:4096", or one length; otherwise, where the text is empty.
Lengths lengths_from(const std::string& text, Lengths otherwise);
// The number of an option, which must be at least 1.
int64_t positive(std::optional<int64_t> given, const char* option, int64_t otherwise = 1);
DType dtype_of(const Session& session);

// What most tables walk: lengths that grow, of tensors that are otherwise the same.
struct Range {
  Lengths lengths;
  int64_t heads = 1, head_dim = 64;
  DType dtype = DType::f32;

  // What the options ask for; `lengths` and `heads` where they do not say.
  Range(const Session& session, Lengths lengths, int64_t heads);
  std::string heads_text() const;  // "2 heads of 64"
  // The case of so many queries and keys, on the device of the session.
  Case at(const Session& session, std::string name, const Pattern& pattern, std::string text,
          int64_t length) const;
};

// ---- the tables ----

// Case by case: median, spread, useful work, share of the machine's peak.
void bench_forward(Session& session);
void bench_backward(Session& session);

// The classic tables: streaming attention, so many channels as several heads and as one; and
// block-diagonal attention, with and without causal.
void bench_streaming(Session& session);
void bench_blocks(Session& session);

// All patterns of the catalog at lengths that grow by a factor; and, from the same measurements,
// how their times grow. The last makes both tables and measures once.
void bench_sweep(Session& session);
void bench_compare(Session& session);
void bench_sweep_and_compare(Session& session);

// The shortest length at which each pattern beats dense.
void bench_break_even(Session& session);

// Memory a call needs besides its tensors, at the first length and at the last.
void bench_memory(Session& session);

// Entmax or top-K beside softmax of the same pattern: time, pairs that keep weight, memory.
void bench_splash(Session& session);

// The steps of a key selection, and the attention that it is for (bench/latent_layer.h).
void bench_select(Session& session);

// What it takes to compile plans of up to a million tokens.
void bench_planning(Session& session);

}  // namespace keyhole::bench
