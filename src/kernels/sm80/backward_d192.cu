// src/kernels/sm80/backward_d192.cu
// The backward kernels of head_dim up to 192.
#include "kernels/sm80/backward.cuh"
#include "kernels/sm80/backward_launch.h"

namespace keyhole::sm80 {

template <class T>
void backward_d192(const BackwardArgs& args) {
  run_what_fits<T, Pair<KeysDim192, QueriesDim192>, Pair<KeysDim192Small, QueriesDim192Small>>(
      args);
}
template void backward_d192<__half>(const BackwardArgs&);
template void backward_d192<__nv_bfloat16>(const BackwardArgs&);

}  // namespace keyhole::sm80
