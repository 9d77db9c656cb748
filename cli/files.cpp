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
#include <optional>
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

// Also of a file that does not exist yet.
std::filesystem::path full_path(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::weakly_canonical(std::filesystem::absolute(path, ignored), ignored);
}

bool is_same_file(const std::string& a, const std::string& b) {
  if (is_stdout(a) || is_stdout(b)) return is_stdout(a) && is_stdout(b);
  struct stat first{}, second{};
  if (stat(a.c_str(), &first) == 0 && stat(b.c_str(), &second) == 0) {
    return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
  }
  return full_path(a) == full_path(b);  // at least one does not exist yet
}

}  // namespace

HoldSignals::HoldSignals() { ++holds; }

HoldSignals::~HoldSignals() {
  --holds;
  if (waiting_signal != 0) _exit(128 + waiting_signal);
}

bool is_stdout(const std::string& path) {
  struct stat file{}, out{};
  return path == "-" || (stat(path.c_str(), &file) == 0 && fstat(STDOUT_FILENO, &out) == 0 &&
                         file.st_dev == out.st_dev && file.st_ino == out.st_ino);
}

void write_file(const std::string& path, std::string_view content) {
  if (is_stdout(path)) return write_out(content);
  std::optional<HoldSignals> hold;
  if (is_replaceable(path)) hold.emplace();
  keyhole::write_file(path, std::as_bytes(std::span(content)));
}

void check_writable(const std::string& path) {
  if (is_stdout(path)) return;
  struct stat status{};
  const bool exists = stat(path.c_str(), &status) == 0;
  KEYHOLE_CHECK(!exists || !S_ISDIR(status.st_mode), "cannot write ", path, ": it is a directory");
  KEYHOLE_CHECK(!exists || !S_ISSOCK(status.st_mode), "cannot write ", path, ": it is a socket");
  // A file will be replaced by a new one: what counts is whether the folder takes one.
  const bool is_new = is_replaceable(path);
  const std::string place = is_new ? full_path(path).parent_path().string() : path;
  KEYHOLE_CHECK(access(place.c_str(), is_new ? W_OK | X_OK : W_OK) == 0, "cannot write ", path,
                ": ", std::strerror(errno));
}

bool check_outputs(const std::vector<NamedPath>& outputs, const std::vector<NamedPath>& inputs,
                   const Context& context) {
  bool takes_stdout = false;
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
    takes_stdout = takes_stdout || is_stdout(outputs[i].path);
    KEYHOLE_CHECK(!context.json || !is_stdout(outputs[i].path), outputs[i].option,
                  " and --json both write to standard output; give ", outputs[i].option,
                  " a file, or leave --json out");
  }
  return takes_stdout;
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
