// src/pattern/array_file.h
// Index arrays and boolean matrices out of .npy files; errors name the file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pattern/catalog.h"

namespace keyhole {

// int32 or int64, [length] or up to `max_dims` dimensions, flat.
std::vector<int64_t> read_integers(const std::string& path, int max_dims);

// bool or uint8, [q_len, k_len].
MaskRows read_mask(const std::string& path);

}  // namespace keyhole
