// cli/files.h
// Files that appear complete or not at all. An interrupt that arrives while one is being written
// waits until it is in place, so that no temporary is left behind; the program then ends.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/common.h"

namespace keyhole::cli {

// While one of these lives, SIGINT and SIGTERM wait. Not around writes to a pipe, which may wait
// for a reader for ever.
class HoldSignals {
 public:
  HoldSignals();
  ~HoldSignals();  // ends the program when a signal came meanwhile
  HoldSignals(const HoldSignals&) = delete;
  HoldSignals& operator=(const HoldSignals&) = delete;
};

// A file, a pipe, a device, or standard output: "-" and every path that leads there.
void write_file(const std::string& path, std::string_view content);
bool is_stdout(const std::string& path);

// Throws Error(usage) now rather than after the work is done, when the path cannot be written.
void check_writable(const std::string& path);

// Throws Error(usage) when an output names one of the inputs or another output, by whatever path,
// or cannot be written. True when one of them is standard output, which then has room for nothing
// else: no report, and no JSON.
struct NamedPath {
  std::string option, path;  // an empty path is an option that was not given
};
bool check_outputs(const std::vector<NamedPath>& outputs, const std::vector<NamedPath>& inputs,
                   const Context& context);

// SIGINT and SIGTERM exit with 128 + their number; SIGPIPE becomes a failed write.
void install_signal_handlers();

}  // namespace keyhole::cli
