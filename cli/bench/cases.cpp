// cli/bench/cases.cpp
// Takes the text of a case file, gives cases.
#include "cli/bench/cases.h"

#include <charconv>
#include <fstream>
#include <sstream>

#include "base/check.h"
#include "cli/bench/case_texts.h"  // made by cli/bench/bench.cmake from bench/cases/
#include "cli/common.h"

namespace keyhole::bench {
namespace {

constexpr size_t kColumnsAfterPattern = 5;  // len heads kv_heads head_dim dtype

int64_t number_from(const std::string& word, const char* column, const std::string& where) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  KEYHOLE_CHECK(error == std::errc{} && end == word.data() + word.size() && value > 0, where, ": ",
                column, " is \"", word, "\"; expected a whole number above 0");
  return value;
}

// A pattern may hold blanks, so it is whatever stands between the name and the last five words.
Case parse_line(const std::string& line, Operation operation, const std::string& where) {
  std::vector<std::string> words;
  std::istringstream stream(line);
  for (std::string word; stream >> word;) words.push_back(word);
  KEYHOLE_CHECK(words.size() >= 2 + kColumnsAfterPattern, where, ": got ", words.size(),
                " words; expected name, pattern, len, heads, kv_heads, head_dim, dtype");
  const size_t after = words.size() - kColumnsAfterPattern;
  std::string text;
  for (size_t i = 1; i < after; ++i) text += (i > 1 ? " " : "") + words[i];

  const int64_t length = number_from(words[after], "len", where);
  Case c{.name = words[0],
         .pattern = parse(text),
         .pattern_text = text,
         .q_len = length,
         .k_len = length,
         .heads = number_from(words[after + 1], "heads", where),
         .kv_heads = number_from(words[after + 2], "kv_heads", where),
         .head_dim = number_from(words[after + 3], "head_dim", where),
         .dtype = cli::dtype_from(words[after + 4]),
         .operation = operation};
  KEYHOLE_CHECK(c.heads % c.kv_heads == 0, where, ": heads is ", c.heads, ", kv_heads is ",
                c.kv_heads, "; heads must be a multiple of kv_heads");
  return c;
}

}  // namespace

std::vector<Case> parse_cases(std::string_view text, Operation operation,
                              const std::string& source) {
  std::vector<Case> cases;
  std::istringstream stream{std::string(text)};
  int line_number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++line_number;
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    cases.push_back(parse_line(line, operation, say(source, ", line ", line_number)));
  }
  return cases;
}

std::vector<Case> built_in_cases(Operation operation, const Device& device) {
  if (device.kind == Device::Kind::cuda)
    return parse_cases(k_gpu_cases, operation, "bench/cases/gpu.txt");
  return operation == Operation::forward
             ? parse_cases(k_forward_cases, operation, "bench/cases/forward.txt")
             : parse_cases(k_backward_cases, operation, "bench/cases/backward.txt");
}

std::vector<Case> cases_from_file(const std::string& path, Operation operation) {
  std::ifstream file(path);
  KEYHOLE_CHECK(file.good(), "bench: cannot read the case file \"", path, "\"");
  std::ostringstream text;
  text << file.rdbuf();
  return parse_cases(text.str(), operation, path);
}

Case find_case(const std::vector<Case>& cases, const std::string& name) {
  std::vector<std::string> names;
  for (const Case& c : cases) {
    if (c.name == name) return c;
    names.push_back(c.name);
  }
  std::string list;
  for (const std::string& known : names) list += (list.empty() ? "" : ", ") + known;
  const std::string meant = cli::nearest(name, names);
  throw Error(ErrorKind::usage,
              meant.empty() ? say("bench: no case \"", name, "\"; there are ", list)
                            : say("bench: no case \"", name, "\"; did you mean \"", meant, "\"?"));
}

}  // namespace keyhole::bench
