// src/kernels/sm90/forward_d192.cu
// The forward pass of head_dim up to 192.
#include "kernels/sm90/forward.cuh"

namespace keyhole::sm90 {

template <class T>
void forward_d192(const ForwardArgs& args) {
  device::run_forward_parts(args, launch_by_tile<T, ForwardDim192>,
                            sm80::launch_gather_forward<T, 192>);
}
template void forward_d192<__half>(const ForwardArgs&);
template void forward_d192<__nv_bfloat16>(const ForwardArgs&);

}  // namespace keyhole::sm90
