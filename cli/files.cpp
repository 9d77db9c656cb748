// cli/files.cpp
// Temporary files, their atomic rename, and the signal handler that removes them.
#include "cli/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/check.h"

namespace keyhole::cli {
namespace {

// Fixed memory, because a signal handler may neither allocate nor lock. `is_used` is set last and
// cleared first, so that the handler only ever sees complete names.
struct Slot {
  std::atomic<bool> is_used{false};
  char path[PATH_MAX];
};
constexpr int kSlots = 8;
Slot slots[kSlots];

int remember(const std::string& path) {
  for (int i = 0; i < kSlots; ++i) {
    if (slots[i].is_used || path.size() >= sizeof slots[i].path) continue;
    std::memcpy(slots[i].path, path.c_str(), path.size() + 1);
    slots[i].is_used = true;
    return i;
  }
  return -1;  // then an interrupt leaves this one behind; no verb writes so many files at once
}

extern "C" void remove_temporaries_and_exit(int signal) {
  for (Slot& slot : slots) {
    if (slot.is_used) unlink(slot.path);
  }
  _exit(128 + signal);
}

[[noreturn]] void refuse(const std::string& path, const char* doing) {
  throw Error(ErrorKind::usage, say("cannot ", doing, " ", path, ": ", std::strerror(errno)));
}

bool is_same_file(const std::string& a, const std::string& b) {
  struct stat first, second;
  if (stat(a.c_str(), &first) == 0 && stat(b.c_str(), &second) == 0) {
    return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
  }
  std::error_code ignored;
  return std::filesystem::weakly_canonical(a, ignored) ==
         std::filesystem::weakly_canonical(b, ignored);
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  struct stat status;
  if (stat(path_.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    refuse(path_, "write");
  }
  temporary_ = path_ + ".XXXXXX";
  const int descriptor = mkstemp(temporary_.data());
  if (descriptor < 0) refuse(path_, "write");
  const mode_t mask = umask(0);
  umask(mask);
  fchmod(descriptor, 0666 & ~mask);  // mkstemp gives 0600; a result is as readable as any file
  close(descriptor);
  slot_ = remember(temporary_);
}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
  if (slot_ >= 0) slots[slot_].is_used = false;
}

void OutputFile::commit() {
  // The content must be on the disk before the name is: otherwise a crash leaves an empty file.
  const int descriptor = open(temporary_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) refuse(path_, "write");
  const bool is_synced = fsync(descriptor) == 0 || errno == EINVAL;
  close(descriptor);
  if (!is_synced || std::rename(temporary_.c_str(), path_.c_str()) != 0) refuse(path_, "write");
  temporary_.clear();
}

void write_file(const std::string& path, std::string_view content) {
  OutputFile file(path);
  std::FILE* stream = std::fopen(file.temporary().c_str(), "wb");
  if (!stream) refuse(path, "write");
  const bool is_written = std::fwrite(content.data(), 1, content.size(), stream) == content.size();
  const bool is_closed = std::fclose(stream) == 0;
  if (!is_written || !is_closed) refuse(path, "write");
  file.commit();
}

void check_outputs(const std::vector<NamedPath>& outputs, const std::vector<NamedPath>& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].path.empty()) continue;
    std::vector<NamedPath> others = inputs;
    others.insert(others.end(), outputs.begin(), outputs.begin() + ptrdiff_t(i));
    for (const NamedPath& other : others) {
      KEYHOLE_CHECK(other.path.empty() || !is_same_file(outputs[i].path, other.path),
                    outputs[i].option, " and ", other.option, " name the same file, ",
                    outputs[i].path, "; give the output a name of its own");
    }
  }
}

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = remove_temporaries_and_exit;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace keyhole::cli
