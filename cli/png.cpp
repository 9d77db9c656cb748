// cli/png.cpp
// A file from pixels, with libpng's simplified interface where this build has it.
#include "cli/png.h"

#include "base/check.h"
#include "cli/pixels.h"
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
bool can_write_png() { return true; }

std::string picture_png(const Picture& picture) {
  const Pixels pixels = picture_pixels(picture);
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = png_uint_32(pixels.width), image.height = png_uint_32(pixels.height);
  image.format = PNG_FORMAT_RGB;
  // Asked without memory, libpng says how much it needs.
  std::string bytes;
  png_alloc_size_t size = 0;
  bool is_made =
      png_image_write_to_memory(&image, nullptr, &size, 0, pixels.colours.data(), 0, nullptr);
  if (is_made) {
    bytes.resize(size);
    is_made = png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels.colours.data(), 0,
                                        nullptr);
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
