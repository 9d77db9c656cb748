// cli/options.cpp
// From what the user typed to a shape, a pattern, a dtype or a tile; and to the word that was
// meant.
#include <CLI/CLI.hpp>
#include <charconv>

#include "base/check.h"
#include "cli/common.h"
#include "pattern/did_you_mean.h"
#include "pattern/smallest_shape.h"

namespace keyhole::cli {

void add_integer(CLI::App& app, const std::string& name, std::function<void(int64_t)> set,
                 const std::string& help) {
  const auto read = [name, set = std::move(set)](const std::string& text) {
    int64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, failure] = std::from_chars(text.data(), end, value);
    KEYHOLE_CHECK(failure != std::errc::result_out_of_range, name, ": ", text,
                  " does not fit 64 bits");
    KEYHOLE_CHECK(failure == std::errc{} && stop == end, name, ": \"", text,
                  "\" is not a whole number");
    set(value);
  };
  app.add_option_function<std::string>(name, read, help)->type_name("N");
}

std::optional<int64_t> integer_from(std::string_view text) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  return failure == std::errc{} && stop == end ? std::optional(value) : std::nullopt;
}

void ShapeOptions::add_to(CLI::App& app) {
  add_integer(app, "--len", len, "queries and keys");
  add_integer(app, "--q-len", q_len, "queries, where they differ from the keys");
  add_integer(app, "--k-len", k_len, "keys");
  add_integer(app, "--offset", offset, "position of query 0; default: k-len - q-len");
  add_integer(app, "--heads", heads, "query heads; default: what the pattern needs");
  add_integer(app, "--batch", batch, "batch entries; default: what the pattern needs");
}

Shape ShapeOptions::shape(std::string_view verb, const Pattern& pattern, int64_t longest) const {
  KEYHOLE_CHECK(len || (q_len && k_len), verb,
                is_given() ? ": --q-len and --k-len go together" : " needs a length",
                "; pass --len N, or --q-len N and --k-len N");
  KEYHOLE_CHECK(!(len && q_len && k_len), verb,
                ": --len, --q-len and --k-len were all given; "
                "--len N already stands for both, so leave one out");
  Shape shape = smallest_shape(pattern, 0, 0);
  shape.batch = batch.value_or(shape.batch), shape.heads = heads.value_or(shape.heads);
  shape.offset = offset;
  shape.q_len = q_len.value_or(len.value_or(0)), shape.k_len = k_len.value_or(len.value_or(0));
  constexpr int64_t kMostHeads = 1 << 16;
  const auto check = [&](const char* name, int64_t value, int64_t least, int64_t most) {
    KEYHOLE_CHECK(value >= least && value <= most, verb, ": ", name, " is ", value,
                  "; accepted are ", least, " to ", most);
  };
  check(q_len ? "--q-len" : "--len", shape.q_len, 0, longest);
  check(k_len ? "--k-len" : "--len", shape.k_len, 0, longest);
  check("--heads", shape.heads, 1, kMostHeads);
  check("--batch", shape.batch, 1, kMostHeads);
  if (offset) check("--offset", *offset, -kMostTokens, kMostTokens);
  return shape;
}

Pattern pattern_from(std::string_view verb, const std::string& text) {
  KEYHOLE_CHECK(
      !text.empty(), verb,
      " needs a pattern, such as \"causal & window(256)\"; `keyhole info --patterns` lists them");
  return parse(text, /*allow_files=*/true);
}

namespace {

std::optional<DType> dtype_of_attention(const std::string& text) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    if (text == to_string(dtype)) return dtype;
  }
  return {};
}

}  // namespace

DType dtype_from(const std::string& text) {
  const std::optional<DType> dtype = dtype_of_attention(text);
  KEYHOLE_CHECK(dtype, "unknown dtype \"", text, "\"; accepted are f16, bf16, f32 and f64");
  return *dtype;
}

DType index_dtype_from(const std::string& text) {
  if (text == to_string(DType::e4m3)) return DType::e4m3;
  const std::optional<DType> dtype = dtype_of_attention(text);
  KEYHOLE_CHECK(dtype, "unknown dtype \"", text, "\"; accepted are e4m3, f16, bf16, f32 and f64");
  return *dtype;
}

TileShape tile_from(const std::string& text) {
  if (text.empty() || text == "auto") return {};
  const size_t x = std::min(text.find('x'), text.size() - 1);
  const int64_t q = integer_from(text.substr(0, x)).value_or(0);
  const int64_t k = integer_from(text.substr(x + 1)).value_or(0);
  KEYHOLE_CHECK(q > 0 && k > 0 && q <= 4096 && k <= 4096, "--tile: \"", text,
                "\" is not a tile; write queries x keys, each 1 to 4096, such as 128x128");
  return {int32_t(q), int32_t(k)};
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const std::vector<std::string_view> words(candidates.begin(), candidates.end());
  return std::string(did_you_mean(word, words));
}

std::string nearest_or_all(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string meant = nearest(word, candidates);
  return meant.empty() ? fmt::format("there are {}", fmt::join(candidates, ", "))
                       : say("did you mean \"", meant, "\"?");
}

}  // namespace keyhole::cli
