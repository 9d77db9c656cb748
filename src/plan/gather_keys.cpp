// src/plan/gather_keys.cpp
// A part as lists of keys, one list per query: for patterns so thin that a tile would hold only a
// few pairs (random tokens, powers of two).
#include "base/int_math.h"
#include "pattern/node.h"
#include "plan/compile.h"
#include "plan/row_keys.h"

namespace keyhole {

void for_each_key(const Node& node, Position q, int64_t k_len,
                  const std::function<void(Span keys)>& visit) {
  Strip strip;
  node.strip({q, q + 1}, {0, k_len}, 1, strip);
  for (const Segment& segment : strip) {
    if (segment.cover == Cover::all) {
      visit({segment.begin, segment.end});
      continue;
    }
    for (Position k = segment.begin; k < segment.end; ++k) {
      if (node.allows(q, k)) visit({k, k + 1});
    }
  }
}

KeyLists compile_keys(const PartSpec& part, const Shape& shape) {
  KeyLists lists;
  lists.q_len = shape.q_len;
  lists.k_len = shape.k_len;
  narrow(shape.k_len, "plan: key index in a gather list");
  narrow(shape.q_len, "plan: query index in a gather list");
  lists.groups = int32_t(part.group_nodes.size());
  lists.group_of = part.group_of;
  for (const NodePtr& node : part.group_nodes) {
    for (int64_t query = 0; query < shape.q_len; ++query) {
      lists.list_begin.push_back(int64_t(lists.keys.size()));
      for_each_key(*node, query + shape.q_offset(), shape.k_len, [&lists](Span keys) {
        for (Position k = keys.begin; k < keys.end; ++k) lists.keys.push_back(int32_t(k));
      });
      lists.list_count.push_back(int32_t(int64_t(lists.keys.size()) - lists.list_begin.back()));
      KEYHOLE_CHECK(int64_t(lists.keys.size() * sizeof(int32_t)) <= kMaxPlanBytes,
                    "plan: the key lists of ", shape.q_len, " queries exceed ", kMaxPlanBytes,
                    " bytes; use a pattern that keeps less, or shorter sequences");
    }
  }
  verify(lists, shape, {"after gathering keys"});
  return lists;
}

}  // namespace keyhole
