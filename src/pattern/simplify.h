// src/pattern/simplify.h
// Patterns that mean the same in fewer words. The planner asks for them; what a user wrote stays as
// it was written.
#pragma once

#include "keyhole/pattern.h"

namespace keyhole {

// The same pairs by a tree that is never larger. Names of compositions are dropped; the rewrites
// are listed in simplify.cpp.
NodePtr simplify(const NodePtr& node);

// True when both are written alike. Functions are alike only when they are one object: two that
// print the same may still answer differently.
bool is_same_expression(const Node& a, const Node& b);

}  // namespace keyhole
