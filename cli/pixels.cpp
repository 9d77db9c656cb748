// cli/pixels.cpp
// Cells as squares of whole pixels, below a title and beside positions; and as a file, with
// libpng's simplified interface where this build has it.
#include "cli/pixels.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/int_math.h"
#ifdef KEYHOLE_HAVE_PNG
#include <png.h>
#endif

namespace keyhole::cli {
namespace {

constexpr Rgb kPaper{255, 255, 255}, kInk{33, 102, 196}, kPale{214, 228, 247}, kLine{227, 231, 236},
    kFrame{140, 150, 162}, kText{28, 36, 48}, kSoft{96, 107, 122}, kKept{185, 79, 5},
    kSomeKept{240, 168, 104};
constexpr int64_t kSide = 768;  // pixels of the longer side, at least; cells are whole pixels
constexpr int64_t kTop = 112, kMargin = 20, kLeastWidth = 520;
constexpr int64_t kDot = 2;  // pixels a side of a dot of a letter

// From pale to full, for a share that is neither none nor all.
Rgb mixed(uint8_t share, Rgb pale, Rgb full) {
  const auto mix = [&](uint8_t from, uint8_t to) {
    return uint8_t(from + (to - from) * 3 * share / (4 * 255));  // stays visibly short of full
  };
  return {mix(pale.r, full.r), mix(pale.g, full.g), mix(pale.b, full.b)};
}

Rgb colour_of(const Picture& picture, int64_t row, int64_t col) {
  const uint8_t share = picture.at(row, col);
  if (share == Picture::kAbsent) return kPaper;
  if (picture.has_kept()) {  // the pattern pale, the second layer in another colour
    const uint8_t kept = picture.kept_at(row, col);
    if (kept == Picture::kAbsent) return kPale;
    return kept == Picture::kFull ? kKept : mixed(kept, kSomeKept, kKept);
  }
  return share == Picture::kFull ? kInk : mixed(share, kPale, kInk);
}

// The letters as pictures, sixteen beside each other. The base line is under the seventh row.
constexpr int64_t kBeside = 16, kRows = 9;
// clang-format off
constexpr std::string_view kPictures[] = {  // in the order of ASCII, from the blank; last a box
// blank     !     "     #     $     %     &     '     (     )     *     +     ,     -     .     /
"..... ..#.. .#.#. .#.#. ..#.. ##... .##.. ..#.. ...#. .#... ..... ..... ..... ..... ..... ....#",
"..... ..#.. .#.#. .#.#. .#### ##..# #..#. ..#.. ..#.. ..#.. ..#.. ..#.. ..... ..... ..... ....#",
"..... ..#.. ..... ##### #.#.. ...#. #.#.. ..... .#... ...#. #.#.# ..#.. ..... ..... ..... ...#.",
"..... ..#.. ..... .#.#. .###. ..#.. .#... ..... .#... ...#. .###. ##### ..... ##### ..... ..#..",
"..... ..#.. ..... ##### ..#.# .#... #.#.# ..... .#... ...#. #.#.# ..#.. ..... ..... ..... .#...",
"..... ..... ..... .#.#. ####. #..## #..#. ..... ..#.. ..#.. ..#.. ..#.. ..#.. ..... .##.. #....",
"..... ..#.. ..... .#.#. ..#.. ...## .##.# ..... ...#. .#... ..... ..... ..#.. ..... .##.. #....",
"..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... .#... ..... ..... .....",
"..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... .....",
// 0     1     2     3     4     5     6     7     8     9     :     ;     <     =     >     ?
".###. ..#.. .###. ##### ...#. ##### ..##. ##### .###. .###. ..... ..... ...#. ..... .#... .###.",
"#...# .##.. #...# ...#. ..##. #.... .#... ....# #...# #...# .##.. .##.. ..#.. ..... ..#.. #...#",
"#..## ..#.. ....# ..#.. .#.#. ####. #.... ...#. #...# #...# .##.. .##.. .#... ##### ...#. ....#",
"#.#.# ..#.. ...#. ...#. #..#. ....# ####. ..#.. .###. .#### ..... ..... #.... ..... ....# ...#.",
"##..# ..#.. ..#.. ....# ##### ....# #...# ..#.. #...# ....# .##.. .##.. .#... ##### ...#. ..#..",
"#...# ..#.. .#... #...# ...#. #...# #...# .#... #...# ...#. .##.. ..#.. ..#.. ..... ..#.. .....",
".###. .###. ##### .###. ...#. .###. .###. .#... .###. .##.. ..... .#... ...#. ..... .#... ..#..",
"..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... .....",
"..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... .....",
// @     A     B     C     D     E     F     G     H     I     J     K     L     M     N     O
".###. ..#.. ####. .###. ####. ##### ##### .###. #...# .###. ..### #...# #.... #...# #...# .###.",
"#...# .#.#. #...# #...# #...# #.... #.... #...# #...# ..#.. ...#. #..#. #.... ##.## ##..# #...#",
"#.### #...# #...# #.... #...# #.... #.... #.... #...# ..#.. ...#. #.#.. #.... #.#.# ##..# #...#",
"#.#.# #...# ####. #.... #...# ####. ####. #.### ##### ..#.. ...#. ##... #.... #.#.# #.#.# #...#",
"#.##. ##### #...# #.... #...# #.... #.... #...# #...# ..#.. ...#. #.#.. #.... #...# #..## #...#",
"#.... #...# #...# #...# #...# #.... #.... #...# #...# ..#.. #..#. #..#. #.... #...# #..## #...#",
".#### #...# ####. .###. ####. ##### #.... .###. #...# .###. .##.. #...# ##### #...# #...# .###.",
"..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... .....",
"..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... .....",
// P     Q     R     S     T     U     V     W     X     Y     Z     [     \     ]     ^     _
"####. .###. ####. .#### ##### #...# #...# #...# #...# #...# ##### .###. #.... .###. ..#.. .....",
"#...# #...# #...# #.... ..#.. #...# #...# #...# #...# #...# ....# .#... #.... ...#. .#.#. .....",
"#...# #...# #...# #.... ..#.. #...# #...# #...# .#.#. .#.#. ...#. .#... .#... ...#. #...# .....",
"####. #...# ####. .###. ..#.. #...# #...# #.#.# ..#.. ..#.. ..#.. .#... ..#.. ...#. ..... .....",
"#.... #.#.# #.#.. ....# ..#.. #...# .#.#. #.#.# .#.#. ..#.. .#... .#... ...#. ...#. ..... .....",
"#.... #..#. #..#. ....# ..#.. #...# .#.#. ##.## #...# ..#.. #.... .#... ....# ...#. ..... .....",
"#.... .##.# #...# ####. ..#.. .###. ..#.. #...# #...# ..#.. ##### .###. ....# .###. ..... #####",
"..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... .....",
"..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... ..... .....",
// `     a     b     c     d     e     f     g     h     i     j     k     l     m     n     o
".#... ..... #.... ..... ....# ..... ..### ..... #.... ..#.. ...#. #.... .##.. ..... ..... .....",
"..#.. ..... #.... ..... ....# ..... .#... ..... #.... ..... ..... #.... ..#.. ..... ..... .....",
"..... .###. ####. .#### .#### .###. ####. .#### ####. .##.. ..##. #..#. ..#.. ##.#. ####. .###.",
"..... ....# #...# #.... #...# #...# .#... #...# #...# ..#.. ...#. #.#.. ..#.. #.#.# #...# #...#",
"..... .#### #...# #.... #...# ##### .#... #...# #...# ..#.. ...#. ##... ..#.. #.#.# #...# #...#",
"..... #...# #...# #.... #...# #.... .#... #...# #...# ..#.. ...#. #.#.. ..#.. #.#.# #...# #...#",
"..... .#### ####. .#### .#### .#### .#... .#### #...# .###. ...#. #..#. .###. #.#.# #...# .###.",
"..... ..... ..... ..... ..... ..... ..... ....# ..... ..... #..#. ..... ..... ..... ..... .....",
"..... ..... ..... ..... ..... ..... ..... .###. ..... ..... .##.. ..... ..... ..... ..... .....",
// p     q     r     s     t     u     v     w     x     y     z     {     |     }     ~     box
"..... ..... ..... ..... .#... ..... ..... ..... ..... ..... ..... ...## ..#.. ##... ..... #####",
"..... ..... ..... ..... .#... ..... ..... ..... ..... ..... ..... ..#.. ..#.. ..#.. ..... #...#",
"####. .#### #.##. .#### ####. #...# #...# #.#.# #...# #...# ##### ..#.. ..#.. ..#.. .#... #...#",
"#...# #...# ##... #.... .#... #...# #...# #.#.# .#.#. #...# ...#. .#... ..#.. ...#. #.#.# #...#",
"#...# #...# #.... .###. .#... #...# .#.#. #.#.# ..#.. #...# ..#.. ..#.. ..#.. ..#.. ...#. #...#",
"#...# #...# #.... ....# .#... #...# .#.#. #.#.# .#.#. #...# .#... ..#.. ..#.. ..#.. ..... #...#",
"####. .#### #.... ####. ..##. .#### ..#.. .#.#. #...# .#### ##### ...## ..#.. ##... ..... #####",
"#.... ....# ..... ..... ..... ..... ..... ..... ..... ....# ..... ..... ..... ..... ..... .....",
"#.... ....# ..... ..... ..... ..... ..... ..... ..... .###. ..... ..... ..... ..... ..... .....",
};
// clang-format on

// Draws on pixels; what lies outside them is dropped.
class Canvas {
 public:
  Canvas(int64_t width, int64_t height)
      : pixels_{width, height, std::vector<Rgb>(size_t(width * height), kPaper)} {}

