// tests/pattern/parse_files_test.cpp
// Patterns whose arrays come from .npy files.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/npy.h"
#include "keyhole/error.h"
#include "keyhole/pattern.h"

namespace keyhole {
namespace {

// A folder of its own, which is the current one while a test runs: file names stay short.
class ParseFiles : public testing::Test {
 protected:
  ParseFiles()
      : before_(std::filesystem::current_path()),
        folder_(testing::TempDir() + "keyhole_parse_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
    std::filesystem::current_path(folder_);
  }
  ~ParseFiles() override {
    std::filesystem::current_path(before_);
    std::filesystem::remove_all(folder_);
  }

  template <class Number>
  void write(const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
             std::vector<Number> numbers) {
    write_npy(name, dtype, shape, std::as_bytes(std::span(numbers)));
  }
  std::string error_of(const std::string& text) {
    try {
      return "no error: " + parse(text, true).text();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
  }

 private:
  std::filesystem::path before_, folder_;
};

TEST_F(ParseFiles, MeanWhatTheyHoldAndPrintAsWritten) {
  write<int64_t>("l.npy", "<i8", {3}, {2, 3, 1});
  write<int32_t>("l4.npy", "<i4", {3}, {2, 3, 1});
  write<int64_t>("p.npy", "<i8", {4}, {-1, 0, 0, 1});
  write<int64_t>("o.npy", "<i8", {4}, {0, 1, 1, 3});
  write<int32_t>("k.npy", "<i4", {3}, {0, 0, 2});
  write<uint8_t>("m.npy", "|b1", {3, 3}, {1, 0, 0, 1, 0, 1, 0, 1, 0});
  write<uint8_t>("my mask.npy", "|u1", {3, 3}, {7, 0, 0, 1, 0, 255, 0, 9, 0});
  write<int64_t>("q.npy", "<i8", {1, 2, 3}, {0, 2, 4, 0, 1, 2});
  std::filesystem::create_directories("a-b/c");
  write<int64_t>("a-b/c/1.npy", "<i8", {3}, {2, 3, 1});

  struct Row {
    const char *text, *printed, *meaning;
    int64_t q_len, k_len;
  };
  const Row rows[] = {
      {"documents(file=l.npy)", "documents(file=l.npy)", "documents(2, 3, 1)", 6, 6},
      {"documents( l4.npy )", "documents(l4.npy)", "documents(2, 3, 1)", 6, 6},
      {"documents(lengths=a-b/c/1.npy)", "documents(lengths=a-b/c/1.npy)", "documents(2, 3, 1)", 6,
       6},
      {"documents(file=\"l.npy\")", "documents(file=l.npy)", "documents(2, 3, 1)", 6, 6},
      {"tree(file=p.npy)&causal", "tree(file=p.npy) & causal", "tree(-1, 0, 0, 1) & causal", 3, 4},
      {"global_at(file=k.npy)", "global_at(file=k.npy)", "global_at(0, 0, 2)", 3, 4},
      {"csr(offsets=o.npy,keys=k.npy)", "csr(offsets=o.npy, keys=k.npy)",
       "csr([0, 1, 1, 3], [0, 0, 2])", 3, 3},
      {"tiles(tile_q=3, tile_k=3, offsets=o.npy, keys=[0, 0, 2])",
       "tiles(tile_q=3, tile_k=3, offsets=o.npy, keys=[0, 0, 2])",
       "tiles(3, 3, [0, 1, 1, 3], [0, 0, 2])", 7, 8},
      {"mask(file=m.npy)", "mask(file=m.npy)", "mask([[1, 0, 0], [1, 0, 1], [0, 1, 0]])", 3, 3},
      {"~mask(file=\"my mask.npy\")", "~mask(file=\"my mask.npy\")",
       "~mask([[1, 0, 0], [1, 0, 1], [0, 1, 0]])", 3, 3},
      {"at(q=l.npy, k=[0,1,2,3], causal|sinks(1))",
       "at(q=l.npy, k=[0, 1, 2, 3], causal | sinks(1))",
       "at([2, 3, 1], [0, 1, 2, 3], causal | sinks(1))", 3, 4},
  };
  for (const Row& row : rows) {
    const Pattern pattern = parse(row.text, true);
    EXPECT_EQ(pattern.text(), row.printed);
    EXPECT_TRUE(parse(pattern.text(), true) == pattern) << row.text;
    EXPECT_EQ(picture(pattern, row.q_len, row.k_len),
              picture(parse(row.meaning), row.q_len, row.k_len))
        << row.text;
  }
  // Three dimensions, told apart by their size.
  const Pattern heads = parse("at(q=q.npy, k=[0, 1, 2, 3, 4], causal)", true);
  const Shape shape{.batch = 1, .heads = 2, .q_len = 3, .k_len = 5, .offset = {}};
  EXPECT_TRUE(heads.for_head(shape, 0, 0).allows(2, 4));
  EXPECT_FALSE(heads.for_head(shape, 0, 1).allows(2, 4));
}

TEST_F(ParseFiles, AreRefusedWithTheReason) {
  write<int64_t>("l.npy", "<i8", {3}, {2, -3, 1});
  write<float>("f.npy", "<f4", {2}, {1, 2});
  write<int64_t>("two.npy", "<i8", {1, 2}, {1, 2});
  write<int64_t>("four.npy", "<i8", {1, 1, 1, 1}, {1});
  write<int64_t>("none.npy", "<i8", {}, {1});
  write<uint8_t>("m.npy", "|b1", {2}, {1, 0});
  write<int64_t>("o.npy", "<i8", {2}, {0, 5});
  std::filesystem::create_directory("folder.npy");
  const std::pair<const char*, const char*> rows[] = {
      {"documents(file=x.npy)",
       "cannot read x.npy: No such file or directory\n  documents(file=x.npy)\n"
       "                 ^~~~~"},
      {"documents(file=folder.npy)",
       "cannot read folder.npy: it is a directory\n  documents(file=folder.npy)\n"
       "                 ^~~~~~~~~~"},
      {"documents(file=l.npy)",
       "\"lengths\" of documents(lengths...) is at least 0, found -3 (entry 1)\n"
       "  documents(file=l.npy)\n                 ^~~~~"},
      {"documents(file=f.npy)",
       "f.npy: its dtype is \"<f4\"; accepted are \"<i4\" and \"<i8\"\n"
       "  documents(file=f.npy)\n                 ^~~~~"},
      {"documents(two.npy)",
       "two.npy: it has 2 dimensions; accepted is 1\n  documents(two.npy)\n            ^~~~~~~"},
      {"at(none.npy, [0], causal)",
       "none.npy: it has 0 dimensions; accepted are 1 to 3\n  at(none.npy, [0], causal)\n"
       "     ^~~~~~~~"},
      {"at(four.npy, [0], causal)",
       "four.npy: it has 4 dimensions; accepted are 1 to 3\n  at(four.npy, [0], causal)\n"
       "     ^~~~~~~~"},
      {"mask(file=m.npy)",
       "m.npy: it has 1 dimensions; a mask is [q_len, k_len]\n  mask(file=m.npy)\n"
       "            ^~~~~"},
      {"mask(file=two.npy)",
       "two.npy: its dtype is \"<i8\"; a mask is \"|b1\" (bool) or \"|u1\"\n"
       "  mask(file=two.npy)\n            ^~~~~~~"},
      {"documents(o.npy, 3)",
       "too many arguments: documents(lengths...)\n  documents(o.npy, 3)\n                   ^"},
      {"documents(3, o.npy)",
       "a file holds the whole list: documents(lengths...)\n  documents(3, o.npy)\n"
       "               ^~~~~"},
      {"sinks(o.npy)",
       "\"count\" of sinks(count) takes a number, found a file\n  sinks(o.npy)\n        ^~~~~"},
      {"csr(o.npy, [1])",
       "csr: offsets end with 5 but there are 1 keys; the two must be equal\n"
       "  csr(o.npy, [1])\n  ^~~~~~~~~~~~~~~"},
  };
  for (const auto& [text, expected] : rows) EXPECT_EQ(error_of(text), expected);
}

}  // namespace
}  // namespace keyhole
