// src/pattern/arguments.cpp
// From the arguments as written to the pattern a catalog entry makes of them.
#include "pattern/arguments.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "pattern/array_file.h"
#include "pattern/did_you_mean.h"
#include "pattern/leaves/array_text.h"
#include "pattern/node.h"

namespace keyhole {

namespace {

using List = std::vector<int64_t>;

std::string_view describe(ParameterKind kind) {
  switch (kind) {
    case ParameterKind::integer:
      return "a number";
    case ParameterKind::integers:
      return "numbers, a list or a file";
    case ParameterKind::array:
      return "a list or a file";
    case ParameterKind::rows:
      return "rows of 0 and 1, as in [[1, 0], [1, 1]], or a file";
    case ParameterKind::pattern:
      return "a pattern";
    case ParameterKind::patterns:
      return "patterns";
  }
  return "";
}

std::string_view describe(const Argument& argument) {
  constexpr std::string_view kinds[] = {
      "a number", "inf", "a list", "a list of lists", "a file", "a pattern", "a list of patterns"};
  return kinds[argument.value.index()];
}

struct Printer {
  std::string operator()(int64_t number) const { return std::to_string(number); }
  std::string operator()(Infinity) const { return "inf"; }
  std::string operator()(const Argument::File& file) const {
    return is_bare_file_name(file.name) ? file.name : '"' + file.name + '"';
  }
  std::string operator()(const Pattern& pattern) const { return pattern.text(); }
  template <class Entry>
  std::string operator()(const std::vector<Entry>& entries) const {
    std::string text;
    for (const Entry& entry : entries) text += (text.empty() ? "[" : ", ") + (*this)(entry);
    return text.empty() ? "[]" : text + "]";
  }
};

// The arguments once more, with blanks as the printer sets them.
std::string text_of(const Argument& argument) {
  const std::string value = std::visit(Printer{}, argument.value);
  return argument.name.empty() ? value : std::string(argument.name) + "=" + value;
}

std::string text_of(const Call& call) {
  std::string text(call.entry->name);
  for (const Argument& argument : call.arguments) {
    text += (&argument == call.arguments.data() ? "(" : ", ") + text_of(argument);
  }
  return call.arguments.empty() ? text : text + ")";
}

// Fills the values of one call, argument by argument.
class Binder {
 public:
  Binder(std::string_view text, const Call& call, bool allow_files)
      : text_(text), call_(call), allow_files_(allow_files), values_(parameters().size()) {}

  std::vector<Value> bind() {
    if (parameters().empty() && !call_.arguments.empty()) {
      fail_at(text_, call_.range, signature() + " takes no arguments");
    }
    bool has_names = false;
    for (const Argument& argument : call_.arguments) {
      // at(q=[0, 2], k=[1, 0], causal) reads better than any other order.
      const bool is_last_pattern = has_names && std::holds_alternative<Pattern>(argument.value) &&
                                   parameters().back().kind == ParameterKind::pattern;
      if (is_last_pattern) place_ = parameters().size() - 1;
      if (argument.name.empty() && has_names && !is_last_pattern) {
        fail_at(text_, argument.range,
                "in " + signature() + ", arguments by place come before those by name");
      }
      has_names = has_names || !argument.name.empty();
      argument.name.empty() ? bind_by_place(argument) : bind_by_name(argument);
    }
    for (size_t i = 0; i < values_.size(); ++i) {
      if (parameters()[i].is_optional || is_given(i)) continue;
      fail_at(text_, call_.range, say(signature(), " needs ", quoted(parameters()[i].name)));
    }
    for (const Value& value : values_) {
      const auto* list = std::get_if<List>(&value);
      has_long_lists_ |= list != nullptr && list->size() > kLongestPrintedList;
    }
    return std::move(values_);
  }

  // Such a pattern would print as a size and a hash, which cannot be parsed again.
  bool has_files_or_long_lists() const { return has_files_ || has_long_lists_; }

 private:
  const std::vector<Parameter>& parameters() const { return call_.entry->parameters; }
  std::string signature() const { return signature_of(*call_.entry); }  // for errors
  bool is_given(size_t i) const { return values_[i].index() != 0; }
  bool takes_rest(size_t i) const {
    const ParameterKind kind = parameters()[i].kind;
    return kind == ParameterKind::integers || kind == ParameterKind::patterns;
  }

