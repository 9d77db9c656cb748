// cli/common.cpp
// Printing, colours, the progress line and tables.
#include "cli/common.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "render/text.h"

namespace keyhole::cli {
namespace {

int stdout_errno = 0;  // the first failed write; stdio forgets the reason

bool is_wanted_terminal(int descriptor) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return isatty(descriptor) && !(no_color && *no_color) &&
         !(term && std::strcmp(term, "dumb") == 0);
}

// How many columns a text takes: UTF-8 continuation bytes take none.
size_t width_of(std::string_view text) {
  size_t width = 0;
  for (const char c : text) width += (c & 0xc0) != 0x80;
  return width;
}

}  // namespace

void write_out(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) < text.size() && stdout_errno == 0) {
    stdout_errno = errno ? errno : EIO;
  }
}

void print_json(const Json& json) { write_out(json.dump(2) + "\n"); }

void finish_output() {
  errno = 0;
  if (std::fflush(stdout) != 0 && stdout_errno == 0) stdout_errno = errno ? errno : EIO;
  if (stdout_errno == 0 || stdout_errno == EPIPE) return;
  throw Error(ErrorKind::usage,
              say("cannot write to standard output: ", std::strerror(stdout_errno)));
}

bool colours_on() {
  static const bool is_on = is_wanted_terminal(STDOUT_FILENO);
  return is_on;
}

std::string paint(Ink ink, std::string_view text) {
  if (!colours_on() || ink == Ink::plain) return std::string(text);
  static constexpr const char* kCodes[] = {"0", "1", "2", "31", "32", "33", "36"};
  return fmt::format("\x1b[{}m{}\x1b[0m", kCodes[size_t(ink)], text);
}

std::string coloured_text(const Picture& picture) {
  const bool has_kept = picture.has_kept();
  return picture_text(picture, [has_kept](char glyph, const std::string& stretch) {
    if (glyph == '.') return paint(Ink::dim, stretch);
    if (has_kept) return paint(glyph == '-' ? Ink::cyan : Ink::yellow, stretch);
    return paint(glyph == '#' ? Ink::cyan : Ink::yellow, stretch);
  });
}

Progress::Progress(std::string_view label, int64_t total)
    : label_(label), total_(total), is_terminal_(is_wanted_terminal(STDERR_FILENO)) {}

Progress::~Progress() {
  if (is_shown_) std::fputs("\r\x1b[K", stderr);
}

void Progress::step(std::string_view what) {
  ++done_;
  const auto now = std::chrono::steady_clock::now();
  if (!is_terminal_ || now - last_ < std::chrono::milliseconds(50)) return;
  last_ = now;
  is_shown_ = true;
  const std::string count = total_ > 0 ? fmt::format("{} of {}", done_, total_) : say(done_);
  // Cut to 79 columns: a line that wraps cannot be overwritten.
  std::string line = fmt::format("{} {}: {}", label_, count, what);
  if (line.size() > 79) line.resize(79);
  fmt::print(stderr, "\r\x1b[K{}", line);
  std::fflush(stderr);
}

Table::Table(std::vector<std::string> header, std::string align) : align_(std::move(align)) {
  if (!header.empty()) add(std::move(header), Ink::bold);
}

void Table::add(std::vector<std::string> row, Ink ink) {
  rows_.push_back(std::move(row));
  inks_.push_back(ink);
}

std::string Table::text() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::string text;
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < rows_[r].size(); ++c) {
      const std::string& cell = rows_[r][c];
      const std::string padding(widths[c] - width_of(cell), ' ');
      const bool is_right = c < align_.size() && align_[c] == 'r';
      if (c > 0) line += "   ";
      line += is_right ? padding + cell : cell + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += paint(inks_[r], line) + "\n";
  }
  return text;
}

std::string with_thousands(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

std::string bytes_text(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) bytes /= 1024, ++unit;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string flops_text(double flops, const char* unit) {
  static constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  while (flops >= 1000 && prefix + 1 < std::size(kPrefixes)) flops /= 1000, ++prefix;
  return prefix == 0 ? fmt::format("{:.0f} {}", flops, unit)
                     : fmt::format("{:.2f} {}{}", flops, kPrefixes[prefix], unit);
}

}  // namespace keyhole::cli
