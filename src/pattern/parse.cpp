// src/pattern/parse.cpp
// Text to Pattern by recursive descent; the grammar, one function a line:
//
//   expression := term ('|' term)*
//   term       := factor ('&' factor)*
//   factor     := '~' factor | '(' expression ')' | name [ '(' [argument (',' argument)*] ')' ]
//   argument   := [name '='] ( number | inf | '[' ... ']' | file | expression )
//
// Text may be untrusted: length, nesting and size are bounded, and time is linear in them.
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "pattern/arguments.h"
#include "pattern/catalog.h"
#include "pattern/did_you_mean.h"
#include "pattern/node.h"
#include "pattern/tokens.h"

namespace keyhole {

namespace {

constexpr int kMaxDepth = 128;
constexpr int kMaxNodes = 4096;

// In halves: if `join` copies the operands of both sides, n of them cost n log n copies, not n * n.
NodePtr join_all(std::span<const NodePtr> nodes, NodePtr (*join)(NodePtr, NodePtr)) {
  if (nodes.size() == 1) return nodes[0];
  const size_t half = nodes.size() / 2;
  return join(join_all(nodes.first(half), join), join_all(nodes.subspan(half), join));
}

class Parser {
 public:
  Parser(std::string_view text, bool allow_files) : lexer_(text), allow_files_(allow_files) {}

  Pattern parse() {
    NodePtr node = expression();
    if (token().kind != Token::Kind::end) fail_expected("\"&\", \"|\" or the end of the text");
    return Pattern(std::move(node));
  }

 private:
  const Token& token() const { return lexer_.token(); }

  NodePtr expression() {
    std::vector<NodePtr> terms{term()};
    while (take_operator('|')) terms.push_back(term());
    return join_all(terms, make_or);
  }

  NodePtr term() {
    std::vector<NodePtr> factors{factor()};
    while (take_operator('&')) factors.push_back(factor());
    return join_all(factors, make_and);
  }

  NodePtr factor() {
    if (token().is('~')) {
      const Deeper deeper(*this);
      take_operator('~');
      return make_not(factor());
    }
    if (token().is('(')) {
      const Deeper deeper(*this);
      const Token opening = lexer_.take();
      NodePtr node = expression();
      close(opening, "\"&\", \"|\" or \")\"");
      return node;
    }
    if (token().kind != Token::Kind::name) fail_expected("a pattern");
    return call();
  }

  NodePtr call() {
    count_node();
    const Token name = lexer_.take();
    Call call{.entry = &entry_of(name), .range = name.range, .arguments = {}};
    if (token().is('(')) {
      const Deeper deeper(*this);
      const Token opening = lexer_.take();
      if (!token().is(')')) call.arguments = arguments();
      const bool may_go_on =
          !call.arguments.empty() && std::holds_alternative<Pattern>(call.arguments.back().value);
      close(opening, may_go_on ? "\"&\", \"|\", \",\" or \")\"" : "\",\" or \")\"");
      call.range.end = lexer_.taken_end();
    }
    return make_pattern(lexer_.text(), std::move(call), allow_files_).node();
  }

  const CatalogEntry& entry_of(const Token& name) const {
    if (const CatalogEntry* entry = find_in_catalog(name.text)) return *entry;
    if (name.text == "lambda") {
      fail_at(lexer_.text(), name.range, "a lambda is a C++ function and has no text form");
    }
    std::vector<std::string_view> names;
    std::string all;
    for (const CatalogEntry& entry : catalog()) {
      all += (names.empty() ? "" : ", ") + std::string(entry.name);
      names.push_back(entry.name);
    }
    const std::string_view meant = did_you_mean(name.text, names);
    fail_at(lexer_.text(), name.range,
            say("unknown pattern ", quoted(name.text),
                meant.empty() ? "; there are " + all : say("; did you mean ", quoted(meant), "?")));
  }

