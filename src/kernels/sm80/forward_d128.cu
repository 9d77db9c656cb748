// src/kernels/sm80/forward_d128.cu
// The forward kernels of head_dim up to 128.
#include "kernels/sm80/forward.cuh"
#include "kernels/sm80/forward_launch.h"
#include "kernels/sm80/gather_launch.h"

namespace keyhole::sm80 {

template <class T>
void forward_d128(const ForwardArgs& args) {
  const int64_t shared_bytes = args.launch.shared_bytes;
  device::run_forward_parts(args,
                            shared_bytes >= kShared227KiB ? launch_by_tile<T, Dim128, Dim128Small>
                            : shared_bytes >= kShared163KiB
                                ? launch_by_tile<T, Dim128For163KiB, Dim128Small>
                                : launch_by_tile<T, Dim128, Dim128SmallFor99KiB>,
                            launch_gather_forward<T, 128>);
}
template void forward_d128<__half>(const ForwardArgs&);
template void forward_d128<__nv_bfloat16>(const ForwardArgs&);

}  // namespace keyhole::sm80
