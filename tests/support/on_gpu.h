// tests/support/on_gpu.h
// One case on a GPU: what a call there is made of; and, for tensors on the host, calls that copy
// them there with their moats, run the kernel with a poisoned workspace and bring everything back.
#pragma once

#include <string>
#include <vector>

#include "kernels/contract.h"
#include "keyhole/plan.h"
#include "support/check_case.h"
#include "support/inputs.h"

namespace keyhole::test {

using judge::CallTensors, judge::views_of;

// Why a kernel does not take tensors that lie like these, added up in any order; empty: it does.
// Copies lie on the GPU as on the host. shared_bytes of 0: what the GPU has.
std::string why_refused(const KernelEntry& kernel, const Case& c, const CallTensors& tensors,
                        int64_t shared_bytes);
// That kernel or, where it objects to the call, the one that dispatch takes.
const KernelEntry& kernel_or_next(const KernelEntry& wanted, const Case& c, const Plan& plan,
                                  const CallTensors& tensors, int64_t shared_bytes,
                                  bool is_deterministic);
ForwardArgs forward_args_of(const Case& c, const CallTensors& tensors, int64_t shared_bytes);
BackwardArgs backward_args_of(const Case& c, const CallTensors& tensors, int64_t shared_bytes);
// `tile` where the kernel follows it, else the library's choice.
TileShape tile_for(const KernelEntry& kernel, const Plan& plan, TileShape tile, const Case& c);

// In words, what is wrong beside the results; empty: nothing. A tile of {0, 0}: the library's
// choice. Where the kernel objects to the case (a row that is not aligned, say), the one that
// dispatch would take runs instead. support: of all rows, with an integer more behind them that
// nobody may write; null: none.
std::string forward_on_gpu(const KernelChoice& choice, const Plan& plan, const Case& c,
                           const Inputs& in, Outputs& o, std::vector<int32_t>* support = nullptr);
std::string backward_on_gpu(const KernelChoice& choice, const Plan& plan, const Case& c,
                            const Inputs& in, Outputs& o, std::vector<int32_t>* support = nullptr);

}  // namespace keyhole::test
