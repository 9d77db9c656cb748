// src/render/html.h
// A picture as one self-contained web page with zoom. It shows why a pair attends, the tiles and
// the cost.
#pragma once

#include <string>

#include "render/picture.h"

namespace keyhole {

// How many cells a side the page's picture should have: a bit a cell is at most 0.7 MB of page.
int64_t html_cells(const Shape& shape);

// `explain` is the text of the plan's report, "name   value" a line; empty: no table.
std::string picture_html(const Pattern& pattern, const Picture& picture,
                         const std::string& explain);

// The pieces of the page that are the same for all patterns (page_style.cpp, page_script.cpp).
extern const char* const kPageStyle;
extern const char* const kPageLeaves;
extern const char* const kPageModel;
extern const char* const kPageScript;

}  // namespace keyhole
