// src/kernels/sm90/latent_pair_forward.cu
#include "kernels/sm90/latent_pair_forward.cuh"

namespace keyhole::sm90 {

template void launch_latent_pair_forward<__half>(const device::GatherForwardParams&, cudaStream_t);
template void launch_latent_pair_forward<__nv_bfloat16>(const device::GatherForwardParams&,
                                                        cudaStream_t);

}  // namespace keyhole::sm90
