// src/base/amounts.h
// Amounts as reports print them, and the lines of a report.
#pragma once

#include <string>

namespace keyhole {

std::string in_units(double value, const char* unit);  // "512 FLOP", "1.23 TFLOP": powers of 1000
std::string in_seconds(double seconds);                // "3.25 us", "93.8 ms", "1.08 s"
std::string percent_of(double part, double whole);     // "6.1%"; of nothing: "0.0%"

// A name, padded to the column where values begin, the value and a newline.
std::string report_line(const char* name, const std::string& value);

}  // namespace keyhole
