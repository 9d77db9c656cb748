// src/kernels/sm90/latent_backward.cu
#include "kernels/sm90/latent_backward.cuh"

namespace keyhole::sm90 {

template void run_latent_backward<DType::f16>(const BackwardArgs&);
template void run_latent_backward<DType::bf16>(const BackwardArgs&);

}  // namespace keyhole::sm90
