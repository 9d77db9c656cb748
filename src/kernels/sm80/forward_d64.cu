// src/kernels/sm80/forward_d64.cu
// The forward kernels of head_dim up to 64.
#include "kernels/sm80/forward.cuh"
#include "kernels/sm80/forward_launch.h"
#include "kernels/sm80/gather_launch.h"

namespace keyhole::sm80 {

template <class T>
void forward_d64(const ForwardArgs& args) {
  device::run_forward_parts(args, launch_by_tile<T, Dim64, Dim64Small>,
                            launch_gather_forward<T, 64>);
}
template void forward_d64<__half>(const ForwardArgs&);
template void forward_d64<__nv_bfloat16>(const ForwardArgs&);

}  // namespace keyhole::sm80
