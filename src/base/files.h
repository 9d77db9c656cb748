// src/base/files.h
// Whole files, read with bounds and written so that a reader never sees half of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

// The bytes of a regular file of at most `limit` bytes. Throws Error(usage) with the path and the
// problem: missing, a directory, a pipe, not readable, too large.
std::vector<std::byte> read_file(const std::string& path, int64_t limit);

// Writes a temporary file beside `path`, flushes it to the disk and renames it: after a crash or a
// full disk the path holds what it held before. Throws Error(usage) and leaves no temporary behind.
void write_file_atomically(const std::string& path, std::span<const std::byte> bytes);

}  // namespace keyhole
