// src/base/amounts.cpp
#include "base/amounts.h"

#include <cstdio>

namespace keyhole {

std::string in_units(double value, const char* unit) {
  static constexpr const char* kPrefix[] = {"", " k", " M", " G", " T", " P", " E"};
  int prefix = 0;
  while (value >= 1000 && prefix < 6) value /= 1000, ++prefix;
  char text[64];
  std::snprintf(text, sizeof text, prefix == 0 ? "%.0f%s%s" : "%.2f%s%s", value,
                prefix == 0 ? " " : kPrefix[prefix], unit);
  return text;
}

std::string in_seconds(double seconds) {
  char text[64];
  if (seconds < 1e-3) {
    std::snprintf(text, sizeof text, "%.2f us", seconds * 1e6);
  } else if (seconds < 1) {
    std::snprintf(text, sizeof text, "%.1f ms", seconds * 1e3);
  } else {
    std::snprintf(text, sizeof text, "%.2f s", seconds);
  }
  return text;
}

std::string percent_of(double part, double whole) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%%", whole > 0 ? 100 * part / whole : 0.0);
  return text;
}

std::string report_line(const char* name, const std::string& value) {
  char label[16];
  std::snprintf(label, sizeof label, "%-10s", name);
  return label + value + "\n";
}

}  // namespace keyhole
