// src/kernels/sm80/forward_d256.cu
// The forward kernels of head_dim up to 256.
#include "kernels/sm80/forward.cuh"
#include "kernels/sm80/forward_launch.h"
#include "kernels/sm80/gather_launch.h"

namespace keyhole::sm80 {

template <class T>
void forward_d256(const ForwardArgs& args) {
  const int64_t shared_bytes = args.launch.shared_bytes;
  device::run_forward_parts(args,
                            shared_bytes >= kShared227KiB   ? launch_by_tile<T, Dim256>
                            : shared_bytes >= kShared163KiB ? launch_by_tile<T, Dim256For163KiB>
                                                            : launch_by_tile<T, Dim256For99KiB>,
                            launch_gather_forward<T, 256>);
}
template void forward_d256<__half>(const ForwardArgs&);
template void forward_d256<__nv_bfloat16>(const ForwardArgs&);

}  // namespace keyhole::sm80
