// src/kernels/sm90/backward_d64.cu
// The backward pass of head_dim up to 64.
#include "kernels/sm90/backward.cuh"

namespace keyhole::sm90 {

template <class T>
void backward_d64(const BackwardArgs& args) {
  if (takes<KeysDim64>(args)) return run<T, KeysDim64>(args);
  sm80::backward_d64<T>(args);
}
template void backward_d64<__half>(const BackwardArgs&);
template void backward_d64<__nv_bfloat16>(const BackwardArgs&);

int64_t backward_d64_workspace(const BackwardArgs& args) { return workspace<KeysDim64>(args); }

}  // namespace keyhole::sm90
