// src/pattern/leaves/array_text.h
// How leaves that hold arrays print them: in full while a person could read it, else size and hash.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/hash.h"

namespace keyhole {

inline constexpr size_t kLongestPrintedList = 4096;

// "documents(3, 5, 4)", or "documents(<5000 lengths #0123456789abcdef>)".
inline std::string list_text(std::string_view name, std::span<const int64_t> values,
                             std::string_view plural) {
  if (values.size() > kLongestPrintedList) {
    Fnv1a64 hash;
    hash.add(values);
    return say(name, "(<", values.size(), " ", plural, " #", to_hex(hash.value()), ">)");
  }
  std::string text = say(name, "(");
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(values[i]);
  }
  return text + ")";
}

}  // namespace keyhole
