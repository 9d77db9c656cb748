// src/kernels/sm80/forward_d192.cu
// The forward kernels of head_dim up to 192.
#include "kernels/sm80/forward.cuh"
#include "kernels/sm80/forward_launch.h"
#include "kernels/sm80/gather_launch.h"

namespace keyhole::sm80 {

template <class T>
void forward_d192(const ForwardArgs& args) {
  device::run_forward_parts(args,
                            args.launch.shared_bytes >= kShared163KiB
                                ? launch_by_tile<T, Dim192>
                                : launch_by_tile<T, Dim192For99KiB>,
                            launch_gather_forward<T, 192>);
}
template void forward_d192<__half>(const ForwardArgs&);
template void forward_d192<__nv_bfloat16>(const ForwardArgs&);

}  // namespace keyhole::sm80
