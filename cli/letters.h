// cli/letters.h
// Letters for pictures made of pixels: no font file, no library. ASCII; what is not becomes a box.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace keyhole::cli {

inline constexpr int64_t kLetterWidth = 6, kLetterHeight = 7;  // with the gap; without descenders

// Calls dot(x, y) for every dot of the text; x and y count from its left upper corner.
void set_text(std::string_view text, const std::function<void(int64_t x, int64_t y)>& dot);

}  // namespace keyhole::cli
