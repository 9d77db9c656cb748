// tests/support/gpu/check_on_gpu.h
#pragma once

#include "support/check_case.h"

namespace keyhole::test {

// Everything that must hold of one case for one kernel pair of a GPU, made and judged on GPU 0:
// what check_case_with does for the cpu, but for the merge law, whose function works on the host.
Failure check_on_gpu(const Case& c, const KernelChoice& kernel, CheckStats& stats);

}  // namespace keyhole::test
