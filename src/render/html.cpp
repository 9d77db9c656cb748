// src/render/html.cpp
// Puts the page together: markup, style, and the script with its DATA.
#include "render/html.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/int_math.h"
#include "keyhole/version.h"
#include "render/html_data.h"
#include "render/svg.h"

namespace keyhole {
namespace {

constexpr int64_t kMostCells = 2048;

// "pairs     230272 of 1048576" becomes a row of two cells; what has no second column, one cell.
std::string explain_rows(const std::string& explain) {
  std::string rows;
  for (size_t begin = 0; begin < explain.size();) {
    const size_t end = std::min(explain.find('\n', begin), explain.size());
    const std::string line = explain.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const size_t gap = line.find("  ", line.find_first_not_of(' '));
    const size_t value = line.find_first_not_of(' ', gap);
    rows += gap == std::string::npos || value == std::string::npos
                ? say("<tr><td colspan=\"2\">", escape_markup(line), "</td></tr>\n")
                : say("<tr><th>", escape_markup(line.substr(0, gap)), "</th><td>",
                      escape_markup(line.substr(value)), "</td></tr>\n");
  }
  return rows;
}

}  // namespace

int64_t html_cells(const Shape& shape) {
  // Cells are powers of two, so that the usual tiles are whole cells.
  const int64_t longer = std::max<int64_t>({shape.q_len, shape.k_len, 1});
  const int64_t cell = int64_t(std::bit_ceil(uint64_t(ceil_div(longer, kMostCells))));
  return ceil_div(longer, cell);
}

std::string picture_html(const Pattern& pattern, const Picture& picture,
                         const std::string& explain) {
  // Inside <script>, "</" could end it early; \u003c is the same character to JSON.
  std::string data = page_data(pattern, picture);
  for (size_t at = 0; (at = data.find('<', at)) != std::string::npos; at += 6)
    data.replace(at, 1, "\\u003c");
  const std::string title = escape_markup(keyhole::title(picture));
  std::string page =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  page += say("<meta name=\"generator\" content=\"keyhole ", version(), "\">\n<title>", title,
              "</title>\n<style>", kPageStyle, "</style>\n</head>\n<body>\n");
  page += say("<header><div><h1 class=\"mono\">", title, "</h1><p id=\"caption\">",
              escape_markup(caption(picture)),
              "</p></div><button id=\"theme\" title=\"light or dark\">◐ theme</button></header>\n");
  page += R"html(<main>
<div class="card view">
<div class="bar"><button id="in" title="zoom in">+</button><button id="out" title="zoom out">−</button><button id="fit">fit</button>
<span class="gap"></span><label id="batches" hidden>batch entry <select id="batch"></select></label><label id="heads" hidden>head <select id="head"></select></label>
<label id="inks" hidden>colours <select id="ink"><option value="parts">by part</option><option value="one">one</option></select></label><label>tiles <select id="tile"><option value="0">off</option></select></label></div>
<div class="stage"><canvas id="canvas" tabindex="0" aria-label="one row a query, one column a key"></canvas></div>
)html";
  page += "<div class=\"legend\" id=\"legend\"></div>\n";
  page += R"html(</div>
<aside>
<section class="card"><h2>Why</h2><div class="verdict" id="verdict"></div><ul class="why" id="why"></ul><p class="sees" id="sees"></p></section>
<section class="card" id="tilecard" hidden><h2>Tiles</h2><table id="tiles"></table></section>
)html";
  if (!explain.empty()) {
    page += say("<section class=\"card\"><h2>Plan</h2><table id=\"explain\">\n",
                explain_rows(explain), "</table></section>\n");
  }
  page += say(
      "</aside>\n</main>\n<footer>Wheel or <kbd>+</kbd> <kbd>-</kbd> zoom, drag moves, click pins "
      "a pair, arrow keys walk from there, <kbd>0</kbd> fits. Made by keyhole ",
      version(), ".</footer>\n");
  return page + "<script>\n'use strict';\nconst DATA = " + data + ";\n" + kPageLeaves + kPageModel +
         kPageScript + "</script>\n</body>\n</html>\n";
}

}  // namespace keyhole
