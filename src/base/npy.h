// src/base/npy.h
// Arrays in numpy's .npy files: read whole, checked against their header, never unpickled; written
// completely or not at all.
//
// numpy has no bf16. Such arrays are stored as "<u2" (the 16 bits of each number); the reader must
// know that they are bf16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

struct NpyArray {
  std::string dtype;            // "<f4", "|b1", ...: numpy's own names, little-endian
  std::vector<int64_t> shape;   // empty: one number
  std::vector<std::byte> data;  // row by row, whatever the order in the file
};

// Bytes of one element; 0 for an unsupported dtype.
int64_t npy_item_bytes(const std::string& dtype);

// Throws Error(usage) with the path first. Only regular files: no pipes, no devices.
NpyArray read_npy(const std::string& path);

// The same from memory; `name` stands for the path in errors.
NpyArray parse_npy(std::span<const std::byte> bytes, const std::string& name);

// The bytes of a .npy file, in row order.
std::string npy_file(const std::string& dtype, std::span<const int64_t> shape,
                     std::span<const std::byte> bytes);
// The same, written as write_file does (files.h).
void write_npy(const std::string& path, const std::string& dtype, std::span<const int64_t> shape,
               std::span<const std::byte> bytes);

}  // namespace keyhole
