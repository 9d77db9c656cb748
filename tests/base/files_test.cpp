// tests/base/files_test.cpp
// Writing where a path leads: files are replaced, links followed, pipes written to.
#include "base/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "keyhole/error.h"

namespace keyhole {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  Files() : folder_(testing::TempDir() + "keyhole_files_" + std::to_string(::getpid()) + "/") {
    fs::create_directories(folder_);
  }
  ~Files() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + name; }
  void write(const std::string& name, const std::string& text) const {
    write_file(path(name), std::as_bytes(std::span(text)));
  }
  std::string content(const std::string& name) const {
    std::ifstream stream(path(name), std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(stream)), {});
  }
  size_t files() const { return size_t(std::distance(fs::directory_iterator(folder_), {})); }

 private:
  std::string folder_;
};

TEST_F(Files, ALinkStaysALink) {
  std::ofstream(path("target")) << "old";
  fs::create_symlink("target", path("link"));
  write("link", "new");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(content("target"), "new");
  EXPECT_EQ(files(), 2u) << "a temporary file was left behind";
}

TEST_F(Files, APipeIsWrittenToAndStaysAPipe) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const int reader = ::open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  write("pipe", "through");
  char text[16] = {};
  EXPECT_EQ(::read(reader, text, sizeof text), 7);
  EXPECT_STREQ(text, "through");
  ::close(reader);
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
  EXPECT_FALSE(is_replaceable(path("pipe")));
  EXPECT_EQ(files(), 1u) << "a temporary file was left behind";
}

TEST_F(Files, AReaderMayLeaveAPipeEarly) {
  std::signal(SIGPIPE, SIG_IGN);
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  // The child reads one byte of a megabyte and goes; the pipe holds less than that.
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char first = 0;
    const int reader = ::open(path("pipe").c_str(), O_RDONLY);
    _exit(::read(reader, &first, 1) == 1 ? 0 : 1);
  }
  EXPECT_NO_THROW(write("pipe", std::string(1 << 20, 'x')));
  std::signal(SIGPIPE, SIG_DFL);
}

TEST_F(Files, ADeviceThatIsFullSaysSo) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full here";
  try {
    write_file("/dev/full", std::as_bytes(std::span("x", 1)));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "cannot write /dev/full: No space left on device");
  }
}

}  // namespace
}  // namespace keyhole
