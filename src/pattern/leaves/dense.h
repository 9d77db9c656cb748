// src/pattern/leaves/dense.h
// The pattern in which every pair attends, and how to recognise it and its opposite.
#pragma once

#include "keyhole/pattern.h"

namespace keyhole {

NodePtr make_dense();
bool is_dense(const Node& node);
bool is_nothing(const Node& node);  // ~dense

}  // namespace keyhole
