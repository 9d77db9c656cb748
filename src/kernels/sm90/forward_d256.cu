// src/kernels/sm90/forward_d256.cu
// The forward pass of head_dim up to 256.
#include "kernels/sm90/forward.cuh"

namespace keyhole::sm90 {

template <class T>
void forward_d256(const ForwardArgs& args) {
  device::run_forward_parts(args, launch_by_tile<T, ForwardDim256>,
                            sm80::launch_gather_forward<T, 256>);
}
template void forward_d256<__half>(const ForwardArgs&);
template void forward_d256<__nv_bfloat16>(const ForwardArgs&);

}  // namespace keyhole::sm90
