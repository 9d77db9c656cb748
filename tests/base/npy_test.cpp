// tests/base/npy_test.cpp
// .npy files: what is written is read back, and what is not sound is refused with its reason.
#include "base/npy.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "keyhole/error.h"

namespace keyhole {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// A file of one version around a header; the length field may lie.
std::string npy(const std::string& header, const std::string& data, int version = 1,
                int64_t announced = -1) {
  const uint64_t length = announced < 0 ? header.size() : uint64_t(announced);
  std::string file("\x93NUMPY", 6);
  file += char(version);
  file += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) file += char(length >> (8 * i) & 0xff);
  return file + header + data;
}

std::string header(const std::string& dtype, const std::string& shape) {
  return "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
}

std::string error_of(const std::string& file) {
  try {
    parse_npy(bytes_of(file), "a.npy");
    return "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
}

class NpyFiles : public testing::Test {
 protected:
  NpyFiles() : folder_(testing::TempDir() + "keyhole_npy_" + std::to_string(::getpid()) + "/") {
    std::filesystem::create_directories(folder_);
  }
  ~NpyFiles() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + name; }
  size_t files() const {
    return size_t(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
  std::string read_error(const std::string& name) const {
    try {
      read_npy(path(name));
      return "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      std::string text = error.what();
      const size_t place = text.find(folder_);
      return place == text.npos ? text : text.erase(place, folder_.size());
    }
  }

 private:
  std::string folder_;
};

TEST_F(NpyFiles, RoundTrip) {
  for (const char* dtype : {"|b1", "|i1", "|u1", "<i2", "<u2", "|V2", "<f2", "<i4", "<u4", "<f4",
                            "<i8", "<u8", "<f8"}) {
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
             {}, {0}, {1}, {7}, {2, 3}, {3, 0, 5}, {1, 2, 3, 4}, {1, 1, 1, 1, 1, 1, 1, 2}}) {
      int64_t count = npy_item_bytes(dtype);
      for (const int64_t size : shape) count *= size;
      std::vector<std::byte> data(static_cast<size_t>(count));
      for (size_t i = 0; i < data.size(); ++i) data[i] = std::byte(i * 37 + 1);
      write_npy(path("a.npy"), dtype, shape, data);
      const NpyArray array = read_npy(path("a.npy"));
      EXPECT_EQ(array.dtype, dtype);
      EXPECT_EQ(array.shape, shape);
      EXPECT_EQ(array.data, data);
      EXPECT_EQ((std::filesystem::file_size(path("a.npy")) - data.size()) % 64, 0u);
    }
  }
  EXPECT_EQ(files(), 1u) << "a temporary file was left behind";
}

// Byte by byte what numpy 1.24 writes for np.array([[1, 2], [3, 4]], dtype=np.int32).
TEST_F(NpyFiles, WritesWhatNumpyWrites) {
  const int32_t numbers[] = {1, 2, 3, 4};
  write_npy(path("a.npy"), "<i4", std::vector<int64_t>{2, 2}, std::as_bytes(std::span(numbers)));
  std::ifstream stream(path("a.npy"), std::ios::binary);
  const std::string file((std::istreambuf_iterator<char>(stream)), {});
  std::string text = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 2), }";
  text.resize(117, ' ');
  EXPECT_EQ(file, std::string("\x93NUMPY\x01\0v\0", 10) + text + '\n' +
                      std::string(reinterpret_cast<const char*>(numbers), sizeof numbers));
}

TEST(Npy, ReadsEveryVersionAndSpelling) {
  const std::string data(12, 'x');
  const std::string files[] = {
      npy(header("<f4", "(3,)"), data, 1),
      npy(header("<f4", "(3,)"), data, 2),
      npy(header("<f4", "(3,)"), data, 3),
      npy("{\"descr\":\"<f4\",\"fortran_order\":False,\"shape\":(3,)}", data),
      npy("{'shape': (3,), 'fortran_order': False, 'descr': '<f4'}      \n", data),
      npy("  { 'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( 3 , ) , } ", data),
  };
  for (const std::string& file : files) {
    const NpyArray array = parse_npy(bytes_of(file), "a.npy");
    EXPECT_EQ(array.dtype, "<f4");
    EXPECT_EQ(array.shape, std::vector<int64_t>{3});
    EXPECT_EQ(array.data.size(), 12u);
  }
}

