// src/render/svg.cpp
// One rectangle for each stretch of equal cells; equal stretches in neighbouring rows become one.
#include "render/svg.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "render/number_text.h"

namespace keyhole {
namespace {

constexpr double kSide = 512;  // of the longer side of the grid, in user units
constexpr double kLeft = 46, kTop = 74, kMargin = 20;

constexpr const char* kStyle = R"(<style>
svg{--paper:#fff;--ink:#1c2430;--soft:#6b7685;--line:#e3e7ec;--frame:#b9c1cb;--a1:#c9dcf5;--a2:#8fb6ea;--a3:#5a90dc;--a4:#2166c4}
@media(prefers-color-scheme:dark){svg{--paper:#12161c;--ink:#e6ebf2;--soft:#94a0b0;--line:#252c36;--frame:#465060;--a1:#1f3a5c;--a2:#2d5f9a;--a3:#4287d0;--a4:#6fb1ff}}
.p{fill:var(--paper)}.t{fill:var(--ink);font-family:ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-weight:600}
.d{fill:var(--soft);font-family:system-ui,"DejaVu Sans",sans-serif;font-size:12.5px}
.g{stroke:var(--line);stroke-width:1;fill:none}.f{stroke:var(--frame);stroke-width:1;fill:none}
.c1{fill:var(--a1)}.c2{fill:var(--a2)}.c3{fill:var(--a3)}.c4{fill:var(--a4)}
</style>
)";
constexpr const char* kKeptStyle = R"(<style>
svg{--k1:#f0a868;--k2:#e08339;--k3:#d06a1c;--k4:#b94f05}
@media(prefers-color-scheme:dark){svg{--k1:#a85a1c;--k2:#cf7429;--k3:#ee8f3f;--k4:#ffae66}}
.k1{fill:var(--k1)}.k2{fill:var(--k2)}.k3{fill:var(--k3)}.k4{fill:var(--k4)}
</style>
)";

struct Stretch {
  int64_t row, rows, begin, end;
  int level;  // 0: absent ... 4: full
};

// Partial cells come in three shades: enough to see density, few enough to merge.
int level_of(uint8_t share) {
  return share == Picture::kAbsent ? 0 : share == Picture::kFull ? 4 : 1 + share * 3 / 256;
}

// Of one layer, which `level(row, column)` gives.
template <class Level>
std::vector<Stretch> stretches(const Picture& picture, const Level& level_at) {
  std::vector<Stretch> done, open;  // open: those of the row above, which may grow
  for (int64_t row = 0; row < picture.rows; ++row) {
    std::vector<Stretch> current;
    for (int64_t begin = 0; begin < picture.cols;) {
      const int level = level_at(row, begin);
      int64_t end = begin + 1;
      while (end < picture.cols && level_at(row, end) == level) ++end;
      if (level > 0) current.push_back({row, 1, begin, end, level});
      begin = end;
    }
    for (const Stretch& above : open) {
      const auto same = std::find_if(current.begin(), current.end(), [&](const Stretch& s) {
        return s.begin == above.begin && s.end == above.end && s.level == above.level;
      });
      if (same == current.end()) {
        done.push_back(above);
      } else {
        same->row = above.row, same->rows = above.rows + 1;
      }
    }
    open = std::move(current);
  }
  done.insert(done.end(), open.begin(), open.end());
  return done;
}

}  // namespace

std::string escape_markup(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string picture_svg(const Picture& picture) {
  const int64_t longer = std::max<int64_t>({picture.rows, picture.cols, 1});
  const double unit = kSide / double(longer);
  const double width = unit * double(picture.cols), height = unit * double(picture.rows);
  const std::string plain_title = keyhole::title(picture);
  const std::string title = escape_markup(plain_title), details = escape_markup(caption(picture));
  // Text is not measured here: a monospaced em is 0.6 wide, and a long pattern is set smaller.
  const double title_size = std::clamp(
      (kSide + kLeft) / (0.62 * double(std::max<size_t>(plain_title.size(), 1))), 7.0, 17.0);
  const double full_width = kLeft + std::max(width, 420.0) + kMargin;
  const std::string full_height = fixed_text(kTop + height + kMargin, 0);
  const std::string wide = fixed_text(full_width, 0);
  std::string svg =
      say("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", wide, " ", full_height,
          "\" width=\"", wide, "\" height=\"", full_height, "\" role=\"img\" aria-label=\"", title,
          "\">\n<title>", title, ": ", details, "</title>\n", kStyle,
          picture.has_kept() ? kKeptStyle : "",
          "<rect class=\"p\" width=\"100%\" height=\"100%\"/>\n<text class=\"t\" x=\"", kMargin,
          "\" y=\"26\" font-size=\"", fixed_text(title_size, 1), "\">", title,
          "</text>\n<text class=\"d\" x=\"", kMargin, "\" y=\"45\">", details, "</text>\n");
  svg +=
      say("<text class=\"d\" x=\"", fixed_text(kLeft, 1), "\" y=\"", fixed_text(kTop - 8, 1),
          "\">keys k →</text>\n<text class=\"d\" transform=\"translate(", fixed_text(kLeft - 18, 1),
          " ", fixed_text(kTop, 1), ") rotate(90)\">queries q →</text>\n");
  svg += say("<g transform=\"translate(", kLeft, " ", kTop, ") scale(", significant_text(unit, 6),
             ")\" shape-rendering=\"crispEdges\">\n");
  const auto draw = [&](char layer, const std::vector<Stretch>& all) {
    for (const Stretch& s : all) {
      svg += say("<rect class=\"", layer, s.level, "\" x=\"", s.begin, "\" y=\"", s.row,
                 "\" width=\"", s.end - s.begin, "\" height=\"", s.rows, "\"/>\n");
    }
  };
  if (picture.has_kept()) {  // the pattern pale, the second layer in another colour over it
    draw('c',
         stretches(picture, [&](int64_t r, int64_t c) { return picture.at(r, c) > 0 ? 1 : 0; }));
    draw('k',
         stretches(picture, [&](int64_t r, int64_t c) { return level_of(picture.kept_at(r, c)); }));
  } else {
    draw('c', stretches(picture, [&](int64_t r, int64_t c) { return level_of(picture.at(r, c)); }));
  }
  svg += "</g>\n";
  if (unit >= 6) {  // room for a grid
    std::string path;
    for (int64_t c = 1; c < picture.cols; ++c) {
      path +=
          say("M", fixed_text(kLeft + unit * double(c), 2), " ", kTop, "v", fixed_text(height, 2));
    }
    for (int64_t r = 1; r < picture.rows; ++r) {
      path +=
          say("M", kLeft, " ", fixed_text(kTop + unit * double(r), 2), "h", fixed_text(width, 2));
    }
    svg += say("<path class=\"g\" d=\"", path, "\"/>\n");
  }
  return svg + say("<rect class=\"f\" x=\"", kLeft, "\" y=\"", kTop, "\" width=\"",
                   fixed_text(width, 2), "\" height=\"", fixed_text(height, 2), "\"/>\n</svg>\n");
}

}  // namespace keyhole
