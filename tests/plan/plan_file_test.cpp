// tests/plan/plan_file_test.cpp
// Plans as files: what is saved is what is loaded; what is damaged is refused, whatever the damage.
#include "plan/plan_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/check.h"
#include "base/files.h"
#include "base/hash.h"
#include "pattern/catalog.h"
#include "pattern/node.h"
#include "plan/compile.h"
#include "plan/plan_state.h"
#include "support/plan_compare.h"

namespace keyhole {
namespace {

class PlanFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "keyhole_plan_XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
};

void expect_same_lists(const Plan& a, const Plan& b, TileShape tile) {
  const auto& x = a.state().tiles(tile).parts;
  const auto& y = b.state().tiles(tile).parts;
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(x[i].stride, y[i].stride);
    EXPECT_EQ(x[i].group_of, y[i].group_of);
    EXPECT_EQ(x[i].list_begin, y[i].list_begin);
    EXPECT_EQ(x[i].list_count, y[i].list_count);
    EXPECT_EQ(x[i].runs, y[i].runs);
    EXPECT_EQ(x[i].order, y[i].order);
    EXPECT_EQ(x[i].bitmaps, y[i].bitmaps);
  }
  ASSERT_EQ(a.state().gathers().size(), b.state().gathers().size());
  for (size_t i = 0; i < a.state().gathers().size(); ++i) {
    EXPECT_EQ(a.state().gathers()[i].keys, b.state().gathers()[i].keys);
    EXPECT_EQ(a.state().gathers()[i].list_begin, b.state().gathers()[i].list_begin);
  }
}

TEST_F(PlanFiles, KeepEveryListOfEverySample) {
  for (const std::string& text : sample_texts()) {
    SCOPED_TRACE(text);
    Plan made = [&] {
      try {
        return plan(parse(text), Shape{2, 2, 300, 330, {}});
      } catch (const Error&) {  // per_head of three patterns, at(...) of other lengths
        return plan(parse("causal"), 1, 1);
      }
    }();
    made.state().tiles({64, 64});
    made.state().tiles({16, 16});
    made.save(path("plan"));
    Plan loaded = Plan::load(path("plan"));
    EXPECT_EQ(loaded.shape().q_offset(), made.shape().q_offset());
    EXPECT_EQ(loaded.pattern_text(), made.pattern_text());
    expect_same_lists(made, loaded, {64, 64});
    expect_same_lists(made, loaded, {16, 16});
    expect_same_lists(made, loaded, {32, 32});  // not stored: compiled from the texts of its parts
  }
}

TEST_F(PlanFiles, APatternThatTextCannotMakeAgainHasItsStoredTilesOnly) {
  Plan made = plan(lambda([](Position q, Position k) { return (q ^ k) % 3 == 0; }), 100, 100);
  made.state().tiles({64, 64});
  made.save(path("plan"));
  Plan loaded = Plan::load(path("plan"));
  expect_same_lists(made, loaded, {64, 64});
  EXPECT_LT(loaded.state().estimate_tiles({16, 16}), 0);
  try {
    loaded.state().tiles({16, 16});
    FAIL() << "lists for 16x16 from nowhere";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_NE(std::string(error.what()).find("it holds lists for 64x64"), std::string::npos)
        << error.what();
  }
}

// Plain tiles, residue classes and key lists in one small file.
void save_plan_of_every_form(const std::string& path) {
  const Plan made = make_plan(parse("causal & (window(3) | exponential | dilated(4))"),
                              Shape{1, 1, 20, 30, {}}, SplitPolicy::mixed);
  ASSERT_EQ(made.state().tiles({16, 16}).parts.size(), 2u);
  ASSERT_EQ(made.state().gathers().size(), 1u);
  made.save(path);
}

std::string error_of(const std::vector<std::byte>& bytes) {
  try {
    load_plan(bytes, "p");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
    return error.what();
  }
  return "loaded";
}

TEST_F(PlanFiles, EveryFlippedByteAndEveryTruncationIsRefused) {
  save_plan_of_every_form(path("plan"));
  const std::vector<std::byte> good = read_file(path("plan"), 1 << 20);
  EXPECT_EQ(error_of(good), "loaded");
  int64_t refused = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::vector<std::byte> bad = good;
      bad[i] ^= std::byte(flip);
      ASSERT_NE(error_of(bad), "loaded") << "byte " << i << " xor " << flip;
      ++refused;
    }
    ASSERT_NE(error_of({good.begin(), good.begin() + ptrdiff_t(i)}), "loaded") << "cut at " << i;
    ++refused;
  }
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  EXPECT_NE(error_of(longer), "loaded");
  std::printf("refused %lld damaged files\n", static_cast<long long>(refused));
}

