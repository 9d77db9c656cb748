// src/base/version.cpp
// The version as text, made from the numbers of the header so that they cannot disagree.
#include "keyhole/version.h"

#include <string>

#include "base/check.h"

namespace keyhole {

const char* version() {
  static const std::string text = say(kVersionMajor, '.', kVersionMinor, '.', kVersionPatch);
  return text.c_str();
}

}  // namespace keyhole
