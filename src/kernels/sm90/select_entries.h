// src/kernels/sm90/select_entries.h
#pragma once

#include <vector>

#include "kernels/select_contract.h"

namespace keyhole::sm90 {

std::vector<SelectKernel> select_entries();

}  // namespace keyhole::sm90
