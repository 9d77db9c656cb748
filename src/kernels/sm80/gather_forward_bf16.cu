// src/kernels/sm80/gather_forward_bf16.cu
#include "kernels/sm80/gather_forward.cuh"

namespace keyhole::sm80 {

template void launch_gather_forward<__nv_bfloat16, 64>(const GatherForwardParams&, cudaStream_t);
template void launch_gather_forward<__nv_bfloat16, 96>(const GatherForwardParams&, cudaStream_t);
template void launch_gather_forward<__nv_bfloat16, 128>(const GatherForwardParams&, cudaStream_t);
template void launch_gather_forward<__nv_bfloat16, 192>(const GatherForwardParams&, cudaStream_t);
template void launch_gather_forward<__nv_bfloat16, 256>(const GatherForwardParams&, cudaStream_t);

}  // namespace keyhole::sm80
