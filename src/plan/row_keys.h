// src/plan/row_keys.h
#pragma once

#include <functional>

#include "pattern/node.h"

namespace keyhole {

// Every key of [0, k_len) that the query at position q sees, as ascending spans.
void for_each_key(const Node& node, Position q, int64_t k_len,
                  const std::function<void(Span keys)>& visit);

}  // namespace keyhole
