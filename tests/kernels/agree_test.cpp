// tests/kernels/agree_test.cpp
// Every kernel of the table, in every tile shape it can follow, against the fp64 reference: on the
// hostile table, on every length around a tile's edge, and on every sample pattern of the catalog.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <set>

#include "base/check.h"
#include "kernels/table_cases.h"
#include "pattern/catalog.h"
#include "runtime/gpu.h"
#include "runtime/registry.h"
#include "support/check_case.h"
#include "support/generator.h"
#include "support/scale.h"

namespace keyhole::test {
namespace {

std::set<DType> dtypes_of_the_table() {
  std::set<DType> dtypes;
  for (const KernelEntry& entry : kernel_table()) {
    if (entry.operation == Operation::forward) dtypes.insert(entry.dtype);
  }
  return dtypes;
}

std::string name_of(const KernelChoice& kernel) {
  std::string name = kernel.forward->name;
  if (kernel.backward) name += say(", ", kernel.backward->name);
  name += say(", tile ", to_string(kernel.tile));
  if (kernel.shared_bytes != 0) name += say(", ", kernel.shared_bytes, " bytes of shared memory");
  return name;
}

// The case with every kernel that takes its dtype, in each of its tile shapes and with the
// library's choice, each with every amount of shared memory that it has configurations for.
void expect_agreement(Case c, CheckStats& stats) {
  c.tile = -1;
  for (KernelChoice kernel : kernels_for(c)) {
    std::vector<TileShape> tiles = {TileShape{0, 0}};
    tiles.insert(tiles.end(), tiles_of(kernel).begin(), tiles_of(kernel).end());
    for (size_t i = 0; i < tiles.size(); ++i) {
      kernel.tile = tiles[i];
      c.tile = int(i) - 1;
      for (const int64_t limit : shared_limits(*kernel.forward)) {
        kernel.shared_bytes = limit;
        const Failure failure = check_case_with(c, kernel, &stats);
        EXPECT_FALSE(failure) << name_of(kernel) << "\n  " << failure.kind << ": " << failure.detail
                              << "\n  keyhole_fuzz --case '" << to_text(c) << "'";
      }
    }
  }
}

void print(const char* what, const CheckStats& stats) {
  std::cout << what << ": " << stats.kernel_runs << " kernel runs, " << stats.pairs
            << " pairs, at most " << stats.worst << " of the rounding bound used; "
            << stats.refused.total() << " refused" << stats.refused.text() << "\n";
}

TEST(Kernels, TheTableHasForwardAndBackwardForEveryDtype) {
  if (std::getenv("KEYHOLE_TEST_BACKENDS")) GTEST_SKIP() << "only some backends are asked for";
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    for (const Normalizer& normalizer : {softmax(), entmax(1.5)}) {
      Case c;
      c.dtype = dtype, c.head_dim = c.v_head_dim = 576, c.normalizer = normalizer;
      const auto kernels = kernels_for(c);
      ASSERT_FALSE(kernels.empty()) << to_string(dtype);
      for (const KernelChoice& kernel : kernels) {
        EXPECT_TRUE(kernel.backward) << kernel.forward->name;
      }
    }
  }
}

TEST(Kernels, AgreeWithTheReferenceOnTheHostileTable) {
  CheckStats stats;
  const std::set<DType> dtypes = dtypes_of_the_table();
  const bool is_slow = scaled(100) < 100;  // a sanitizer: dtypes take turns, one a line
  int forms = 0, line_number = 0;
  for (const char* line : kHostileCases) {
    int dtype_number = 0;
    for (const DType dtype : dtypes) {
      Case c = parse_case(line);
      c.dtype = dtype;
      c.forms = forms++ % 5;  // every form of plan in turn, over the dtypes and lines
      // Heads of 129 to 256 have kernels of their own on GPUs alone.
      const int64_t width = std::max(c.head_dim, c.v_head_dim);
      const bool takes_turns = is_slow || (width > 128 && width <= 256 && gpus().empty());
      if (takes_turns && dtype_number++ != line_number % int(dtypes.size())) continue;
      expect_agreement(c, stats);
    }
    ++line_number;
  }
  print("hostile table", stats);
}

// Entmax, top_k and both, in turn over lines and dtypes.
Normalizer sparse_in_turn(int number) {
  static const Normalizer kAll[] = {
      entmax(1.5), softmax(5),     entmax(2),  entmax(1.25),    entmax(1.75),    entmax(1.5, 3),
      entmax(1.1), entmax(4. / 3), softmax(1), entmax(1.01, 9), entmax(2, 1000), entmax(1.25, 1)};
  return kAll[size_t(number) % std::size(kAll)];
}

TEST(Kernels, AgreeWithTheReferenceOnTheHostileTableWithEntmaxAndTopK) {
  CheckStats stats;
  const std::set<DType> all = dtypes_of_the_table();
  const std::vector<DType> dtypes(all.begin(), all.end());
  int number = 0;
  Sample sample(/*least_percent=*/33);
  for (const char* line : kHostileCases) {
    Case c = parse_case(line);
    // Dtypes take turns as well: the reference sorts and solves every row.
    c.dtype = dtypes[size_t(number) % dtypes.size()];
    c.normalizer = sparse_in_turn(number / 4 + number);
    c.forms = number++ % 5;
    if (sample.takes_next()) expect_agreement(c, stats);
  }
  print("hostile table, entmax and top_k", stats);
}

TEST(Kernels, AgreeAroundTheEdgesOfEveryTile) {
  CheckStats stats;
  for (const KernelEntry& entry : kernel_table()) {
    if (entry.operation != Operation::forward) continue;
    if (const std::string why = why_not_here(entry); !why.empty()) {
      std::cout << entry.name << " is skipped: " << why << "\n";
      continue;
    }
    const bool is_cpu = entry.device == Device::Kind::cpu;
    // The backward kernels of sm90 for wide heads refuse narrow ones.
    const bool is_wide = entry.max_head_dim == 192 || entry.max_head_dim == 256;
    for (size_t t = 0; t < entry.tiles.size(); ++t) {
      const TileShape tile = entry.tiles[t];
      const auto lengths = [](int64_t size) {
        return std::vector<int64_t>{0, 1, 2, 3, size - 1, size, size + 1, 2 * size + 1};
      };
      int number = 0;
      Sample sample(/*least_percent=*/33);
      for (const int64_t q_len : lengths(tile.q)) {
        for (const int64_t k_len : lengths(tile.k)) {
          // Patterns take turns, so that each meets every edge over the dtypes and tiles.
          constexpr const char* kPatterns[] = {"dense", "causal", "window(3,1)", "not(causal)",
                                               "or(window(2),sinks(1))"};
          Case c;
          c.pattern = parse_expression(kPatterns[size_t(number++ + int(t)) % std::size(kPatterns)]);
          c.dtype = entry.dtype, c.tile = int(t);
          c.q_len = q_len, c.k_len = k_len;
          c.head_dim = is_cpu ? 5 : is_wide ? 136 : 24, c.v_head_dim = is_cpu ? 3 : 8;
          c.data = uint64_t(number);
          if (entry.weights == Weights::sparse) c.normalizer = sparse_in_turn(number + int(t));
          if (!sample.takes_next()) continue;
          for (const KernelChoice& kernel : kernels_for(c)) {
            if (kernel.forward != &entry) continue;
            KernelChoice limited = kernel;  // configurations take turns as well
            const std::vector<int64_t> limits = shared_limits(entry);
            limited.shared_bytes = limits[size_t(number) % limits.size()];
            const Failure failure = check_case_with(c, limited, &stats);
            EXPECT_FALSE(failure) << name_of(limited) << "\n  " << failure.kind << ": "
                                  << failure.detail << "\n  " << to_text(c);
          }
        }
      }
    }
  }
  print("tile edges", stats);
}

TEST(Kernels, AgreeOnRandomCases) {
  CheckStats stats;
  const int64_t cases = scaled(500);
  for (int64_t seed = 0; seed < cases; ++seed) {
    const Case c = draw_case(uint64_t(1'000'000 + seed));
    const Failure failure = check_case(c, &stats);
    EXPECT_FALSE(failure) << "seed " << 1'000'000 + seed << "\n  " << failure.kind << ": "
                          << failure.detail << "\n  keyhole_fuzz --case '" << to_text(c) << "'";
  }
  print("random cases", stats);
}

}  // namespace
}  // namespace keyhole::test
