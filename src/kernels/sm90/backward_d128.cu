// src/kernels/sm90/backward_d128.cu
// The backward pass of head_dim up to 128, and up to 96 by the same kernel.
#include "kernels/sm90/backward.cuh"

namespace keyhole::sm90 {

template <class T>
void backward_d96(const BackwardArgs& args) {
  if (takes<KeysDim128>(args)) return run<T, KeysDim128, 96>(args);
  sm80::backward_d96<T>(args);
}
template void backward_d96<__half>(const BackwardArgs&);
template void backward_d96<__nv_bfloat16>(const BackwardArgs&);

template <class T>
void backward_d128(const BackwardArgs& args) {
  if (takes<KeysDim128>(args)) return run<T, KeysDim128>(args);
  sm80::backward_d128<T>(args);
}
template void backward_d128<__half>(const BackwardArgs&);
template void backward_d128<__nv_bfloat16>(const BackwardArgs&);

int64_t backward_d128_workspace(const BackwardArgs& args) { return workspace<KeysDim128>(args); }

}  // namespace keyhole::sm90