// Element (i, j, ...) is the same number in either order; shapes go past the tiles of the copy.
TEST(Npy, ReadsColumnOrder) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{},
                                                                             {5},
                                                                             {2, 3},
                                                                             {70, 33},
                                                                             {0, 4},
                                                                             {3, 4, 5},
                                                                             {33, 2, 65},
                                                                             {2, 3, 4, 5},
                                                                             {1, 3, 1, 2, 1}}) {
    std::string text = "(";
    int64_t count = 1;
    for (const int64_t size : shape) count *= size, text += std::to_string(size) + ",";
    // The number of an element is its place in row order.
    std::vector<int32_t> rows(static_cast<size_t>(count)), columns = rows;
    for (int64_t place = 0; place < count; ++place) {
      int64_t rest = place, in_columns = 0;
      for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) {
        int64_t step = 1;
        for (size_t before = 0; before < d; ++before) step *= shape[before];
        in_columns += rest % shape[d] * step;
      }
      rows[size_t(place)] = columns[size_t(in_columns)] = int32_t(place);
    }
    const std::string file =
        npy("{'descr': '<i4', 'fortran_order': True, 'shape': " + text + ")}",
            {reinterpret_cast<const char*>(columns.data()), columns.size() * sizeof(int32_t)});
    const NpyArray array = parse_npy(bytes_of(file), "a.npy");
    EXPECT_EQ(array.shape, shape);
    const auto expected = std::as_bytes(std::span(rows));
    EXPECT_TRUE(std::ranges::equal(array.data, expected)) << text;
  }
}

TEST(Npy, RefusesWhatIsNotSound) {
  const std::string good = header("<f4", "(3,)"), data(12, 'x');
  const std::string bad = "a.npy: is not a valid .npy file: expected ";
  const std::pair<std::string, std::string> rows[] = {
      {"", "a.npy: is empty; expected a .npy file"},
      {"\x93NUM", "a.npy: is not a .npy file; it does not begin with \\x93NUMPY"},
      {"PK\x03\x04 this is an npz archive",
       "a.npy: is not a .npy file; it does not begin with \\x93NUMPY"},
      {npy(good, data, 4), "a.npy: is .npy version 4.0; versions 1.0, 2.0 and 3.0 are read"},
      {npy(good, data, 0), "a.npy: is .npy version 0.0; versions 1.0, 2.0 and 3.0 are read"},
      {std::string("\x93NUMPY\x02\0\x01\0", 10), "a.npy: ends inside its header"},
      {npy(good, "", 1, 200), "a.npy: ends inside its header"},
      {npy(good, data, 2, 0xffffffff),
       "a.npy: has a header of 4294967295 bytes; at most 65536 are read"},
      {npy(good, data, 2, 65537), "a.npy: has a header of 65537 bytes; at most 65536 are read"},
      {npy(good, std::string(11, 'x')),
       "a.npy: is cut short: its header announces 12 bytes of numbers, and 11 follow"},
      {npy(good, ""),
       "a.npy: is cut short: its header announces 12 bytes of numbers, and 0 follow"},
      {npy(good, std::string(13, 'x')),
       "a.npy: its header announces 12 bytes of numbers, but 13 follow"},
      {npy(header("|O", "(3,)"), data),
       "a.npy: holds Python objects, which are never unpickled here; save an array of numbers"},
      {npy(header(">f4", "(3,)"), data),
       "a.npy: is big-endian (\">f4\"); save it with array.astype(\"<f4\")"},
      {npy(header("<U5", "(3,)"), data),
       "a.npy: dtype \"<U5\" is not accepted; these are: |b1 |i1 |u1 <i2 <u2 |V2 <f2 <i4 <u4 <f4 "
       "<i8 "
       "<u8 <f8"},
      {npy(header("<c8", "(3,)"), data),
       "a.npy: dtype \"<c8\" is not accepted; these are: |b1 |i1 |u1 <i2 <u2 |V2 <f2 <i4 <u4 <f4 "
       "<i8 "
       "<u8 <f8"},
      {npy("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (3,)}", data),
       "a.npy: has named fields (a structured dtype); save each field as an array of its own"},
      {npy(header("<f4", "(1, 1, 1, 1, 1, 1, 1, 1, 3)"), data),
       "a.npy: has more than 8 dimensions; at most 8 are read"},
      {npy(header("<f4", "(9223372036854775808,)"), data),
       "a.npy: a dimension does not fit 64 bits"},
      {npy(header("<f4", "(4611686018427387904, 2)"), data),
       "a.npy: its shape has more bytes than 64 bits can count"},
      {npy(header("<f4", "(0, 4611686018427387904, 4611686018427387904)"), ""),
       "a.npy: its shape has more bytes than 64 bits can count"},
      {npy(header("<f4", "(4294967296, 3)"), data),
       "a.npy: is cut short: its header announces 51539607552 bytes of numbers, and 12 follow"},
      {npy(header("<f4", "(-3,)"), data), bad + "a whole number at byte 51 of its header"},
      {npy(header("<f4", "(3)"), data), bad + "\",\" at byte 52 of its header"},
      {npy(header("<f4", "3"), data), bad + "\"(\" at byte 50 of its header"},
      {npy(header("<f4", "(3.0,)"), data), bad + "\",\" at byte 52 of its header"},
      {npy(header("<f4", "(3 3)"), data), bad + "\",\" at byte 53 of its header"},
      {npy("", data), bad + "\"{\" at byte 0 of its header"},
      {npy("[]", data), bad + "\"{\" at byte 0 of its header"},
      {npy("{}", data), bad + "'descr', 'fortran_order' and 'shape' at byte 2 of its header"},
      {npy("{'descr': '<f4', 'shape': (3,)}", data),
       bad + "'descr', 'fortran_order' and 'shape' at byte 31 of its header"},
      {npy("{'descr': '<f4', 'descr': '<f4'}", data),
       bad + "one each of 'descr', 'fortran_order' and 'shape' at byte 25 of its header"},
      {npy("{'other': '<f4'}", data),
       bad + "one each of 'descr', 'fortran_order' and 'shape' at byte 9 of its header"},
      {npy("{'descr': __import__('os').system('true')}", data),
       bad + "a string at byte 10 of its header"},
      {npy("{'descr': '<f4' 'fortran_order': False}", data),
       bad + "\",\" or \"}\" at byte 16 of its header"},
      {npy("{'descr': '<f4\\n'}", data), bad + "a short plain string at byte 14 of its header"},
      {npy("{'descr': '<f4", data.substr(0, 0)), bad + "\"'\" at byte 14 of its header"},
      {npy("{'fortran_order': 0}", data), bad + "True or False at byte 18 of its header"},
      {npy(good + "x", data), bad + "the end of the header at byte 58 of its header"},
      {npy("{'descr': '" + std::string(60000, 'x') + "'}", data),
       bad + "a short plain string at byte 44 of its header"},
  };
  for (const auto& [file, expected] : rows) EXPECT_EQ(error_of(file), expected);
}

