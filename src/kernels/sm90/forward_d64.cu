// src/kernels/sm90/forward_d64.cu
// The forward pass of head_dim up to 64.
#include "kernels/sm90/forward.cuh"

namespace keyhole::sm90 {

template <class T>
void forward_d64(const ForwardArgs& args) {
  device::run_forward_parts(args, launch_by_tile<T, ForwardDim64, ForwardDim64Short>,
                            sm80::launch_gather_forward<T, 64>);
}
template void forward_d64<__half>(const ForwardArgs&);
template void forward_d64<__nv_bfloat16>(const ForwardArgs&);

}  // namespace keyhole::sm90
