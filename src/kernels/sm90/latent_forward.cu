// src/kernels/sm90/latent_forward.cu
#include "kernels/sm90/latent_forward.cuh"

namespace keyhole::sm90 {

template void run_latent_forward<DType::f16>(const ForwardArgs&);
template void run_latent_forward<DType::bf16>(const ForwardArgs&);

}  // namespace keyhole::sm90
