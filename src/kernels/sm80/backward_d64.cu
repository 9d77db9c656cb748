// src/kernels/sm80/backward_d64.cu
// The backward kernels of head_dim up to 64.
#include "kernels/sm80/backward.cuh"
#include "kernels/sm80/backward_launch.h"

namespace keyhole::sm80 {

template <class T>
void backward_d64(const BackwardArgs& args) {
  run_what_fits<T, Pair<KeysDim64, QueriesDim64>, Pair<KeysDim64Small, QueriesDim64>,
                Pair<KeysDim64Fine, QueriesDim64Fine>>(args);
}
template void backward_d64<__half>(const BackwardArgs&);
template void backward_d64<__nv_bfloat16>(const BackwardArgs&);

}  // namespace keyhole::sm80
