// src/kernels/simple/select_entries.h
#pragma once

#include <vector>

#include "kernels/select_contract.h"

namespace keyhole::simple {

std::vector<SelectKernel> select_entries();

}  // namespace keyhole::simple
