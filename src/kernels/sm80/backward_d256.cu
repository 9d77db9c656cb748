// src/kernels/sm80/backward_d256.cu
// The backward kernels of head_dim up to 256.
#include "kernels/sm80/backward.cuh"
#include "kernels/sm80/backward_launch.h"

namespace keyhole::sm80 {

template <class T>
void backward_d256(const BackwardArgs& args) {
  run_what_fits<T, Pair<KeysDim256, QueriesDim256>, Pair<KeysDim256Medium, QueriesDim256Medium>,
                Pair<KeysDim256Small, QueriesDim256Small>>(args);
}
template void backward_d256<__half>(const BackwardArgs&);
template void backward_d256<__nv_bfloat16>(const BackwardArgs&);

}  // namespace keyhole::sm80
