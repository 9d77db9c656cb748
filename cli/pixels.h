// cli/pixels.h
// A picture as pixels (a title, axes with the positions of queries and keys, and the cells) and as
// a PNG file. Builds without libpng refuse by name and point to --svg.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "render/picture.h"

namespace keyhole::cli {

// Letters made of pixels: no font file, no library. ASCII; what is not becomes a box. Calls
// dot(x, y) for every dot of the text; x and y count from its left upper corner.
inline constexpr int64_t kLetterWidth = 6, kLetterHeight = 7;  // with the gap; without descenders
void set_text(std::string_view text, const std::function<void(int64_t x, int64_t y)>& dot);

struct Rgb {
  uint8_t r, g, b;
  bool operator==(const Rgb&) const = default;
};

struct Pixels {
  int64_t width = 0, height = 0;
  std::vector<Rgb> colours;  // row by row from the top
  Rgb at(int64_t x, int64_t y) const { return colours[size_t(y * width + x)]; }
};

Pixels picture_pixels(const Picture& picture);

inline constexpr int64_t kPngCells = 1024;
bool can_write_png();
std::string picture_png(const Picture& picture);  // the bytes of the file
void refuse_png();  // throws Error(unsupported) when this build has no libpng

}  // namespace keyhole::cli
