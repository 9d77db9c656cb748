// src/pattern/arguments.h
// From the arguments as written to the pattern a catalog entry makes of them: names and places are
// matched, numbers checked, files read. Errors point at the argument.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pattern/catalog.h"
#include "pattern/tokens.h"

namespace keyhole {

struct Infinity {};

// One argument as written.
struct Argument {
  using Rows = std::vector<std::vector<int64_t>>;
  struct File {
    std::string name;
  };
  using Value = std::variant<int64_t, Infinity, std::vector<int64_t>, Rows, File, Pattern,
                             std::vector<Pattern>>;
  std::string_view name;  // empty: given by place
  TextRange name_range;
  TextRange range;  // of the value
  Value value;
};

struct Call {
  const CatalogEntry* entry;
  TextRange range;  // from the name to the closing parenthesis
  std::vector<Argument> arguments;
};

Pattern make_pattern(std::string_view text, Call call, bool allow_files);

}  // namespace keyhole
