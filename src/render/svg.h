// src/render/svg.h
// A picture as an SVG document that follows the reader's light or dark theme.
#pragma once

#include <string>

#include "render/picture.h"

namespace keyhole {

inline constexpr int64_t kSvgCells = 256;  // beyond, the file grows and the eye does not see more

std::string picture_svg(const Picture& picture);
std::string escape_markup(std::string_view text);  // & < > " for SVG and HTML

}  // namespace keyhole
