// src/kernels/sm80/forward_d96.cu
// The forward kernels of head_dim up to 96.
#include "kernels/sm80/forward.cuh"
#include "kernels/sm80/forward_launch.h"
#include "kernels/sm80/gather_launch.h"

namespace keyhole::sm80 {

template <class T>
void forward_d96(const ForwardArgs& args) {
  device::run_forward_parts(args, launch_by_tile<T, Dim96>, launch_gather_forward<T, 96>);
}
template void forward_d96<__half>(const ForwardArgs&);
template void forward_d96<__nv_bfloat16>(const ForwardArgs&);

}  // namespace keyhole::sm80
