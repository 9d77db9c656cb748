// cli/common.h
// What all verbs share: the exit codes, printing, colours, tables and the progress line.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/command_line.h"
#include "keyhole/keyhole.h"
#include "render/picture.h"

namespace keyhole::cli {

inline constexpr int kDone = 0, kCheckFailed = 1, kUsageError = 2;

// Keys keep the order in which they are written: a person reads the output too.
using Json = nlohmann::ordered_json;

// To stdout. A closed pipe is remembered, not thrown: the verb finishes and its exit code stands.
void write_out(std::string_view text);
template <class... T>
void print(fmt::format_string<T...> format, T&&... parts) {
  write_out(fmt::format(format, std::forward<T>(parts)...));
}
void print_json(const Json& json);  // indented, with a final newline
// Flushes stdout; throws Error(usage) when it could not be written, unless the reader went away.
void finish_output();

enum class Ink { plain, bold, dim, red, green, yellow, cyan };
bool colours_on();                                  // stdout is a terminal that wants colours
std::string paint(Ink ink, std::string_view text);  // the text itself when colours are off
std::string coloured_text(const Picture& picture);

// One line on stderr that overwrites itself; nothing at all when stderr is not a terminal.
class Progress {
 public:
  Progress(std::string_view label, int64_t total);  // total 0: unknown
  ~Progress();                                      // clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void step(std::string_view what);  // counts one more and says what is being done now

 private:
  std::string label_;
  int64_t total_, done_ = 0;
  bool is_shown_ = false, is_terminal_;
  std::chrono::steady_clock::time_point last_{};
};

// Columns of text, each as wide as its widest cell; a column is flush right when `align` says 'r'.
class Table {
 public:
  explicit Table(std::vector<std::string> header, std::string align = "");
  void add(std::vector<std::string> row, Ink ink = Ink::plain);
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<Ink> inks_;
  std::string align_;
};

std::string with_thousands(int64_t value);                        // 1,048,576
std::string percent(double share);                                // "50.0%"
std::string bytes_text(double bytes);                             // "4.0 KiB"
std::string flops_text(double flops, const char* unit = "FLOP");  // "1.23 GFLOP"

}  // namespace keyhole::cli
