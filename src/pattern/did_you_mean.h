// src/pattern/did_you_mean.h
// From a misspelt word and the words that exist to the one that was probably meant.
#pragma once

#include <span>
#include <string_view>

namespace keyhole {

// Insertions, deletions, replacements and swaps of neighbours that lead from a to b.
int edit_distance(std::string_view a, std::string_view b);

// The nearest of `words`, the first among equals; empty when none is near.
std::string_view did_you_mean(std::string_view word, std::span<const std::string_view> words);

}  // namespace keyhole
