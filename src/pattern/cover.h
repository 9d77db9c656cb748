// src/pattern/cover.h
// What one rectangle of (query, key) pairs looks like. `some` also means "did not look closely":
// answering `some` is always correct, answering `none` or `all` is a promise.
#pragma once

#include <algorithm>
#include <cstdint>

namespace keyhole {

enum class Cover : uint8_t { none, some, all };  // the order carries meaning, see below

// With none < some < all, the set operators are the three-valued logic ones:
//   a & b  is the smaller answer     a | b  the larger     ~a  the mirror image
constexpr Cover operator&(Cover a, Cover b) { return std::min(a, b); }
constexpr Cover operator|(Cover a, Cover b) { return std::max(a, b); }
constexpr Cover operator~(Cover a) { return Cover(uint8_t(Cover::all) - uint8_t(a)); }

static_assert((Cover::some & Cover::all) == Cover::some);
static_assert((Cover::none | Cover::some) == Cover::some);
static_assert(~Cover::none == Cover::all && ~Cover::some == Cover::some);

constexpr const char* to_string(Cover cover) {
  return cover == Cover::none ? "none" : cover == Cover::all ? "all" : "some";
}

}  // namespace keyhole