  void bind_by_place(const Argument& argument) {
    const bool is_free = place_ < values_.size() && (takes_rest(place_) || !is_given(place_));
    if (!is_free) fail_at(text_, argument.range, "too many arguments: " + signature());
    if (is_given(place_)) return append(place_, argument);
    values_[place_] = value_of(parameters()[place_], argument);
    // A file is the whole list; what follows it is one argument too many.
    if (!takes_rest(place_) || std::holds_alternative<Argument::File>(argument.value)) ++place_;
  }

  void bind_by_name(const Argument& argument) {
    const auto found =
        std::find_if(parameters().begin(), parameters().end(), [&](const Parameter& parameter) {
          return argument.name == parameter.name ||
                 (!parameter.file_name.empty() && argument.name == parameter.file_name);
        });
    if (found == parameters().end()) fail_unknown(argument);
    const auto i = size_t(found - parameters().begin());
    if (is_given(i)) {
      fail_at(text_, argument.name_range,
              say(quoted(argument.name), " of ", signature(), " is given twice"));
    }
    if (argument.name == found->file_name &&
        !std::holds_alternative<Argument::File>(argument.value)) {
      fail_at(text_, argument.range,
              say(quoted(argument.name), " of ", signature(), " takes a file name, found ",
                  describe(argument)));
    }
    values_[i] = value_of(*found, argument);
  }

  [[noreturn]] void fail_unknown(const Argument& argument) const {
    std::vector<std::string_view> names;
    for (const Parameter& parameter : parameters()) {
      names.push_back(parameter.name);
      if (!parameter.file_name.empty()) names.push_back(parameter.file_name);
    }
    const std::string_view meant = did_you_mean(argument.name, names);
    fail_at(text_, argument.name_range,
            say(signature(), " has no argument ", quoted(argument.name),
                meant.empty() ? "" : say("; did you mean ", quoted(meant), "?")));
  }

  [[noreturn]] void fail_value(const Parameter& parameter, const Argument& argument,
                               const std::string& problem) const {
    fail_at(text_, argument.range, say(quoted(parameter.name), " of ", signature(), problem));
  }

  Value value_of(const Parameter& parameter, const Argument& argument) {
    if (const auto* file = std::get_if<Argument::File>(&argument.value)) {
      return value_from_file(parameter, argument, file->name);
    }
    const auto* list = std::get_if<List>(&argument.value);
    const auto* patterns = std::get_if<std::vector<Pattern>>(&argument.value);
    switch (parameter.kind) {
      case ParameterKind::integer:
        return number_of(parameter, argument);
      case ParameterKind::integers:
        if (list == nullptr) return List{number_of(parameter, argument)};
        [[fallthrough]];
      case ParameterKind::array:
        if (list == nullptr) break;
        check_entries(parameter, argument, *list);
        return *list;
      case ParameterKind::rows:
        if (list != nullptr && list->empty()) return MaskRows{};
        if (const auto* rows = std::get_if<Argument::Rows>(&argument.value)) {
          return rows_of(parameter, argument, *rows);
        }
        break;
      case ParameterKind::pattern:
        if (const auto* pattern = std::get_if<Pattern>(&argument.value)) return *pattern;
        break;
      case ParameterKind::patterns:
        if (const auto* pattern = std::get_if<Pattern>(&argument.value)) {
          return std::vector<Pattern>{*pattern};
        }
        if (patterns != nullptr) return *patterns;
        break;
    }
    fail_kind(parameter, argument);
  }

  [[noreturn]] void fail_kind(const Parameter& parameter, const Argument& argument) const {
    fail_value(parameter, argument,
               say(" takes ", describe(parameter.kind), parameter.may_be_unbounded ? " or inf" : "",
                   ", found ", describe(argument)));
  }

  int64_t number_of(const Parameter& parameter, const Argument& argument) const {
    if (std::holds_alternative<Infinity>(argument.value)) {
      if (!parameter.may_be_unbounded) fail_value(parameter, argument, " cannot be inf");
      return kUnbounded;
    }
    const auto* number = std::get_if<int64_t>(&argument.value);
    if (number == nullptr) fail_kind(parameter, argument);
    if (parameter.may_be_unbounded && *number > parameter.most) return kUnbounded;
    check_number(parameter, argument, *number, "");
    return *number;
  }

