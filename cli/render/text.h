// cli/render/text.h
// A picture as lines of text: '#' attends, '.' does not, '+' is a cell where only some pairs do.
#pragma once

#include <string>
#include <vector>

#include "cli/render/picture.h"

namespace keyhole::cli {

inline constexpr int64_t kTextCells = 64;  // 127 columns: what a wide terminal holds

std::vector<std::string> picture_rows(const Picture& picture);  // "#.+", without blanks
std::string picture_text(const Picture& picture);  // headline, scale, rows; coloured on a terminal

}  // namespace keyhole::cli
