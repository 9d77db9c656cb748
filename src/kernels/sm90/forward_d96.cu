// src/kernels/sm90/forward_d96.cu
// The forward pass of head_dim up to 96.
#include "kernels/sm90/forward.cuh"

namespace keyhole::sm90 {

template <class T>
void forward_d96(const ForwardArgs& args) {
  device::run_forward_parts(args, launch_by_tile<T, ForwardDim96>,
                            sm80::launch_gather_forward<T, 96>);
}
template void forward_d96<__half>(const ForwardArgs&);
template void forward_d96<__nv_bfloat16>(const ForwardArgs&);

}  // namespace keyhole::sm90
