// src/pattern/catalog.h
// The list of patterns. The parser, the CLI, the documentation and the tests read this table; a
// pattern that is not in it does not exist, and one that is in it is tested and documented.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "keyhole/pattern.h"

namespace keyhole {

// One argument as written: a number (inf is kUnbounded), a list, a pattern or a file name.
struct Argument {
  using List = std::vector<int64_t>;
  std::string name;  // empty: given by place
  std::variant<int64_t, List, Pattern, std::string> value;
};

enum class ParameterKind { integer, integers, pattern, patterns, file };

struct Parameter {
  std::string_view name;
  ParameterKind kind = ParameterKind::integer;
  int64_t least = 0;              // integer, integers: the smallest accepted value
  bool is_optional = false;       // may be left out
  bool may_be_unbounded = false;  // accepts inf
};

// Values in the order of the parameters; an optional one that was left out is absent (monostate).
using Value = std::variant<std::monostate, int64_t, std::vector<int64_t>, Pattern, std::vector<Pattern>, std::string>;

struct CatalogEntry {
  std::string_view name;
  std::vector<Parameter> parameters;  // a list kind (integers, patterns) comes last and takes the rest
  std::string_view definition;        // when (q, k) attends, in one line, as in design.md
  std::string_view meaning;           // for whom and why, one sentence
  std::string_view example;           // a text of this pattern that is small enough to be drawn
  std::string_view complexity;        // "L * w": pairs for length L
  std::string_view reach;             // global context: "all", "first n tokens", "none", ...
  bool is_composition = false;        // named composition or operator-like (per_head, at)
  Pattern (*make)(std::span<const Value> values);
};

std::span<const CatalogEntry> catalog();
const CatalogEntry* find_in_catalog(std::string_view name);

// Patterns for tests and pictures: every catalog example, and combinations of them.
std::vector<std::string> sample_texts();

}  // namespace keyhole
