// tests/pattern/catalog_test.cpp
// Every row of the catalog is complete, parses its own example and holds what its definition says.
#include "pattern/catalog.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "keyhole/error.h"
#include "pattern/did_you_mean.h"

namespace keyhole {
namespace {

TEST(Catalog, RowsAreComplete) {
  std::set<std::string_view> names;
  for (const CatalogEntry& entry : catalog()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name << " is listed twice";
    EXPECT_EQ(find_in_catalog(entry.name), &entry);
    for (const std::string_view field : {entry.name, entry.definition, entry.meaning, entry.example,
                                         entry.complexity, entry.reach}) {
      EXPECT_FALSE(field.empty()) << entry.name;
    }
    EXPECT_TRUE(entry.meaning.ends_with('.')) << entry.name;
    EXPECT_TRUE(entry.example.starts_with(entry.name)) << entry.name;
    EXPECT_NE(entry.make, nullptr) << entry.name;
  }
  EXPECT_EQ(names.size(), 30u);
  EXPECT_EQ(find_in_catalog("windw"), nullptr);
  EXPECT_EQ(find_in_catalog(""), nullptr);
}

TEST(Catalog, ParametersAreInAnOrderThatPlacesCanFollow) {
  for (const CatalogEntry& entry : catalog()) {
    std::set<std::string_view> names;
    bool has_optional = false;
    for (const Parameter& parameter : entry.parameters) {
      EXPECT_TRUE(names.insert(parameter.name).second) << entry.name;
      EXPECT_LE(parameter.least, parameter.most) << entry.name;
      EXPECT_FALSE(has_optional && !parameter.is_optional)
          << entry.name << ": after an optional one";
      has_optional = has_optional || parameter.is_optional;
      const bool takes_rest =
          parameter.kind == ParameterKind::integers || parameter.kind == ParameterKind::patterns;
      EXPECT_TRUE(!takes_rest || &parameter == &entry.parameters.back()) << entry.name;
    }
  }
}

TEST(Catalog, ExamplesParsePrintAndCanBeDrawn) {
  for (const CatalogEntry& entry : catalog()) {
    const Pattern pattern = parse(entry.example);
    EXPECT_EQ(pattern.text(), entry.example);
    EXPECT_TRUE(parse(pattern.text()) == pattern) << entry.name;
    const std::string drawn = picture(pattern, entry.example_q_len, entry.example_k_len);
    EXPECT_EQ(drawn.size(), size_t(entry.example_q_len * entry.example_k_len * 2)) << entry.name;
    EXPECT_NE(drawn.find('#'), std::string::npos) << entry.name << " shows nothing";
    EXPECT_EQ(drawn.find('.') == std::string::npos, entry.name == "dense") << entry.name;
  }
}

// The definitions once more, as a reader of the documentation would write them down.
TEST(Catalog, ExamplesHoldWhatTheDefinitionSays) {
  const auto is_power = [](int64_t n) { return n > 0 && (n & (n - 1)) == 0; };
  const auto is_near = [](int64_t q, int64_t k, int64_t size, int64_t radius) {  // NATTEN's window
    const int64_t begin = std::clamp<int64_t>(q - radius, 0, size - (2 * radius + 1));
    return begin <= k && k <= begin + 2 * radius;
  };
  const auto document = [](int64_t k) { return k < 5 ? 0 : k < 8 ? 1 : 2; };
  const int64_t parents[] = {-1, 0, 0, 1, 1, 2, 2, 3};
  const auto is_ancestor = [&](int64_t k, int64_t q) {
    if (q >= 8 || k >= 8) return false;
    while (q != k && q >= 0) q = parents[q];
    return q == k;
  };
  using Rule = std::function<bool(int64_t q, int64_t k)>;
  const std::map<std::string_view, Rule> rules = {
      {"dense", [](auto, auto) { return true; }},
      {"causal", [](auto q, auto k) { return k <= q; }},
      {"window(3, 1)", [](auto q, auto k) { return k - q >= -3 && k - q <= 1; }},
      {"sinks(2)", [](auto, auto k) { return k < 2; }},
      {"blocks(4)", [](auto q, auto k) { return q / 4 == k / 4; }},
      {"prefix(5)", [](auto q, auto k) { return k <= q || k < 5; }},
      {"global(2)", [](auto q, auto k) { return q < 2 || k < 2; }},
      {"global_at(0, 7)", [](auto q, auto k) { return q == 0 || q == 7 || k == 0 || k == 7; }},
      {"documents(5, 3, 8)", [&](auto q, auto k) { return document(q) == document(k); }},
      {"tree(-1, 0, 0, 1, 1, 2, 2, 3)", [&](auto q, auto k) { return is_ancestor(k, q); }},
      {"dilated(3)", [](auto q, auto k) { return (q - k) % 3 == 0; }},
      {"strided(4)", [](auto q, auto k) { return k <= q && (q - k < 4 || (q - k) % 4 == 0); }},
      {"fixed(4, 1)", [](auto q, auto k) { return k <= q && (q / 4 == k / 4 || k % 4 == 3); }},
      {"exponential", [&](auto q, auto k) { return q == k || is_power(std::abs(q - k)); }},
      {"grid(4, 4, 1, 1)",
       [](auto q, auto k) { return std::abs(q / 4 - k / 4) <= 1 && std::abs(q % 4 - k % 4) <= 1; }},
      {"neighborhood(4, 4, 1, 1)",
       [&](auto q, auto k) { return is_near(q / 4, k / 4, 4, 1) && is_near(q % 4, k % 4, 4, 1); }},
      {"volume(2, 2, 4, 1, 0, 1)",
       [](auto q, auto k) { return q / 4 % 2 == k / 4 % 2 && std::abs(q % 4 - k % 4) <= 1; }},
      {"volume_neighborhood(4, 2, 2, 1, 0, 1)",
       [&](auto q, auto k) { return is_near(q / 4, k / 4, 4, 1) && q / 2 % 2 == k / 2 % 2; }},
      {"bitmaps(4, 4, [0, 1, 3, 4], [0, 0, 1, 2], [0, -1, 0, 0], "
       "[[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])",
       [](auto q, auto k) {
         const bool is_triangle = q < 12 && q / 4 == k / 4 && k <= q;
         return is_triangle || (q / 4 == 1 && k < 4);
       }},
      {"packed([5, 2, 6], [5, 7, 4], causal & (window(3) | sinks(1)))",
       [](auto q, auto k) {
         const int64_t first_query[] = {0, 5, 7, 13}, first_key[] = {0, 5, 12, 16};
         for (int d = 0; d < 3; ++d) {
           const bool has_query = first_query[d] <= q && q < first_query[d + 1];
           const bool has_key = first_key[d] <= k && k < first_key[d + 1];
           if (!has_query || !has_key) continue;
           const int64_t from_end = first_query[d + 1] - q, key = k - first_key[d];
           const int64_t place = first_key[d + 1] - first_key[d] - from_end;
           return key <= place && (place - key <= 3 || key < 1);
         }
         return false;
       }},
      {"streaming(2, 4)", [](auto q, auto k) { return k <= q && (q - k < 4 || k < 2); }},
      {"longformer(4, 1)", [](auto q, auto k) { return std::abs(q - k) <= 2 || q < 1 || k < 1; }},
      {"tiles(4, 4, [0, 1, 3, 4, 6], [0, 0, 1, 2, 0, 3])",
       [](auto q, auto k) {
         const int64_t rows[4][2] = {{0, 0}, {0, 1}, {2, 2}, {0, 3}};
         return k / 4 == rows[q / 4][0] || k / 4 == rows[q / 4][1];
       }},
  };
  size_t checked = 0;
  for (const CatalogEntry& entry : catalog()) {
    const auto rule = rules.find(entry.example);
    if (rule == rules.end()) continue;
    const HeadPattern head =
        parse(entry.example).for_head({.q_len = entry.example_q_len, .k_len = entry.example_k_len});
    for (int64_t q = 0; q < entry.example_q_len; ++q) {
      for (int64_t k = 0; k < entry.example_k_len; ++k) {
        EXPECT_EQ(head.allows(q, k), rule->second(q, k))
            << entry.example << " at " << q << ", " << k;
      }
    }
    ++checked;
  }
  EXPECT_EQ(checked, rules.size()) << "an example changed; change its rule too";
}

TEST(Catalog, SignaturesShowHowToCall) {
  EXPECT_EQ(signature_of(*find_in_catalog("dense")), "dense");
  EXPECT_EQ(signature_of(*find_in_catalog("window")), "window(left[, right])");
  EXPECT_EQ(signature_of(*find_in_catalog("documents")), "documents(lengths...)");
  EXPECT_EQ(signature_of(*find_in_catalog("bigbird")),
            "bigbird(block, window, randoms, globals, seed)");
}

TEST(Catalog, SamplesAreManyAndDistinct) {
  const std::vector<std::string> texts = sample_texts();
  EXPECT_GE(texts.size(), 2 * catalog().size() + 40);
  EXPECT_EQ(std::set<std::string>(texts.begin(), texts.end()).size(), texts.size());
  for (const CatalogEntry& entry : catalog()) {  // each with causal, and each somewhere else
    EXPECT_GE(std::ranges::count_if(
                  texts, [&](const std::string& t) { return t.find(entry.name) != t.npos; }),
              entry.name == "dense" ? 2 : 3)
        << entry.name;
  }
}

TEST(DidYouMean, CountsEditsAndKnowsWhenToBeSilent) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("window", "window"), 0);
  EXPECT_EQ(edit_distance("windw", "window"), 1);
  EXPECT_EQ(edit_distance("casual", "causal"), 1);  // one swap
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("ca", "abc"), 3);  // a swapped pair is not edited again
  constexpr std::string_view words[] = {"window", "sinks", "at"};
  EXPECT_EQ(did_you_mean("windows", words), "window");
  EXPECT_EQ(did_you_mean("wndwo", words), "window");
  EXPECT_EQ(did_you_mean("a", words), "at");
  EXPECT_EQ(did_you_mean("xy", words), "");
  EXPECT_EQ(did_you_mean("causal", words), "");
  EXPECT_EQ(did_you_mean("", {}), "");
}

}  // namespace
}  // namespace keyhole
