// src/kernels/sm80/select_entries.h
#pragma once

#include <vector>

#include "kernels/select_contract.h"

namespace keyhole::sm80 {

std::vector<SelectKernel> select_entries();

}  // namespace keyhole::sm80
