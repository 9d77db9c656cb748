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

// Puts `bytes` where `path` leads; a link stays a link. A regular file is replaced: a temporary
// file beside it is flushed to the disk and renamed, so that after a crash or a full disk the path
// holds what it held before. A pipe or a device is written to as it stands, and a reader who leaves
// a pipe early has had enough: no error. Throws Error(usage) and leaves no temporary behind.
void write_file(const std::string& path, std::span<const std::byte> bytes);

// Whether write_file would replace what is there, or make what is not; false: a pipe or a device.
bool is_replaceable(const std::string& path);

}  // namespace keyhole
