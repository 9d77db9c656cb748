// cli/render/svg.cpp
// One rectangle for each stretch of equal cells; equal stretches in neighbouring rows become one.
#include "cli/render/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace keyhole::cli {
namespace {

constexpr double kSide = 512;  // of the longer side of the grid, in user units
constexpr double kLeft = 46, kTop = 74, kMargin = 20;

struct Stretch {
  int64_t row, rows, begin, end;
  int level;  // 0: absent ... 4: full
};

// Partial cells come in three shades: enough to see density, few enough to merge.
int level_of(uint8_t share) {
  return share == Picture::kAbsent ? 0 : share == Picture::kFull ? 4 : 1 + share * 3 / 256;
}

std::vector<Stretch> stretches(const Picture& picture) {
  std::vector<Stretch> done, open;  // open: those of the row above, which may grow
  for (int64_t row = 0; row < picture.rows; ++row) {
    std::vector<Stretch> current;
    for (int64_t begin = 0; begin < picture.cols;) {
      const int level = level_of(picture.at(row, begin));
      int64_t end = begin + 1;
      while (end < picture.cols && level_of(picture.at(row, end)) == level) ++end;
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
  const std::string title = escape_markup(picture.pattern),
                    details = escape_markup(caption(picture));
  // Text is not measured here: a monospaced em is 0.6 wide, and a long pattern is set smaller.
  const double title_size = std::clamp(
      (kSide + kLeft) / (0.62 * double(std::max<size_t>(picture.pattern.size(), 1))), 7.0, 17.0);
  const double full_width = kLeft + std::max(width, 420.0) + kMargin;
  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" width="{0:.0f}" height="{1:.0f}" role="img" aria-label="{2}">
<title>{2}: {3}</title>
<style>
svg{{--paper:#fff;--ink:#1c2430;--soft:#6b7685;--line:#e3e7ec;--frame:#b9c1cb;--a1:#c9dcf5;--a2:#8fb6ea;--a3:#5a90dc;--a4:#2166c4}}
@media(prefers-color-scheme:dark){{svg{{--paper:#12161c;--ink:#e6ebf2;--soft:#94a0b0;--line:#252c36;--frame:#465060;--a1:#1f3a5c;--a2:#2d5f9a;--a3:#4287d0;--a4:#6fb1ff}}}}
.p{{fill:var(--paper)}}.t{{fill:var(--ink);font-family:ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-weight:600}}
.d{{fill:var(--soft);font-family:system-ui,"DejaVu Sans",sans-serif;font-size:12.5px}}
.g{{stroke:var(--line);stroke-width:1;fill:none}}.f{{stroke:var(--frame);stroke-width:1;fill:none}}
.c1{{fill:var(--a1)}}.c2{{fill:var(--a2)}}.c3{{fill:var(--a3)}}.c4{{fill:var(--a4)}}
</style>
<rect class="p" width="100%" height="100%"/>
<text class="t" x="{4}" y="26" font-size="{5:.1f}">{2}</text>
<text class="d" x="{4}" y="45">{3}</text>
)",
      full_width, kTop + height + kMargin, title, details, kMargin, title_size);
  svg += fmt::format(
      "<text class=\"d\" x=\"{:.1f}\" y=\"{:.1f}\">keys k →</text>\n"
      "<text class=\"d\" transform=\"translate({:.1f} {:.1f}) rotate(90)\">queries q →</text>\n",
      kLeft, kTop - 8, kLeft - 18, kTop);
  svg += fmt::format(
      "<g transform=\"translate({} {}) scale({:.6g})\" shape-rendering=\"crispEdges\">\n", kLeft,
      kTop, unit);
  for (const Stretch& s : stretches(picture)) {
    svg += fmt::format("<rect class=\"c{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n",
                       s.level, s.begin, s.row, s.end - s.begin, s.rows);
  }
  svg += "</g>\n";
  if (unit >= 6) {  // room for a grid
    std::string path;
    for (int64_t c = 1; c < picture.cols; ++c) {
      path += fmt::format("M{:.2f} {}v{:.2f}", kLeft + unit * double(c), kTop, height);
    }
    for (int64_t r = 1; r < picture.rows; ++r) {
      path += fmt::format("M{} {:.2f}h{:.2f}", kLeft, kTop + unit * double(r), width);
    }
    svg += fmt::format("<path class=\"g\" d=\"{}\"/>\n", path);
  }
  return svg +
         fmt::format(
             "<rect class=\"f\" x=\"{}\" y=\"{}\" width=\"{:.2f}\" height=\"{:.2f}\"/>\n</svg>\n",
             kLeft, kTop, width, height);
}

}  // namespace keyhole::cli
