// cli/files.h
// Files that appear complete or not at all: written under a temporary name beside the target, then
// renamed. An interrupt removes the temporaries and exits with 128 + the signal's number.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace keyhole::cli {

class OutputFile {
 public:
  explicit OutputFile(std::string path);  // reserves the temporary; throws when the folder refuses
  ~OutputFile();                          // removes the temporary unless commit() was called
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& temporary() const { return temporary_; }  // write here
  const std::string& path() const { return path_; }
  void commit();  // the path now holds what was written

 private:
  std::string path_, temporary_;
  int slot_ = -1;  // in the list the signal handler removes
};

void write_file(const std::string& path, std::string_view content);

// Throws Error(usage) when an output names one of the inputs or another output, by whatever path.
struct NamedPath {
  std::string option, path;  // an empty path is an option that was not given
};
void check_outputs(const std::vector<NamedPath>& outputs, const std::vector<NamedPath>& inputs);

// SIGINT and SIGTERM clean up; SIGPIPE becomes a failed write.
void install_signal_handlers();

}  // namespace keyhole::cli