// No byte of a small file can be lost or added without being noticed.
TEST(Npy, EveryTruncationIsRefused) {
  const std::string file = npy(header("<f4", "(3,)"), std::string(12, 'x'));
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_NE(error_of(file.substr(0, size)), "no error") << size;
  }
  EXPECT_EQ(error_of(file), "no error");
}

TEST_F(NpyFiles, RefusesWhatIsNotAFile) {
  std::filesystem::create_directory(path("folder.npy"));
  ASSERT_EQ(::mkfifo(path("pipe.npy").c_str(), 0600), 0);
  std::ofstream(path("empty.npy")).close();
  EXPECT_EQ(read_error("missing.npy"), "cannot read missing.npy: No such file or directory");
  EXPECT_EQ(read_error("folder.npy"), "cannot read folder.npy: it is a directory");
  EXPECT_EQ(read_error("pipe.npy"), "cannot read pipe.npy: it is not a regular file");
  EXPECT_EQ(read_error("empty.npy"), "empty.npy: is empty; expected a .npy file");
  std::ofstream(path("secret.npy")) << "x";
  ::chmod(path("secret.npy").c_str(), 0);
  if (::geteuid() != 0) {  // root may read everything
    EXPECT_EQ(read_error("secret.npy"), "cannot read secret.npy: Permission denied");
  }
}

TEST_F(NpyFiles, AFailedWriteChangesNothing) {
  const std::vector<std::byte> data(4);
  const std::vector<int64_t> shape{1};
  EXPECT_THROW(write_npy(path("no/such/folder.npy"), "<f4", shape, data), Error);
  std::filesystem::create_directory(path("folder.npy"));
  EXPECT_THROW(write_npy(path("folder.npy"), "<f4", shape, data), Error);
  EXPECT_EQ(files(), 1u) << "a temporary file was left behind";
  // Our own mistakes are named as such.
  EXPECT_THROW(write_npy(path("a.npy"), "<f3", shape, data), Error);
  EXPECT_THROW(write_npy(path("a.npy"), "<f4", std::vector<int64_t>{2}, data), Error);
  EXPECT_EQ(files(), 1u);
}

}  // namespace
}  // namespace keyhole
