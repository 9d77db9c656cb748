// src/render/html_data.h
// What the script of the page reads (page_script.cpp): which pairs attend, and why.
#pragma once

#include <string>

#include "render/picture.h"

namespace keyhole {

// JSON. The picture's own head and batch entry come first; where the pattern tells heads or batch
// entries apart, the others follow, as far as they fit in a page.
std::string page_data(const Pattern& pattern, const Picture& picture);

}  // namespace keyhole
