// src/render/text.h
// A picture as lines of text: '#' attends, '.' does not, '+' is a cell where only some pairs do.
// With a second layer '#' keeps weight, '-' attends without, and '+' is a cell where only some
// pairs keep it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "render/picture.h"

namespace keyhole {

inline constexpr int64_t kTextCells = 64;  // 127 columns: what a wide terminal holds

std::vector<std::string> picture_rows(const Picture& picture);  // "#.+-", without blanks

// Dresses a stretch of one glyph, for terminals that have colours.
using Paint = std::function<std::string(char glyph, const std::string& stretch)>;
std::string picture_text(const Picture& picture, const Paint& paint = {});  // headline, scale, rows

}  // namespace keyhole
