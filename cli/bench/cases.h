// cli/bench/cases.h
// Reads case files: one case a line, as bench/cases/*.txt explain themselves.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/case.h"

namespace keyhole::bench {

// `source` names the text in errors.
std::vector<Case> parse_cases(std::string_view text, Operation operation,
                              const std::string& source);
// The cases that were built in: bench/cases/forward.txt or backward.txt, and gpu.txt for both.
std::vector<Case> built_in_cases(Operation operation, const Device& device = {});
std::vector<Case> cases_from_file(const std::string& path, Operation operation);

// The one with that name, or an Error(usage) that lists the names.
Case find_case(const std::vector<Case>& cases, const std::string& name);

}  // namespace keyhole::bench