// A checksum proves nothing about who wrote a file: with it repaired, the checks of the fields must
// refuse the damage or the file must be harmless (its lists pass verification).
TEST_F(PlanFiles, DamageUnderAValidChecksumNeverPassesUnverifiedLists) {
  save_plan_of_every_form(path("plan"));
  const std::vector<std::byte> good = read_file(path("plan"), 1 << 20);
  for (size_t i = 16; i + 8 < good.size(); ++i) {
    for (const int flip : {0x01, 0x08, 0x40, 0x80, 0xff}) {
      std::vector<std::byte> bad = good;
      bad[i] ^= std::byte(flip);
      const uint64_t checksum = fnv1a64(bad.data(), bad.size() - 8);
      std::memcpy(bad.data() + bad.size() - 8, &checksum, 8);
      try {
        const Plan loaded = load_plan(bad, "p");
        loaded.state().tiles({8, 8});  // from the texts of its parts
        loaded.verify();
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::usage) << error.what();
      }
    }
  }
}

TEST_F(PlanFiles, OtherTilesAreCompiledInTheFormsOfTheFile) {
  const Plan made = make_plan(parse("causal & (window(3) | exponential | dilated(4))"),
                              Shape{1, 1, 20, 30, {}}, SplitPolicy::mixed);
  made.save(path("plan"));
  expect_same_lists(made, Plan::load(path("plan")), {8, 8});
}

// A plan of parts as another release may have split the pattern: in no order or form that this one
// chooses under any policy.
Plan plan_of_parts(const Pattern& pattern, const Shape& shape, const std::vector<PartSpec>& parts) {
  std::vector<PartSpec> tile_parts;
  std::map<TileShape, CompiledTiles> tiles;
  std::vector<KeyLists> gathers;
  for (const PartSpec& part : parts) {
    if (part.key.form == PartForm::gather) {
      gathers.push_back(compile_keys(part, shape));
      continue;
    }
    tile_parts.push_back(part);
    tiles[{16, 16}].parts.push_back(compile_tiles(part, shape, {16, 16}));
  }
  return Plan(std::make_shared<PlanState>(pattern.text(), shape, tile_parts, std::move(tiles),
                                          std::move(gathers)));
}

TEST_F(PlanFiles, ASplitThatThisReleaseWouldNotMakeLosesAndDoublesNoPair) {
  const Pattern pattern =
      parse("per_head(causal & (window(3) | exponential | dilated(4)), causal & window(5))");
  const Shape shape{1, 2, 50, 70, {}};
  const auto node = [&](const char* text) { return parse(text).for_head(shape).node(); };
  // What the first head keeps in key lists is what this release keeps in plain tiles.
  const std::vector<PartSpec> parts = {
      {{PartForm::tiles, 1},
       {node("causal & window(5)"), node("causal & exponential & ~window(3)")},
       {1, 0}},
      {{PartForm::tiles, 4}, {node("causal & dilated(4) & ~(window(3) | exponential)")}, {0, -1}},
      {{PartForm::gather, 1}, {node("causal & window(3)")}, {0, -1}},
  };
  plan_of_parts(pattern, shape, parts).save(path("plan"));
  const Plan loaded = Plan::load(path("plan"));
  loaded.save(path("again"));
  const Plan again = Plan::load(path("again"));
  for (const TileShape tile : {TileShape{16, 16}, {8, 8}, {5, 32}, {64, 64}}) {
    EXPECT_EQ(test::compare_plan_with_pattern(loaded, pattern, tile), "") << to_string(tile);
    EXPECT_EQ(test::compare_plan_with_pattern(again, pattern, tile), "") << to_string(tile);
  }
  EXPECT_GT(loaded.state().estimate_tiles({24, 24}), 0);
}

// Arrays in key lists need no text: the lists of every tile shape follow from the other parts.
TEST_F(PlanFiles, OnlyThePartsInTilesNeedTexts) {
  std::vector<int64_t> offsets = {0}, keys;
  for (int64_t q = 0; q < 40; ++q) {
    keys.push_back(q * 7 % 40);
    offsets.push_back(int64_t(keys.size()));
  }
  const Pattern listed = csr(offsets, keys), pattern = window(2) | listed;
  const Shape shape{1, 1, 40, 40, {}};
  const std::vector<PartSpec> parts = {
      {{PartForm::tiles, 1}, {window(2).node()}, {0}},
      {{PartForm::gather, 1}, {(listed & ~window(2)).node()}, {0}},
  };
  plan_of_parts(pattern, shape, parts).save(path("plan"));
  EXPECT_EQ(test::compare_plan_with_pattern(Plan::load(path("plan")), pattern, {8, 8}), "");
}

