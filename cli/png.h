// cli/png.h
// A picture as a PNG file. Builds without libpng refuse by name and point to --svg.
#pragma once

#include <string>

#include "render/picture.h"

namespace keyhole::cli {

inline constexpr int64_t kPngCells = 1024;

bool can_write_png();
std::string picture_png(const Picture& picture);  // the bytes of the file
void refuse_png();  // throws Error(unsupported) when this build has no libpng

}  // namespace keyhole::cli
