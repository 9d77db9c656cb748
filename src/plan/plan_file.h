// src/plan/plan_file.h
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "keyhole/plan.h"

namespace keyhole {

// The bytes that Plan::save writes.
std::vector<std::byte> plan_file_bytes(const Plan& plan);
// A plan from the bytes of a file; `path` is for the messages.
Plan load_plan(std::span<const std::byte> bytes, const std::string& path);

}  // namespace keyhole
