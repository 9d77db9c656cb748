// tests/support/on_gpu.h
// One case on a GPU: its tensors are copied there with their moats, the kernel runs with a poisoned
// workspace, and everything comes back.
#pragma once

#include <string>

#include "kernels/contract.h"
#include "support/inputs.h"

namespace keyhole::test {

// Whether a kernel takes tensors that lie like these. Copies lie on the GPU as on the host.
bool accepts(const KernelEntry& kernel, const Case& c, const Inputs& in, const Outputs& o);

// In words, what is wrong beside the results; empty: nothing. A tile of {0, 0}: the library's
// choice. Where the kernel objects to the case (a row that is not aligned, say), the one that
// dispatch would take runs instead.
std::string forward_on_gpu(const KernelEntry& kernel, const Plan& plan, TileShape tile,
                           const Case& c, const Inputs& in, Outputs& o);
std::string backward_on_gpu(const KernelEntry& kernel, const Plan& plan, TileShape tile,
                            const Case& c, const Inputs& in, Outputs& o, bool is_deterministic);

}  // namespace keyhole::test