  void check_number(const Parameter& parameter, const Argument& argument, int64_t number,
                    const std::string& place) const {
    if (number < parameter.least) {
      fail_value(parameter, argument,
                 say(" is at least ", parameter.least, ", found ", number, place));
    }
    if (number > parameter.most) {
      fail_value(parameter, argument,
                 say(" is at most ", parameter.most, ", found ", number, place));
    }
  }

  void check_entries(const Parameter& parameter, const Argument& argument, const List& list) const {
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i] >= parameter.least && list[i] <= parameter.most) continue;
      check_number(parameter, argument, list[i], say(" (entry ", i, ")"));
    }
  }

  MaskRows rows_of(const Parameter& parameter, const Argument& argument,
                   const Argument::Rows& rows) const {
    MaskRows mask{.allowed = {}, .q_len = int64_t(rows.size()), .k_len = int64_t(rows[0].size())};
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].size() != rows[0].size()) {
        fail_value(parameter, argument,
                   say(" has rows of ", rows[0].size(), " and of ", rows[i].size(),
                       " entries; all must have the same number"));
      }
      for (const int64_t entry : rows[i]) {
        const bool is_bit = entry == 0 || entry == 1;
        if (!is_bit) check_number(parameter, argument, entry, say(" (row ", i, ")"));
        mask.allowed.push_back(uint8_t(entry));
      }
    }
    return mask;
  }

  // documents(3, 4) one by one: the first made the list, the others join it.
  void append(size_t i, const Argument& argument) {
    Value more = value_of(parameters()[i], argument);
    if (std::holds_alternative<Argument::File>(argument.value)) {
      fail_at(text_, argument.range, "a file holds the whole list: " + signature());
    }
    if (auto* list = std::get_if<List>(&values_[i])) {
      const List& tail = std::get<List>(more);
      list->insert(list->end(), tail.begin(), tail.end());
    } else {
      auto& patterns = std::get<std::vector<Pattern>>(values_[i]);
      const auto& tail = std::get<std::vector<Pattern>>(more);
      patterns.insert(patterns.end(), tail.begin(), tail.end());
    }
  }

  Value value_from_file(const Parameter& parameter, const Argument& argument,
                        const std::string& name) {
    const bool is_matrix = parameter.kind == ParameterKind::rows;
    if (!is_matrix && parameter.kind != ParameterKind::array &&
        parameter.kind != ParameterKind::integers) {
      fail_kind(parameter, argument);
    }
    if (!allow_files_) {
      fail_at(text_, argument.range,
              "reading files is not allowed here, because the text may be untrusted; "
              "parse(text, /*allow_files=*/true) reads them");
    }
    has_files_ = true;
    try {
      if (is_matrix) return read_mask(name);
      List list = read_integers(name, parameter.max_dims);
      check_entries(parameter, argument, list);
      return list;
    } catch (const Error& error) {
      const bool has_caret = std::strchr(error.what(), '\n') != nullptr;
      if (error.kind() != ErrorKind::usage || has_caret) throw;
      fail_at(text_, argument.range, error.what());
    }
  }

  std::string_view text_;
  const Call& call_;
  bool allow_files_, has_files_ = false, has_long_lists_ = false;
  std::vector<Value> values_;
  size_t place_ = 0;  // the parameter that the next argument without a name goes to
};

}  // namespace

Pattern make_pattern(std::string_view text, Call call, bool allow_files) {
  Binder binder(text, call, allow_files);
  std::vector<Value> values = binder.bind();
  try {
    const Pattern pattern = call.entry->make(values);
    const bool keeps_text = call.entry->prints_as_written || binder.has_files_or_long_lists();
    return keeps_text ? Pattern(make_named(text_of(call), pattern.node())) : pattern;
  } catch (const Error& error) {  // what the numbers mean together is the pattern's own business
    if (error.kind() != ErrorKind::usage) throw;
    fail_at(text, call.range, error.what());
  }
}

}  // namespace keyhole
