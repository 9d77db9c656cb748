// cli/bench/cases.h
// Reads case files: one case a line, as bench/cases/*.txt explain themselves.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/case.h"

namespace keyhole::bench {

// Those that `only` names: names with commas between them, * stands for anything. A case of several
// batch entries has that many times the heads. Error(usage) where no name is met, which lists them;
// `source` names the text in errors.
std::vector<Case> parse_cases(std::string_view text, Operation operation, const std::string& source,
                              const std::string& only = "*");
// The cases that were built in, bench/cases/cpu.txt or gpu.txt. Nothing in `only`: those that
// somebody would run, without the ones whose names the head of gpu.txt explains.
std::vector<Case> built_in_cases(Operation operation, const Device& device = {},
                                 const std::string& only = "");
std::vector<Case> cases_from_file(const std::string& path, Operation operation,
                                  const std::string& only);

}  // namespace keyhole::bench