  int64_t width() const { return pixels_.width; }
  Pixels take() { return std::move(pixels_); }

  void fill(int64_t x, int64_t y, int64_t width, int64_t height, Rgb colour) {
    const int64_t begin = std::max<int64_t>(x, 0), end = std::min(x + width, pixels_.width);
    for (int64_t at = std::max<int64_t>(y, 0); at < std::min(y + height, pixels_.height); ++at) {
      if (begin < end) {
        std::fill_n(pixels_.colours.begin() + at * pixels_.width + begin, end - begin, colour);
      }
    }
  }
  void write(int64_t x, int64_t y, std::string_view text, Rgb colour, int64_t dot = kDot) {
    set_text(text, [&](int64_t column, int64_t row) {
      fill(x + column * dot, y + row * dot, dot, dot, colour);
    });
  }
  // From top to bottom, as if the page were turned to the left.
  void write_down(int64_t x, int64_t y, std::string_view text, Rgb colour) {
    set_text(text, [&](int64_t column, int64_t row) {
      fill(x + (kLetterHeight - 1 - row) * kDot, y + column * kDot, kDot, kDot, colour);
    });
  }

 private:
  Pixels pixels_;
};

int64_t pixels_of(std::string_view text, int64_t dot = kDot) {
  return int64_t(text.size()) * kLetterWidth * dot;
}

// Where the labels of an axis stand: positions that are multiples of 1, 2, 5, 10, ..., and how far
// from the first cell, in pixels.
struct Tick {
  int64_t position, pixel;
};
std::vector<Tick> ticks(int64_t first, int64_t count, int64_t cell, int64_t unit, int64_t apart) {
  int64_t step = 1;
  for (int64_t times = 0; double(step) * double(unit) / double(cell) < double(apart); ++times) {
    step = times % 3 == 1 ? step / 2 * 5 : step * 2;
  }
  std::vector<Tick> found;
  for (int64_t at = ceil_div(first, step) * step; at < first + count; at += step) {
    const double cells = double(at - first) / double(cell);
    found.push_back({at, int64_t(cells * double(unit)) + (cell == 1 ? unit / 2 : 0)});
  }
  return found;
}

// In one line, smaller where it is long, and cut where that is not enough.
void write_title(Canvas& canvas, const std::string& text, int64_t y, Rgb colour) {
  const int64_t room = canvas.width() - 2 * kMargin;
  const int64_t dot = pixels_of(text) <= room ? kDot : 1;
  const size_t most = size_t(room / (kLetterWidth * dot));
  canvas.write(kMargin, y + (kDot - dot) * kLetterHeight,
               text.size() <= most ? text : text.substr(0, most - 3) + "...", colour, dot);
}

void draw_cells(Canvas& canvas, const Picture& picture, int64_t left, int64_t unit) {
  const bool has_grid = unit >= 6;
  for (int64_t row = 0; row < picture.rows; ++row) {
    for (int64_t col = 0; col < picture.cols; ++col) {
      const int64_t x = left + col * unit, y = kTop + row * unit;
      const int64_t line_above = has_grid && row > 0, line_left = has_grid && col > 0;
      canvas.fill(x, y, unit, unit, kLine);
      canvas.fill(x + line_left, y + line_above, unit - line_left, unit - line_above,
                  colour_of(picture, row, col));
    }
  }
}

// Positions along both sides.
void draw_axes(Canvas& canvas, const Picture& picture, int64_t left, int64_t unit) {
  const int64_t width = picture.cols * unit, height = picture.rows * unit;
  canvas.fill(left - 1, kTop - 1, width + 2, 1, kFrame);
  canvas.fill(left - 1, kTop + height, width + 2, 1, kFrame);
  canvas.fill(left - 1, kTop - 1, 1, height + 2, kFrame);
  canvas.fill(left + width, kTop - 1, 1, height + 2, kFrame);
  canvas.write(left, kTop - 50, "keys k ->", kSoft);
  canvas.write_down(kMargin - 6, kTop, "queries q ->", kSoft);
  constexpr int64_t kTick = 5, kGap = 3, kHeight = kLetterHeight * kDot;
  const Shape& shape = picture.shape;
  const int64_t widest = pixels_of(std::to_string(shape.k_len));
  for (const Tick& tick : ticks(0, shape.k_len, picture.cell, unit, widest + 24)) {
    const std::string label = std::to_string(tick.position);
    const int64_t x = left + tick.pixel, begin = x - pixels_of(label) / 2 + 1;
    canvas.fill(x, kTop - 1 - kTick, 1, kTick, kFrame);
    if (begin + pixels_of(label) > canvas.width()) continue;
    canvas.write(begin, kTop - kTick - kGap - kHeight - 1, label, kSoft);
  }
  for (const Tick& tick : ticks(shape.q_offset(), shape.q_len, picture.cell, unit, 2 * kHeight)) {
    const std::string label = std::to_string(tick.position);
    const int64_t y = kTop + tick.pixel;
    canvas.fill(left - 1 - kTick, y, kTick, 1, kFrame);
    canvas.write(left - kTick - kGap - pixels_of(label), y - kHeight / 2, label, kSoft);
  }
}

// Room for the longest position of a query, and for the name of the axis.
int64_t left_of(const Shape& shape) {
  const std::string first = std::to_string(shape.q_offset()),
                    last = std::to_string(shape.q_offset() + shape.q_len);
  return kMargin + 24 + std::max(pixels_of(first), pixels_of(last));
}

}  // namespace

void set_text(std::string_view text, const std::function<void(int64_t x, int64_t y)>& dot) {
  int64_t left = 0;
  for (const char c : text) {
    if ((c & 0xc0) == 0x80) continue;  // the rest of a letter of several bytes
    const int64_t place = c >= ' ' && c <= '~' ? c - ' ' : '~' + 1 - ' ';
    for (int64_t y = 0; y < kRows; ++y) {
      const std::string_view row = kPictures[place / kBeside * kRows + y];
      for (int64_t x = 0; x < kLetterWidth - 1; ++x) {
        if (row[size_t(place % kBeside * kLetterWidth + x)] == '#') dot(left + x, y);
      }
    }
    left += kLetterWidth;
  }
}

Pixels picture_pixels(const Picture& picture) {
  const int64_t longer = std::max<int64_t>({picture.rows, picture.cols, 1});
  const int64_t unit = std::max<int64_t>(1, kSide / longer);
  const int64_t left = left_of(picture.shape);
  Canvas canvas(std::max(left + picture.cols * unit + kMargin, kLeastWidth),
                kTop + picture.rows * unit + kMargin);
  write_title(canvas, title(picture), 14, kText);
  write_title(canvas, caption(picture), 36, kSoft);
  draw_cells(canvas, picture, left, unit);
  draw_axes(canvas, picture, left, unit);
  return canvas.take();
}

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
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string bytes(size, '\0');
  const bool is_made =
      png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels.colours.data(), 0, nullptr);
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
