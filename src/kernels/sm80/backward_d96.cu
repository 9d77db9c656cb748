// src/kernels/sm80/backward_d96.cu
// The backward kernels of head_dim up to 96.
#include "kernels/sm80/backward.cuh"
#include "kernels/sm80/backward_launch.h"

namespace keyhole::sm80 {

template <class T>
void backward_d96(const BackwardArgs& args) {
  run_what_fits<T, Pair<KeysDim96, QueriesDim96>, Pair<KeysDim96Small, QueriesDim96Small>>(args);
}
template void backward_d96<__half>(const BackwardArgs&);
template void backward_d96<__nv_bfloat16>(const BackwardArgs&);

}  // namespace keyhole::sm80
