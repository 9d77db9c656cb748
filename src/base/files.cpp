// src/base/files.cpp
#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/check.h"

namespace keyhole {
namespace {

// Closes the file on every path.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int close() {
    const int result = ::close(fd_);
    fd_ = -1;
    return result;
  }

 private:
  int fd_;
};

std::string reason() { return std::strerror(errno); }

// Stops when the other end of a pipe is gone.
void write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE) return;
    KEYHOLE_CHECK(written > 0, "cannot write ", path, ": ", reason());
    bytes = bytes.subspan(size_t(written));
  }
}

// The file that the links in `path` lead to, so that they are not replaced themselves: /dev/stdout
// may lead to a regular file. A link to nowhere is replaced.
std::string behind_links(const std::string& path) {
  std::error_code failure;
  const std::filesystem::path real = std::filesystem::canonical(path, failure);
  return failure ? path : real.string();
}

void replace_file(const std::string& path, std::span<const std::byte> bytes) {
  std::string temporary = path + ".tmp.XXXXXX";
  Descriptor file(::mkstemp(temporary.data()));
  KEYHOLE_CHECK(file.get() >= 0, "cannot write ", path, ": ", reason());
  try {
    write_all(file.get(), bytes, path);
    // mkstemp makes files for the owner alone; give what a plain open would have given.
    const mode_t mask = ::umask(0);
    ::umask(mask);
    ::fchmod(file.get(), 0666 & ~mask);
    KEYHOLE_CHECK(::fsync(file.get()) == 0 && file.close() == 0, "cannot write ", path, ": ",
                  reason());
    KEYHOLE_CHECK(::rename(temporary.c_str(), path.c_str()) == 0, "cannot write ", path, ": ",
                  reason());
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void write_through(const std::string& path, std::span<const std::byte> bytes) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  KEYHOLE_CHECK(file.get() >= 0, "cannot write ", path, ": ", reason());
  write_all(file.get(), bytes, path);
}

}  // namespace

std::vector<std::byte> read_file(const std::string& path, int64_t limit) {
  // O_NONBLOCK: opening a pipe without a writer must not block forever.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  KEYHOLE_CHECK(file.get() >= 0, "cannot read ", path, ": ", reason());
  struct stat status{};
  KEYHOLE_CHECK(::fstat(file.get(), &status) == 0, "cannot read ", path, ": ", reason());
  KEYHOLE_CHECK(!S_ISDIR(status.st_mode), "cannot read ", path, ": it is a directory");
  KEYHOLE_CHECK(S_ISREG(status.st_mode), "cannot read ", path, ": it is not a regular file");
  KEYHOLE_CHECK(status.st_size <= limit, "cannot read ", path, ": it has ", int64_t(status.st_size),
                " bytes, more than the limit of ", limit);
  std::vector<std::byte> bytes(size_t(status.st_size));
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    KEYHOLE_CHECK(got >= 0, "cannot read ", path, ": ", reason());
    if (got == 0) break;  // it shrank while we read; the format's own checks report that
    filled += size_t(got);
  }
  bytes.resize(filled);
  return bytes;
}

bool is_replaceable(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode);
}

void write_file(const std::string& path, std::span<const std::byte> bytes) {
  if (is_replaceable(path)) {
    replace_file(behind_links(path), bytes);
  } else {
    write_through(path, bytes);
  }
}

}  // namespace keyhole