  std::vector<Argument> arguments() {
    std::vector<Argument> arguments;
    do {
      Argument argument;
      if (token().kind == Token::Kind::name && lexer_.is_followed_by('=')) {
        const Token name = lexer_.take();
        lexer_.take();  // the =
        argument.name = name.text;
        argument.name_range = name.range;
      }
      const size_t begin = token().range.begin;
      argument.value = value();
      argument.range = {begin, lexer_.taken_end()};
      arguments.push_back(std::move(argument));
    } while (take_symbol(','));
    return arguments;
  }

  Argument::Value value() {
    if (token().kind == Token::Kind::integer) return lexer_.take().number;
    if (token().kind == Token::Kind::file) return Argument::File{std::string(lexer_.take().text)};
    if (token().is('[')) return list();
    if (token().text == "inf" && !lexer_.is_followed_by('(')) {
      lexer_.take();
      return Infinity{};
    }
    if (token().kind == Token::Kind::name || token().is('~') || token().is('(')) {
      return Pattern(expression());
    }
    fail_expected("an argument: a number, inf, a list, a file or a pattern");
  }

  // The first entry says what the others are.
  Argument::Value list() {
    const Token opening = lexer_.take();
    if (take_symbol(']')) return std::vector<int64_t>{};
    if (token().kind == Token::Kind::integer) {
      return rest_of_list<int64_t>(opening, [this] { return number(); });
    }
    if (token().is('[')) {
      return rest_of_list<std::vector<int64_t>>(opening, [this] { return row(); });
    }
    return rest_of_list<Pattern>(opening, [this] { return Pattern(expression()); });
  }

  std::vector<int64_t> row() {
    if (!token().is('[')) fail_expected("\"[\"");
    const Token opening = lexer_.take();
    if (take_symbol(']')) return {};
    return rest_of_list<int64_t>(opening, [this] { return number(); });
  }

  template <class Entry, class ReadEntry>
  std::vector<Entry> rest_of_list(const Token& opening, const ReadEntry& read_entry) {
    std::vector<Entry> entries;
    do {
      entries.push_back(read_entry());
    } while (take_symbol(','));
    close(opening, "\",\" or \"]\"");
    return entries;
  }

  int64_t number() {
    if (token().kind != Token::Kind::integer) fail_expected("a number");
    return lexer_.take().number;
  }

  bool take_symbol(char symbol) {
    if (!token().is(symbol)) return false;
    lexer_.take();
    return true;
  }

  bool take_operator(char symbol) {
    if (!token().is(symbol)) return false;
    count_node();
    lexer_.take();
    return true;
  }

  // Takes the bracket that closes `opening`.
  void close(const Token& opening, const char* expected) {
    if (take_symbol(opening.is('(') ? ')' : ']')) return;
    fail_expected(
        say(expected, " for the ", quoted(opening.text), " at column ", opening.range.begin + 1));
  }

  [[noreturn]] void fail_expected(const std::string& expected) const {
    const bool is_end = token().kind == Token::Kind::end;
    const size_t last = lexer_.taken_end();  // blanks at the end are no place to point at
    fail_at(lexer_.text(), is_end ? TextRange{last, last} : token().range,
            say("expected ", expected, ", found ",
                is_end ? "the end of the text" : quoted(token().text)));
  }

  void count_node() {
    if (++nodes_ <= kMaxNodes) return;
    fail_at(lexer_.text(), token().range,
            say("the pattern has more than ", kMaxNodes, " names and operators"));
  }

  // One level of nesting, for as long as it lives; keeps the recursion bounded.
  struct Deeper {
    explicit Deeper(Parser& p) : parser(p) {
      if (++parser.depth_ <= kMaxDepth) return;
      fail_at(parser.lexer_.text(), parser.token().range,
              say("the pattern is nested more than ", kMaxDepth, " levels deep"));
    }
    ~Deeper() { --parser.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    Parser& parser;
  };

  Lexer lexer_;
  bool allow_files_;
  int depth_ = 0, nodes_ = 0;
};

}  // namespace

Pattern parse(std::string_view text, bool allow_files) { return Parser(text, allow_files).parse(); }

}  // namespace keyhole
