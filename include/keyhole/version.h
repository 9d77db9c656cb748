// include/keyhole/version.h
#pragma once

namespace keyhole {

inline constexpr int kVersionMajor = 0, kVersionMinor = 1, kVersionPatch = 0;
const char* version();  // "0.1.0"

}  // namespace keyhole
