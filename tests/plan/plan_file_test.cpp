// tests/plan/plan_file_test.cpp
// Plans as files: what is saved is what is loaded; what is damaged is refused, whatever the damage.
#include "plan/plan_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "base/files.h"
#include "base/hash.h"
#include "pattern/catalog.h"
#include "plan/plan_state.h"

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
    expect_same_lists(made, loaded, {32, 32});  // not stored: compiled from the text
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
        load_plan(bad, "p").verify();
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
            "plan file p has format version 7, this library reads 1; make the plan again from its "
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
