// src/base/check.cpp
#include "base/check.h"

#include <sstream>

namespace keyhole {

void append_to(std::string& text, double number) {
  std::ostringstream stream;
  stream.imbue(std::locale::classic());
  stream << number;
  text += stream.str();
}

}  // namespace keyhole