// The file with `from` replaced by `to` in its header, sizes and checksum mended.
std::vector<std::byte> with_header(const std::vector<std::byte>& file, const std::string& from,
                                   const std::string& to) {
  constexpr size_t kBegin = 24;  // behind mark, version, byte order and the header's size
  uint64_t header_bytes;
  std::memcpy(&header_bytes, file.data() + 16, sizeof header_bytes);
  std::string header(reinterpret_cast<const char*>(file.data()) + kBegin, header_bytes);
  const size_t at = header.find(from);
  EXPECT_NE(at, std::string::npos) << from << " is not in " << header;
  header.replace(at == std::string::npos ? 0 : at, from.size(), to);
  const auto padded = [](size_t bytes) { return (bytes + 7) / 8 * 8; };

  std::vector<std::byte> out(file.begin(), file.begin() + 16);
  const auto put = [&](const void* data, size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    out.insert(out.end(), bytes, bytes + size);
  };
  const uint64_t new_bytes = header.size();
  put(&new_bytes, sizeof new_bytes);
  put(header.data(), header.size());
  out.resize(padded(out.size()));
  const size_t arrays = padded(kBegin + header_bytes);
  put(file.data() + arrays, file.size() - 8 - arrays);
  const uint64_t checksum = fnv1a64(out.data(), out.size());
  put(&checksum, sizeof checksum);
  return out;
}

TEST_F(PlanFiles, PartsOfAStrangerAreChecked) {
  save_plan_of_every_form(path("plan"));
  const std::vector<std::byte> good = read_file(path("plan"), 1 << 20);
  EXPECT_EQ(error_of(with_header(good, "\"stride\":4", "\"stride\":4")), "loaded");
  const auto expect_refused = [&](const char* from, const char* to, const char* why) {
    const std::string error = error_of(with_header(good, from, to));
    EXPECT_NE(error.find(why), std::string::npos) << to << ": " << error;
  };
  expect_refused("causal & window(3)\"]", "causal & windw(3)\"]",
                 "plan file p: the pattern of a part: unknown pattern \"windw\"");
  expect_refused("\"causal & window(3)\"]", "\"per_head(causal, dense)\"]",
                 "per_head: got 2 patterns for 1 query heads");
  expect_refused("\"causal & window(3)\"]", "\"lambda(<f>)\"]", "the pattern of a part");
  expect_refused("\"causal & window(3)\"]", "3]", "its header is not valid");
  expect_refused("[\"causal & window(3)\"]", "[]", "group 0 of a part with 0");
  expect_refused("\"stride\":1}", "\"stride\":0}", "a part with stride 0");
  expect_refused("\"stride\":1}", "\"stride\":31}", "a part with stride 31 for lengths 20 and 30");
  expect_refused("\"stride\":1}", "\"stride\":2}",
                 "do not match the parts that the file describes");
}

// The thread sanitizer reads along: nothing that a question looks at may be made by another one.
TEST_F(PlanFiles, ALoadedPlanIsAskedFromSeveralThreads) {
  save_plan_of_every_form(path("plan"));
  for (int round = 0; round < 8; ++round) {
    const Plan loaded = Plan::load(path("plan"));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&loaded, t] {
        const TileShape tile{8 << t % 2, 8};
        EXPECT_FALSE(loaded.state().is_opaque());
        EXPECT_GT(loaded.state().estimate_tiles(tile), 0);
        EXPECT_TRUE(loaded.state().can_compile(tile));
        EXPECT_FALSE(loaded.explain(tile).draws_pair_by_pair);
        EXPECT_EQ(loaded.state().view(tile, /*with_transposed=*/true).tiles.size(), 2u);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_F(PlanFiles, SayWhatIsWrongWithThem) {
  plan(causal(), 8, 8).save(path("plan"));
  const std::vector<std::byte> good = read_file(path("plan"), 1 << 20);
  const auto with = [&](size_t at, uint32_t value) {
    std::vector<std::byte> bad = good;
    std::memcpy(bad.data() + at, &value, sizeof value);
    return bad;
  };
  EXPECT_EQ(error_of({}),
            "p is not a plan file: it does not begin with the mark of one; plans are written by "
            "Plan::save or `keyhole plan --save`");
  EXPECT_EQ(error_of(with(8, 7)),
            "plan file p has format version 7, this library reads 2; make the plan again from its "
            "pattern");
  EXPECT_EQ(
      error_of(with(12, 0x04030201)),
      "plan file p was written on a machine of another byte order; make the plan again from its "
      "pattern");
  EXPECT_EQ(
      error_of(with(40, 7)),
      "plan file p is damaged: its checksum does not fit; make the plan again from its pattern");
}

TEST_F(PlanFiles, UnreadablePathsAreNamed) {
  const auto error_for = [](const std::string& name) {
    try {
      Plan::load(name);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("loaded");
  };
  EXPECT_EQ(error_for(path("none")), "cannot read " + path("none") + ": No such file or directory");
  EXPECT_EQ(error_for(folder_), "cannot read " + folder_ + ": it is a directory");
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(error_for(path("fifo")), "cannot read " + path("fifo") + ": it is not a regular file");
}

TEST_F(PlanFiles, SavingReplacesWholeFilesAndLeavesNoTemporaries) {
  std::ofstream(path("plan")) << "old";
  plan(causal(), 8, 8).save(path("plan"));
  EXPECT_EQ(Plan::load(path("plan")).pattern_text(), "causal");
  EXPECT_THROW(plan(causal(), 8, 8).save(path("no/such/folder/plan")), Error);
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++files;
  EXPECT_EQ(files, 1);
}

}  // namespace
}  // namespace keyhole
