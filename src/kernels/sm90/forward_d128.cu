// src/kernels/sm90/forward_d128.cu
// The forward pass of head_dim up to 128.
#include "kernels/sm90/forward.cuh"

namespace keyhole::sm90 {

template <class T>
void forward_d128(const ForwardArgs& args) {
  device::run_forward_parts(args, launch_by_tile<T, ForwardDim128, ForwardDim128Short>,
                            sm80::launch_gather_forward<T, 128>);
}
template void forward_d128<__half>(const ForwardArgs&);
template void forward_d128<__nv_bfloat16>(const ForwardArgs&);

}  // namespace keyhole::sm90
