// src/kernels/sm80/backward_d128.cu
// The backward kernels of head_dim up to 128.
#include "kernels/sm80/backward.cuh"
#include "kernels/sm80/backward_launch.h"

namespace keyhole::sm80 {

template <class T>
void backward_d128(const BackwardArgs& args) {
  run_what_fits<T, Pair<KeysDim128, QueriesDim128>, Pair<KeysDim128Small, QueriesDim128Small>,
                Pair<KeysDim128Fine, QueriesDim128Fine>,
                Pair<KeysDim128FineSmall, QueriesDim128Fine>>(args);
}
template void backward_d128<__half>(const BackwardArgs&);
template void backward_d128<__nv_bfloat16>(const BackwardArgs&);

}  // namespace keyhole::sm80
