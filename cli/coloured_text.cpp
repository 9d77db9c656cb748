// cli/coloured_text.cpp
#include "cli/coloured_text.h"

#include "cli/common.h"
#include "render/text.h"

namespace keyhole::cli {

std::string coloured_text(const Picture& picture) {
  const bool has_kept = picture.has_kept();
  return picture_text(picture, [has_kept](char glyph, const std::string& stretch) {
    if (glyph == '.') return paint(Ink::dim, stretch);
    if (has_kept) return paint(glyph == '-' ? Ink::cyan : Ink::yellow, stretch);
    return paint(glyph == '#' ? Ink::cyan : Ink::yellow, stretch);
  });
}

}  // namespace keyhole::cli
