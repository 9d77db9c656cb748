// tests/support/check_case.h
// Everything that must hold of one case, in one function. The fuzzer, the shrinker and the kernel
// tests all call it, so that a shrunk case fails for the reason the large one did.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/contract.h"
#include "support/inputs.h"
#include "support/skips.h"

namespace keyhole::test {

// What went wrong. `kind` is what shrinking keeps ("forward", "layout", ...); empty: nothing did.
struct Failure {
  std::string kind, detail;
  explicit operator bool() const { return !kind.empty(); }
};

struct CheckStats {
  int64_t kernel_runs = 0;
  Skips refused;      // kernels that do not take a case, and why
  int64_t pairs = 0;  // compared with the pattern, one by one
  double worst = 0;   // the largest share of a rounding bound that was used
};

// Plan against pattern, forward and backward of every kernel for the dtype against the reference,
// the count probe, moats and canaries, another layout and thread count, and one law drawn from the
// seed. A case on a GPU is made and judged there; `Judged::on_host` copies its results here instead
// and judges them by the reference of the CPU: for a failure that one wants to look into.
enum class Judged : uint8_t { where_it_runs, on_host };
Failure check_case(const Case& c, CheckStats* stats = nullptr,
                   Judged judged = Judged::where_it_runs);

// The same for one kernel pair and tile shape.
struct KernelChoice {
  const KernelEntry* forward = nullptr;
  const KernelEntry* backward = nullptr;  // may be null
  TileShape tile;                         // {0, 0}: through the public API
  bool is_deterministic = true;           // the backward pass of a GPU; the cpu's always is
  int64_t shared_bytes = 0;               // of a GPU, per CTA; 0: what there is
};
Failure check_case_with(const Case& c, const KernelChoice& kernel, CheckStats* stats = nullptr,
                        Judged judged = Judged::where_it_runs);
// All kernels of the table that take this dtype, each with the tile the case names.
// KEYHOLE_TEST_BACKENDS=simple,sm80 leaves only these, KEYHOLE_TEST_BACKENDS=gpu all of a GPU.
std::vector<KernelChoice> kernels_for(const Case& c);
// The tile shapes of a choice: of its forward kernel, or, where that one is lent to a backend that
// has none, of its backward kernel.
const std::vector<TileShape>& tiles_of(const KernelChoice& choice);
// The amounts of shared memory that a kernel has configurations for and this GPU can give; {0} for
// kernels that have only one.
std::vector<int64_t> shared_limits(const KernelEntry& kernel);

// One run: the public API, or straight to the kernel when a tile is named.
void run_forward_of(const Case& c, const KernelChoice& kernel, const Plan& plan, const Inputs& in,
                    Outputs& o, int threads);
void run_backward_of(const Case& c, const KernelChoice& kernel, const Plan& plan, const Inputs& in,
                     Outputs& o, int threads);

}  // namespace keyhole::test
