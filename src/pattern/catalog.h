// src/pattern/catalog.h
// The list of patterns. The parser, the CLI, the documentation and the tests read this table; a
// pattern that is not in it does not exist, and one that is in it is tested and documented.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "keyhole/pattern.h"

namespace keyhole {

enum class ParameterKind : uint8_t {
  integer,   // 7, or inf where may_be_unbounded
  integers,  // 3, 4, 5: takes the rest of the arguments; by name a list or a file
  array,     // [3, 4, 5] or a file: one argument
  rows,      // [[1, 0], [1, 1]] or a file: a boolean matrix
  pattern,   // any expression
  patterns,  // takes the rest of the arguments; by name a list
};

struct Parameter {
  std::string_view name;
  ParameterKind kind = ParameterKind::integer;
  int64_t least = 0;                // the smallest accepted number; for lists, of every entry
  int64_t most = kUnbounded;        // the largest; keeps sums and differences inside 64 bits
  bool is_optional = false;         // may be left out
  bool may_be_unbounded = false;    // accepts inf
  std::string_view file_name = {};  // what a file may be called here: documents(file=lengths.npy)
  int max_dims = 1;                 // of an array from a file
};

// A boolean matrix: one byte per pair, [q_len][k_len]; non-zero attends.
struct MaskRows {
  std::vector<uint8_t> allowed;
  int64_t q_len = 0, k_len = 0;
};

// Values in the order of the parameters; an optional one that was left out is absent (monostate).
using Value = std::variant<std::monostate, int64_t, std::vector<int64_t>, MaskRows, Pattern,
                           std::vector<Pattern>>;

struct CatalogEntry {
  std::string_view name;
  std::vector<Parameter> parameters = {};  // what takes the rest (integers, patterns) comes last
  std::string_view definition;             // when (q, k) attends, in one line; / is floor division
  std::string_view meaning;                // for whom and why, one sentence
  std::string_view example;                // a text of this pattern, small enough to be drawn
  int64_t example_q_len = 16;              // ... for these lengths: what has arrays has lengths
  int64_t example_k_len = 16;
  std::string_view complexity;               // "L * w": pairs for length L
  std::string_view reach;                    // global context: "all", "first n tokens", "none", ...
  bool is_composition = false;               // named composition or operator-like (per_head, at)
  bool prints_as_written = false;            // from arrays: the leaf alone would print a hash
  Pattern (*make)(std::span<Value> values);  // may take the values' memory
};

std::span<const CatalogEntry> catalog();
const CatalogEntry* find_in_catalog(std::string_view name);

// "window(left[, right])": how a pattern is called.
std::string signature_of(const CatalogEntry& entry);

// Patterns for tests and pictures: every catalog example, and combinations of them.
std::vector<std::string> sample_texts();

}  // namespace keyhole
