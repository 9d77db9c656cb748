// src/pattern/tokens.cpp
// Text to tokens, one at a time, and the errors that point into the text.
#include "pattern/tokens.h"

#include <algorithm>
#include <charconv>

#include "base/check.h"

namespace keyhole {

namespace {

constexpr size_t kExcerptWidth = 76;  // with indent and dots it fits 80 columns or so
constexpr size_t kMaxQuoted = 32;
constexpr size_t kMaxBytesWithBlanks = 8 * kMaxTextBytes;
constexpr std::string_view kFileEnding = ".npy";

// Written out rather than <cctype>, which depends on the locale.
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word_char(char c) {
  return is_letter(c) || is_digit(c) || c == '.' || c == '/' || c == '-';
}
bool is_printable(char c) { return c >= ' ' && c <= '~'; }

std::string hex_byte(char c) {
  constexpr std::string_view digits = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  return {'0', 'x', digits[byte >> 4], digits[byte & 15]};
}

// One column for every byte, so that the caret stands under its place.
std::string printable(std::string_view text) {
  std::string shown(text);
  for (char& c : shown) c = is_blank(c) ? ' ' : is_printable(c) ? c : '?';
  return shown;
}

}  // namespace

std::string quoted(std::string_view word) {
  const bool is_long = word.size() > kMaxQuoted;
  return '"' + printable(word.substr(0, kMaxQuoted)) + (is_long ? "...\"" : "\"");
}

void fail_at(std::string_view text, TextRange where, const std::string& message) {
  where.begin = std::min(where.begin, text.size());
  where.end = std::clamp(where.end, where.begin, text.size());
  size_t begin = 0, end = text.size();
  if (text.size() > kExcerptWidth) {  // a window that shows more of what led here than of the rest
    const size_t before = kExcerptWidth / 2;
    begin = std::min(where.begin > before ? where.begin - before : 0, text.size() - kExcerptWidth);
    end = begin + kExcerptWidth;
  }
  const std::string_view dots_before = begin > 0 ? "..." : "";
  const std::string_view dots_after = end < text.size() ? "..." : "";
  const size_t marked = std::min(where.end, end) - std::min(where.begin, end);
  throw Error(ErrorKind::usage,
              say(message, "\n  ", dots_before, printable(text.substr(begin, end - begin)),
                  dots_after, "\n  ", std::string(dots_before.size() + where.begin - begin, ' '),
                  '^', std::string(marked > 0 ? marked - 1 : 0, '~')));
}

bool is_bare_file_name(std::string_view word) {
  return word.size() > kFileEnding.size() && word.ends_with(kFileEnding) &&
         std::all_of(word.begin(), word.end(), is_word_char);
}

Lexer::Lexer(std::string_view text) : text_(text) {
  // Blanks are free up to a point, so that whatever is read can also be printed and read again.
  const std::string_view seen = text.substr(0, kMaxBytesWithBlanks);
  const auto bytes = size_t(std::ranges::count_if(seen, [](char c) { return !is_blank(c); }));
  KEYHOLE_CHECK(
      seen.size() == text.size() && bytes <= kMaxTextBytes, "the pattern text has ", text.size(),
      " bytes; at most ", kMaxTextBytes,
      " are read (blanks not counted). Give long lists as a file: documents(file=lengths.npy)");
  const auto foreign = std::find_if(text.begin(), text.end(), [](char c) { return c & 0x80; });
  if (foreign != text.end()) {
    const auto offset = size_t(foreign - text.begin());
    fail_at(text, {offset, offset + 1},
            say("pattern text is ASCII; found byte ", hex_byte(*foreign), " at offset ", offset));
  }
  scan();
}

Token Lexer::take() {
  const Token taken = token_;
  taken_end_ = taken.range.end;
  scan();
  return taken;
}

size_t Lexer::skip_blanks(size_t from) const {
  while (from < text_.size() && is_blank(text_[from])) ++from;
  return from;
}

bool Lexer::is_followed_by(char symbol) const {
  const size_t next = skip_blanks(position_);
  return next < text_.size() && text_[next] == symbol;
}

void Lexer::scan() {
  position_ = skip_blanks(position_);
  const size_t begin = position_;
  if (begin == text_.size()) {
    token_ = {.range = {begin, begin}, .text = text_.substr(begin)};
    return;
  }
  const char c = text_[begin];
  if (is_word_char(c)) return scan_word();
  if (c == '"') return scan_quoted();
  const TextRange range{begin, begin + 1};
  if (!is_printable(c)) fail_at(text_, range, "unexpected character " + hex_byte(c));
  if (c == '!') fail_at(text_, range, "unexpected character \"!\"; negation is written ~");
  if (std::string_view("&|~(),=[]").find(c) == std::string_view::npos) {
    fail_at(text_, range, say("unexpected character \"", c, '"'));
  }
  ++position_;
  token_ = {.kind = Token::Kind::symbol, .range = range, .text = text_.substr(begin, 1)};
}

// A name, a number or a file name: they share their characters, and a file is told by its ending.
void Lexer::scan_word() {
  const size_t begin = position_;
  while (position_ < text_.size() && is_word_char(text_[position_])) ++position_;
  const std::string_view word = text_.substr(begin, position_ - begin);
  token_ = {.range = {begin, position_}, .text = word};
  if (is_bare_file_name(word)) {
    token_.kind = Token::Kind::file;
    return;
  }
  if (is_digit(word[0]) || word[0] == '-') {
    token_.kind = Token::Kind::integer;
    const auto [last, problem] =
        std::from_chars(word.data(), word.data() + word.size(), token_.number);
    if (problem == std::errc::invalid_argument || last != word.data() + word.size()) {
      fail_at(text_, token_.range, quoted(word) + " is not a whole decimal number");
    }
    if (problem == std::errc::result_out_of_range) {
      fail_at(text_, token_.range, say(quoted(word), " does not fit 64 bits"));
    }
    return;
  }
  token_.kind = Token::Kind::name;
  const bool is_name =
      std::all_of(word.begin(), word.end(), [](char c) { return is_letter(c) || is_digit(c); });
  if (!is_name) {
    fail_at(text_, token_.range,
            quoted(word) + " is neither a name (letters, digits, _) nor a file (.npy)");
  }
  if (word.size() > kMaxNameBytes) {
    fail_at(text_, token_.range,
            say("a name of ", word.size(), " bytes; names have at most ", kMaxNameBytes));
  }
}

void Lexer::scan_quoted() {
  const size_t begin = position_;
  const size_t end = text_.find('"', begin + 1);
  if (end == std::string_view::npos) {
    fail_at(text_, {begin, text_.size()}, "the file name that begins here has no closing \"");
  }
  const std::string_view name = text_.substr(begin + 1, end - begin - 1);
  position_ = end + 1;
  const TextRange range{begin, position_};
  if (name.empty() || !std::all_of(name.begin(), name.end(), is_printable)) {
    fail_at(text_, range, "a file name has one or more printing characters");
  }
  token_ = {.kind = Token::Kind::file, .range = range, .text = name};
}

}  // namespace keyhole
