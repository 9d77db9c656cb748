// cli/files.cpp
// Writing through the library's atomic replacement, and signals that wait for it.
#include "cli/files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <span>

#include "base/check.h"
#include "base/files.h"

namespace keyhole::cli {
namespace {

// Atomics without locks, because a signal handler reads them. Masking the signal instead would not
// do: a worker thread of the kernels would take it.
std::atomic<int> holds{0};
std::atomic<int> waiting_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void exit_or_wait(int signal) {
  waiting_signal = signal;
  if (holds == 0) _exit(128 + signal);
}

bool is_same_file(const std::string& a, const std::string& b) {
  struct stat first{}, second{};
  if (stat(a.c_str(), &first) == 0 && stat(b.c_str(), &second) == 0) {
    return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
  }
  // At least one does not exist yet: compare what their names come to.
  std::error_code ignored;
  const auto full = [&](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, ignored), ignored);
  };
  return full(a) == full(b);
}

}  // namespace

HoldSignals::HoldSignals() { ++holds; }

HoldSignals::~HoldSignals() {
  --holds;
  if (waiting_signal != 0) _exit(128 + waiting_signal);
}

void write_file(const std::string& path, std::string_view content) {
  const HoldSignals hold;
  write_file_atomically(path, std::as_bytes(std::span(content)));
}

void check_writable(const std::string& path) {
  struct stat status{};
  const bool exists = stat(path.c_str(), &status) == 0;
  KEYHOLE_CHECK(!exists || !S_ISDIR(status.st_mode), "cannot write ", path, ": it is a directory");
  KEYHOLE_CHECK(!exists || S_ISREG(status.st_mode), "cannot write ", path,
                ": it is not a regular file");
  // The file will be replaced by a new one: what counts is whether the folder takes one.
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  KEYHOLE_CHECK(access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0, "cannot write ",
                path, ": ", std::strerror(errno));
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
    check_writable(outputs[i].path);
  }
}

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = exit_or_wait;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace keyhole::cli
