// src/render/number_text.h
// Numbers in pictures: with a point, whatever the locale of the program says.
#pragma once

#include <charconv>
#include <string>

namespace keyhole {

inline std::string number_text(double value, std::chars_format format, int digits) {
  char text[400];  // the longest double without an exponent has 309 digits before the point
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, value, format, digits);
  return std::string(text, end.ptr);
}

// fixed(2.5, 2): "2.50"
inline std::string fixed_text(double value, int digits) {
  return number_text(value, std::chars_format::fixed, digits);
}
// significant(2.5, 6): "2.5"
inline std::string significant_text(double value, int digits) {
  return number_text(value, std::chars_format::general, digits);
}

}  // namespace keyhole
