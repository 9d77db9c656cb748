// cli/coloured_text.cpp
#include "cli/coloured_text.h"

#include "cli/common.h"
#include "render/text.h"

namespace keyhole::cli {

std::string coloured_text(const Picture& picture) {
  return picture_text(picture, [](char glyph, const std::string& stretch) {
    return paint(glyph == '#' ? Ink::cyan : glyph == '+' ? Ink::yellow : Ink::dim, stretch);
  });
}

}  // namespace keyhole::cli
