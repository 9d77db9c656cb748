// cli/bench/cases.cpp
// Takes the text of a case file, gives cases.
#include "cli/bench/cases.h"

#include <fnmatch.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>

#include "base/check.h"
#include "base/int_math.h"
#include "cli/bench/case_texts.h"  // made by cli/CMakeLists.txt from bench/cases/
#include "cli/options.h"

namespace keyhole::bench {
namespace {

int64_t number_from(std::string_view word, const char* column, const std::string& where) {
  const int64_t value = cli::integer_from(word).value_or(0);
  KEYHOLE_CHECK(value > 0, where, ": ", column, " is \"", word,
                "\"; expected a whole number above 0");
  return value;
}

// "16" or, where keys have another number than queries, "16:1".
std::pair<int64_t, int64_t> both_from(const std::string& word, const char* column,
                                      const std::string& where) {
  const size_t colon = word.find(':');
  const int64_t queries = number_from(word.substr(0, colon), column, where);
  if (colon == std::string::npos) return {queries, queries};
  return {queries, number_from(word.substr(colon + 1), column, where)};
}

// Besides what parse() reads: repeated(rows, columns, PATTERN), tiles that are all partial and
// share a few bitmaps. bench/peers/patterns.py has the same word.
Pattern case_pattern(const std::string& text, int64_t q_len, int64_t k_len) {
  std::smatch found;
  if (!std::regex_match(text, found, std::regex(R"(repeated\((\d+), (\d+), (.+)\))"))) {
    return parse(text);
  }
  const int64_t rows = std::stoll(found[1]), columns = std::stoll(found[2]);
  const Shape shape{.q_len = rows, .k_len = columns, .offset = 0};
  const HeadPattern repeated = parse(found[3].str()).for_head(shape);
  std::vector<uint8_t> pairs;
  for (int64_t q = 0; q < rows; ++q) {
    for (int64_t k = 0; k < columns; ++k) pairs.push_back(repeated.allows(q, k));
  }
  std::vector<int64_t> offsets = {0}, keys;
  for (int64_t row = 0; row < ceil_div(q_len, rows); ++row) {
    for (int64_t key = 0; key < ceil_div(k_len, columns); ++key) keys.push_back(key);
    offsets.push_back(int64_t(keys.size()));
  }
  const std::vector<int64_t> same_bitmap(keys.size(), 0);
  return bitmaps(rows, columns, offsets, keys, same_bitmap, pairs);
}

Case parse_line(const std::string& line, Operation operation, const std::string& where) {
  std::string name, batch_word, heads_word, length_word, head_dim, dtype, text;
  std::istringstream words(line);
  words >> name >> batch_word >> heads_word >> length_word >> head_dim >> dtype >> std::ws;
  std::getline(words, text);
  text.erase(text.find_last_not_of(" \t\r") + 1);
  KEYHOLE_CHECK(
      !text.empty(), where, " is \"", line,
      "\"; expected name, batch, heads[:kv_heads], len[:k_len], head_dim, dtype, pattern");
  const int64_t batch = number_from(batch_word, "batch", where);
  const auto [heads, kv_heads] = both_from(heads_word, "heads", where);
  const auto [q_len, k_len] = both_from(length_word, "len", where);
  KEYHOLE_CHECK(heads % kv_heads == 0, where, ": heads is ", heads, ", kv_heads is ", kv_heads,
                "; heads must be a multiple of kv_heads");
  return {.name = name,
          .pattern = case_pattern(text, q_len, k_len),
          .pattern_text = text,
          .q_len = q_len,
          .k_len = k_len,
          .heads = batch * heads,
          .kv_heads = batch * kv_heads,
          .head_dim = number_from(head_dim, "head_dim", where),
          .dtype = cli::dtype_from(dtype),
          .operation = operation,
          .has_nan = name.ends_with("-nan")};
}

bool is_named(const std::string& name, const std::string& only) {
  std::istringstream words(only);
  for (std::string word; std::getline(words, word, ',');) {
    if (fnmatch(word.c_str(), name.c_str(), 0) == 0) return true;
  }
  return false;
}

bool is_usual(const std::string& name) {
  return !name.starts_with("own-") && !name.starts_with("memory-") && !name.starts_with("gather");
}

}  // namespace

std::vector<Case> parse_cases(std::string_view text, Operation operation, const std::string& source,
                              const std::string& only) {
  std::vector<Case> cases;
  std::vector<std::string> names;
  std::istringstream stream{std::string(text)};
  int line_number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++line_number;
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    std::istringstream(line) >> names.emplace_back();
    if (only.empty() ? is_usual(names.back()) : is_named(names.back(), only)) {
      cases.push_back(parse_line(line, operation, say(source, ", line ", line_number)));
    }
  }
  if (!cases.empty()) return cases;
  throw Error(ErrorKind::usage,
              say("bench: no case \"", only, "\"; ", cli::nearest_or_all(only, names)));
}

std::vector<Case> built_in_cases(Operation operation, const Device& device,
                                 const std::string& only) {
  return device.kind == Device::Kind::cuda
             ? parse_cases(k_gpu_cases, operation, "bench/cases/gpu.txt", only)
             : parse_cases(k_cpu_cases, operation, "bench/cases/cpu.txt", only);
}

std::vector<Case> cases_from_file(const std::string& path, Operation operation,
                                  const std::string& only) {
  std::ifstream file(path);
  KEYHOLE_CHECK(file.good(), "bench: cannot read the case file \"", path, "\"");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return parse_cases(text, operation, path, only.empty() ? "*" : only);
}

}  // namespace keyhole::bench
