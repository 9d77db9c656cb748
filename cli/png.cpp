// cli/png.cpp
// Pixels from cells, with libpng's simplified interface where this build has it.
#include "cli/png.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#ifdef KEYHOLE_HAVE_PNG
#include <png.h>
#endif

namespace keyhole::cli {

void refuse_png() {
  if (can_write_png()) return;
  throw Error(
      ErrorKind::unsupported,
      "this build cannot write PNG files, because libpng was not found when it was built; use "
      "--svg FILE, or install libpng-dev and build again");
}

#ifdef KEYHOLE_HAVE_PNG
namespace {

struct Rgb {
  uint8_t r, g, b;
};
constexpr Rgb kPaper{255, 255, 255}, kInk{33, 102, 196}, kPale{214, 228, 247}, kLine{227, 231, 236},
    kFrame{140, 150, 162};
constexpr int64_t kSide = 768;  // pixels of the longer side, at least; cells are whole pixels

Rgb colour_of(uint8_t share) {
  if (share == Picture::kAbsent) return kPaper;
  if (share == Picture::kFull) return kInk;
  const auto mix = [&](uint8_t from, uint8_t to) {
    return uint8_t(from + (to - from) * 3 * share / (4 * 255));  // stays visibly short of full
  };
  return {mix(kPale.r, kInk.r), mix(kPale.g, kInk.g), mix(kPale.b, kInk.b)};
}

}  // namespace

bool can_write_png() { return true; }

std::string picture_png(const Picture& picture) {
  const int64_t longer = std::max<int64_t>({picture.rows, picture.cols, 1});
  const int64_t unit = std::max<int64_t>(1, kSide / longer);
  const int64_t width = picture.cols * unit + 2,
                height = picture.rows * unit + 2;  // 1 pixel of frame
  const bool has_grid = unit >= 6;
  std::vector<Rgb> pixels(size_t(width * height), kFrame);
  for (int64_t y = 1; y + 1 < height; ++y) {
    for (int64_t x = 1; x + 1 < width; ++x) {
      const int64_t row = (y - 1) / unit, col = (x - 1) / unit;
      const bool is_line =
          has_grid && (((y - 1) % unit == 0 && row > 0) || ((x - 1) % unit == 0 && col > 0));
      pixels[size_t(y * width + x)] = is_line ? kLine : colour_of(picture.at(row, col));
    }
  }
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = png_uint_32(width), image.height = png_uint_32(height);
  image.format = PNG_FORMAT_RGB;
  // Asked without memory, libpng says how much it needs.
  std::string bytes;
  png_alloc_size_t size = 0;
  bool is_made = png_image_write_to_memory(&image, nullptr, &size, 0, pixels.data(), 0, nullptr);
  if (is_made) {
    bytes.resize(size);
    is_made = png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels.data(), 0, nullptr);
  }
  KEYHOLE_ASSERT(is_made, "libpng: ", image.message);
  bytes.resize(size);
  return bytes;
}
#else
bool can_write_png() { return false; }
std::string picture_png(const Picture&) {
  refuse_png();
  return {};
}
#endif

}  // namespace keyhole::cli
