// cli/common.h
// What all verbs share: the exit codes, printing, colours, the progress line, and the options that
// name a shape, a dtype or a tile.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "keyhole/keyhole.h"
#include "render/picture.h"

namespace CLI {
class App;
}

namespace keyhole::cli {

inline constexpr int kDone = 0, kCheckFailed = 1, kUsageError = 2;

// Keys keep the order in which they are written: a person reads the output too.
using Json = nlohmann::ordered_json;

struct Context {
  bool json = false;  // machines read this output: JSON only on stdout
};

// Adds --json.
void add_json_option(CLI::App& app, Context& context);

// ---- printing ----

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

// ---- options ----

// An option that takes a whole number and refuses everything else, numbers that do not fit included
// (CLI11 would take the nearest that does).
void add_integer(CLI::App& app, const std::string& name, std::function<void(int64_t)> set,
                 const std::string& help);
template <class T>
void add_integer(CLI::App& app, const std::string& name, T& value, const std::string& help) {
  add_integer(app, name, std::function<void(int64_t)>([&value](int64_t given) { value = given; }),
              help);
}

std::optional<int64_t> integer_from(std::string_view text);  // nothing where it is none

struct ShapeOptions {
  std::optional<int64_t> len, q_len, k_len, offset, heads, batch;

  void add_to(CLI::App& app);
  bool is_given() const { return len || q_len || k_len; }
  // Heads and batch entries that were not given are as many as the pattern needs. Throws
  // Error(usage) when lengths are missing or absurd. Products of lengths up to kMostTokens fit 64
  // bits with room to spare.
  static constexpr int64_t kMostTokens = int64_t{1} << 40;
  Shape shape(std::string_view verb, const Pattern& pattern, int64_t longest = kMostTokens) const;
};

// Throws Error(usage) with an example when the text is empty. Reads files for mask(file=...).
Pattern pattern_from(std::string_view verb, const std::string& text);
DType dtype_from(const std::string& text);
DType index_dtype_from(const std::string& text);  // or e4m3, which only an indexer may be
TileShape tile_from(const std::string& text);     // "128x128", or "auto": {0, 0}

// The candidate that a misspelt word most likely meant; empty when none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);
// The same as a question, or all candidates: the second half of an error.
std::string nearest_or_all(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace keyhole::cli
