// src/kernels/sm80/gather_bf16.cu
#include "kernels/sm80/gather_backward.cuh"
#include "kernels/sm80/gather_forward.cuh"

namespace keyhole::sm80 {

template void launch_gather_forward<__nv_bfloat16, 64>(const GatherForwardParams&, cudaStream_t);
template void launch_gather_forward<__nv_bfloat16, 96>(const GatherForwardParams&, cudaStream_t);
template void launch_gather_forward<__nv_bfloat16, 128>(const GatherForwardParams&, cudaStream_t);
template void launch_gather_forward<__nv_bfloat16, 192>(const GatherForwardParams&, cudaStream_t);
template void launch_gather_forward<__nv_bfloat16, 256>(const GatherForwardParams&, cudaStream_t);

template void launch_gather_backward<__nv_bfloat16, 64>(const BackwardParams&, const GatherView&,
                                                        cudaStream_t);
template void launch_gather_backward<__nv_bfloat16, 96>(const BackwardParams&, const GatherView&,
                                                        cudaStream_t);
template void launch_gather_backward<__nv_bfloat16, 128>(const BackwardParams&, const GatherView&,
                                                         cudaStream_t);
template void launch_gather_backward<__nv_bfloat16, 192>(const BackwardParams&, const GatherView&,
                                                         cudaStream_t);
template void launch_gather_backward<__nv_bfloat16, 256>(const BackwardParams&, const GatherView&,
                                                         cudaStream_t);

}  // namespace keyhole::sm80
