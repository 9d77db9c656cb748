// src/pattern/tokens.h
// Text to tokens, one at a time, and the errors that point into the text. Text may be
// untrusted: all work here is bounded by its length, and the length by kMaxTextBytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace keyhole {

inline constexpr size_t kMaxTextBytes = 65536;  // without blanks: printing adds some of its own
inline constexpr size_t kMaxNameBytes = 64;

struct TextRange {  // half-open, in bytes
  size_t begin = 0, end = 0;
};

// Throws Error(usage): the message, the text around the place, and a caret line under it.
[[noreturn]] void fail_at(std::string_view text, TextRange where, const std::string& message);

// A word of the text in quotes for a message, shortened when it is long.
std::string quoted(std::string_view word);

struct Token {
  enum class Kind : uint8_t { end, symbol, name, integer, file };
  Kind kind = Kind::end;
  TextRange range;
  std::string_view text;  // a symbol is one character; a quoted file name is without its quotes
  int64_t number = 0;     // integer

  bool is(char symbol) const { return kind == Kind::symbol && text[0] == symbol; }
};

// True for file names that need no quotes: letters, digits and _ . / -, ending in .npy.
bool is_bare_file_name(std::string_view word);

class Lexer {
 public:
  explicit Lexer(std::string_view text);  // throws when the text is too long or not ASCII

  const Token& token() const { return token_; }    // the one to be read next
  Token take();                                    // ... is read
  size_t taken_end() const { return taken_end_; }  // where the last one that was read ended
  bool is_followed_by(char symbol) const;          // looks one character past token()
  std::string_view text() const { return text_; }

 private:
  void scan();
  void scan_word();
  void scan_quoted();
  size_t skip_blanks(size_t from) const;

  std::string_view text_;
  size_t position_ = 0;  // behind token_
  size_t taken_end_ = 0;
  Token token_;
};

}  // namespace keyhole
