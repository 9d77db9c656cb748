// cli/coloured_text.h
#pragma once

#include <string>

#include "render/picture.h"

namespace keyhole::cli {

// The picture as text, coloured on a terminal that wants colours.
std::string coloured_text(const Picture& picture);

}  // namespace keyhole::cli
