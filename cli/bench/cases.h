// cli/bench/cases.h
// Reads case files: one case a line, as bench/cases/*.txt explain themselves.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/case.h"

namespace keyhole::bench {

// The cases that `only` names: a comma-separated list in which * matches any text. A case of
// several batch entries has that many times the heads. Throws Error(usage), with a list of all
// names, if one matches no case; `source` names the text in errors.
std::vector<Case> parse_cases(std::string_view text, Operation operation, const std::string& source,
                              const std::string& only = "*");
// The built-in cases, bench/cases/cpu.txt or gpu.txt. If `only` is empty, all but the special ones
// that the head of gpu.txt explains.
std::vector<Case> built_in_cases(Operation operation, const Device& device = {},
                                 const std::string& only = "");
std::vector<Case> cases_from_file(const std::string& path, Operation operation,
                                  const std::string& only);

}  // namespace keyhole::bench
