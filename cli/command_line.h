// cli/command_line.h
#pragma once

#include <string>
#include <vector>

namespace keyhole::cli {

// All of `keyhole WORDS...`; returns the exit code. Programs other than `keyhole` may call it: the
// Python package does.
int run_command_line(std::vector<std::string> words);

}  // namespace keyhole::cli
