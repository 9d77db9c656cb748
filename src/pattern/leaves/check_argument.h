// src/pattern/leaves/check_argument.h
// The check that the factories of the leaves share: the function, the value, what is accepted.
#pragma once

#include "base/check.h"
#include "keyhole/pattern.h"

namespace keyhole {

inline void check_argument(const char* function, const char* name, int64_t value, int64_t least) {
  KEYHOLE_CHECK(value >= least, function, ": ", name, " is ", value, "; it must be ", least,
                " or more");
  KEYHOLE_CHECK(value <= kUnbounded, function, ": ", name, " is ", value, "; it must be ",
                kUnbounded, " (inf) or less");
}

}  // namespace keyhole
