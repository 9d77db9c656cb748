// tests/pattern/parse_test.cpp
// Text to pattern and back: parse and print are inverse, and parsing means what the operators mean.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "keyhole/error.h"
#include "keyhole/pattern.h"
#include "pattern/catalog.h"

namespace keyhole {
namespace {

TEST(Parse, SamplesPrintAsTheyAreWritten) {
  for (const std::string& text : sample_texts()) {
    const Pattern pattern = parse(text);
    EXPECT_EQ(pattern.text(), text);
    EXPECT_TRUE(parse(pattern.text()) == pattern) << text;
  }
}

TEST(Parse, SpellingsOfOnePattern) {
  const std::pair<const char*, const char*> rows[] = {
      {"dense()", "dense"},
      {" \tcausal\r\n& dense\n", "causal & dense"},
      {"causal&window(2)|sinks(1)", "causal & window(2) | sinks(1)"},
      {"(((causal)))", "causal"},
      {"(causal & dense) | sinks(1)", "causal & dense | sinks(1)"},
      {"causal & (dense & sinks(1))", "causal & dense & sinks(1)"},
      {"causal | (dense | sinks(1)) | (blocks(2))", "causal | dense | sinks(1) | blocks(2)"},
      {"~ ~causal", "~~causal"},
      {"~(causal)", "~causal"},
      {"(~causal) & dense", "~causal & dense"},
      {"window(3, 3)", "window(3)"},
      {"window(left=3)", "window(3)"},
      {"window(right=1, left=3)", "window(3, 1)"},
      {"window(3, right=1)", "window(3, 1)"},
      {"window(inf, inf)", "window(inf)"},
      {"window(9223372036854775807, 0)", "window(inf, 0)"},
      {"window(2305843009213693951, 0)", "window(inf, 0)"},
      {"window(2305843009213693952, 0)", "window(inf, 0)"},
      {"window( left = inf , right = 0 )", "window(inf, 0)"},
      {"sinks(007)", "sinks(7)"},
      {"sinks(-0)", "sinks(0)"},
      {"dilated(count=2, stride=3)", "dilated(3, 2)"},
      {"streaming(sinks=16, window=64)", "streaming(16, 64)"},
      {"random(seed=-7, block=2, count=3)", "random(2, 3, -7)"},
      {"documents(lengths=[3, 4, 5])", "documents(3, 4, 5)"},
      {"documents([3, 4, 5])", "documents(3, 4, 5)"},
      {"tree(parents=[-1, 0])", "tree(-1, 0)"},
      {"global_at(positions=[0,7])", "global_at(0, 7)"},
      {"per_head(patterns=[causal, dense])", "per_head(causal, dense)"},
      {"per_batch([causal|dense])", "per_batch(causal | dense)"},
      {"at([0, 1], [2], causal)", "at(q=[0, 1], k=[2], causal)"},
      {"at(pattern=causal, k=[2], q=[0,1])", "at(q=[0, 1], k=[2], causal)"},
      {"at([0, 1], k=[2], causal)", "at(q=[0, 1], k=[2], causal)"},
      {"packed(q_lengths=[2,0], k_lengths=[1, 3], causal&window(1))",
       "packed([2, 0], [1, 3], causal & window(1))"},
      // Arrays stay as they were written, blanks apart.
      {"csr( [0,1],[0] )", "csr([0, 1], [0])"},
      {"csr(keys=[0],offsets=[0,1])", "csr(keys=[0], offsets=[0, 1])"},
      {"mask(rows=[[1,0],[1,1]])", "mask(rows=[[1, 0], [1, 1]])"},
      {"mask([[],[]])", "mask([[], []])"},
      {"tiles(2,tile_k=3,offsets=[0],keys=[])", "tiles(2, tile_k=3, offsets=[0], keys=[])"},
  };
  for (const auto& [text, canonical] : rows) {
    const Pattern pattern = parse(text);
    EXPECT_EQ(pattern.text(), canonical) << text;
    EXPECT_TRUE(parse(canonical) == pattern) << text;
  }
}

TEST(Parse, DifferentPatternsStayDifferent) {
  const std::pair<const char*, const char*> rows[] = {
      {"causal & window(2) | sinks(1)", "causal & (window(2) | sinks(1))"},
      {"~causal & dense", "~(causal & dense)"},
      {"causal & dense", "causal | dense"},
      {"window(1, 2)", "window(2, 1)"},
      {"per_head(causal)", "per_batch(causal)"},
      {"documents(3, 4)", "documents(4, 3)"},
      {"packed([3], [4], causal)", "packed([4], [3], causal)"},
      {"packed([3], [4], causal)", "packed([3], [4], dense)"},
      {"causal", "~~causal"},
  };
  for (const auto& [a, b] : rows) EXPECT_FALSE(parse(a) == parse(b)) << a << "  " << b;
}

// Longer than leaves print them: then the text is kept.
TEST(Parse, LongListsPrintInFull) {
  std::string list = "1";
  for (int i = 1; i < 20000; ++i) list += ",1";
  for (const std::string& text : {"documents(" + list + ")", "global_at(" + list + ")",
                                  "documents(lengths=[" + list + "])"}) {
    const Pattern pattern = parse(text);
    const std::string printed = pattern.text();
    EXPECT_EQ(std::ranges::count(printed, '1'), 20000);
    EXPECT_TRUE(parse(printed) == pattern);  // longer than the text, by its blanks
  }
}

// A pattern and one of the many ways to write it, built side by side.
struct Drawn {
  std::string text;
  Pattern pattern;
  int binding;  // 0: |   1: &   2: everything else
};

std::string blanks(Random& random) {
  return random.pick<std::string>({"", "", " ", " ", "  ", "\n", "\t "});
}

std::string inside(Random& random, const Drawn& drawn, int least_binding) {
  if (drawn.binding >= least_binding && !random.chance(15)) return drawn.text;
  return "(" + blanks(random) + drawn.text + blanks(random) + ")";
}

int64_t draw_number(Random& random, const Parameter& parameter) {
  const int64_t least = std::max<int64_t>(parameter.least, -3);
  if (parameter.may_be_unbounded && random.chance(10)) return kUnbounded;
  if (random.chance(5)) return parameter.most / 1000000;
  return least + random.below(random.pick({2, 10, 100}));
}

std::string text_of(int64_t number) {
  return number == kUnbounded ? "inf" : std::to_string(number);
}

std::string join(Random& random, const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) {
    joined += joined.empty() ? text : blanks(random) + "," + blanks(random) + text;
  }
  return joined;
}

Drawn draw(Random& random, int depth);

// Lists that the leaves accept: a parent comes before its children.
std::vector<int64_t> draw_list(Random& random, const CatalogEntry& entry,
                               const Parameter& parameter) {
  std::vector<int64_t> list;
  for (int64_t i = random.between(0, 5); i >= 0; --i) {
    const auto size = int64_t(list.size());
    list.push_back(entry.name == "tree" ? random.between(-1, size - 1)
                                        : std::max<int64_t>(parameter.least, random.below(30)));
  }
  return list;
}

Drawn draw_call(Random& random, const CatalogEntry& entry, int depth) {
  std::vector<Value> values;
  std::vector<std::string> texts;
  const bool has_names = random.chance(30);
  for (const Parameter& parameter : entry.parameters) {
    if (parameter.is_optional && random.chance(50)) {
      values.emplace_back();
      continue;
    }
    std::vector<std::string> written;
    bool is_list = true;
    if (parameter.kind == ParameterKind::integer) {
      const int64_t number = draw_number(random, parameter);
      written = {text_of(number)};
      values.emplace_back(number);
      is_list = false;
    } else if (parameter.kind == ParameterKind::pattern) {
      const Drawn child = draw(random, depth + 1);
      written = {child.text};
      values.emplace_back(child.pattern);
      is_list = false;
    } else if (parameter.kind == ParameterKind::patterns) {
      std::vector<Pattern> patterns;
      for (int64_t i = random.between(0, 2); i >= 0; --i) {
        const Drawn child = draw(random, depth + 1);
        patterns.push_back(child.pattern);
        written.push_back(child.text);
      }
      values.emplace_back(patterns);
    } else {
      const std::vector<int64_t> list = draw_list(random, entry, parameter);
      for (const int64_t number : list) written.push_back(text_of(number));
      values.emplace_back(list);
    }
    const bool takes_rest =
        parameter.kind == ParameterKind::integers || parameter.kind == ParameterKind::patterns;
    const bool has_brackets = is_list && (has_names || !takes_rest || random.chance(20));
    std::string text = join(random, written);
    if (has_brackets) text = "[" + blanks(random) + text + blanks(random) + "]";
    if (has_names)
      text = std::string(parameter.name) + blanks(random) + "=" + blanks(random) + text;
    texts.push_back(text);
  }
  if (has_names && random.chance(50) && !texts.empty()) std::swap(texts.front(), texts.back());
  std::string text(entry.name);
  if (!texts.empty() || random.chance(30)) {
    text += blanks(random) + "(" + blanks(random) + join(random, texts) + blanks(random) + ")";
  }
  return {text, entry.make(values), 2};
}

Drawn draw(Random& random, int depth) {
  if (depth >= 5 || random.chance(35)) {
    while (true) {
      const CatalogEntry& entry = catalog()[size_t(random.below(int64_t(catalog().size())))];
      if (entry.prints_as_written) continue;  // built in C++, it prints a hash
      const bool has_children =
          !entry.parameters.empty() && (entry.parameters.back().kind == ParameterKind::pattern ||
                                        entry.parameters.back().kind == ParameterKind::patterns);
      if (depth >= 5 && has_children) continue;
      try {
        return draw_call(random, entry, depth);
      } catch (const Error& error) {  // numbers that do not go together: an even bigbird window
        if (error.kind() != ErrorKind::usage) throw;
      }
    }
  }
  const Drawn a = draw(random, depth + 1);
  if (random.chance(25)) return {"~" + blanks(random) + inside(random, a, 2), ~a.pattern, 2};
  const Drawn b = draw(random, depth + 1);
  const int binding = random.chance(50) ? 1 : 0;
  const std::string text = inside(random, a, binding) + blanks(random) + (binding ? "&" : "|") +
                           blanks(random) + inside(random, b, binding);
  return {text, binding ? a.pattern & b.pattern : a.pattern | b.pattern, binding};
}

TEST(Parse, RandomTreesMeanWhatTheOperatorsMean) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const Drawn drawn = draw(random, 0);
    const Pattern parsed = parse(drawn.text);
    ASSERT_TRUE(parsed == drawn.pattern)
        << "seed " << seed << "\n  " << drawn.text << "\n  " << parsed << "\n  " << drawn.pattern;
    const std::string printed = parsed.text();
    const Pattern again = parse(printed);
    ASSERT_TRUE(again == parsed) << "seed " << seed << "\n  " << printed << "\n  " << again;
    ASSERT_EQ(again.text(), printed) << "seed " << seed;
  }
}

}  // namespace
}  // namespace keyhole
