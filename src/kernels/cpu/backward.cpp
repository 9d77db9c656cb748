// src/kernels/cpu/backward.cpp
#include "kernels/cpu/backward.h"

#include "kernels/cpu/amx_gradients.h"
#include "kernels/cpu/gather_gradients.h"
#include "kernels/cpu/gradient_rows.h"
#include "kernels/cpu/tile_gradients.h"
#include "kernels/cpu/vector_gradients.h"

namespace keyhole::cpu {
namespace {

template <class Products>
void backward_by(const BackwardArgs& args) {
  using Storage = typename Products::Element;
  GradientRows<Storage> rows(args);
  TileGradients<Products> tiles(rows);
  GatherGradients<Storage> gathers(rows);
  const int64_t packs = std::max(tiles.bytes_per_unit(), gathers.bytes_per_unit());
  for_each_wave(rows.p, packs + rows.bytes_per_unit(), [&](int64_t first, int64_t last) {
    rows.begin_wave(first, last);
    for (const TileView& view : args.plan.tiles) tiles.follow(view);
    for (const GatherView& view : args.plan.gathers) gathers.follow(view);
    rows.finish_wave();
  });
  rows.store_dsink();
}

}  // namespace

template <class Storage>
void backward(const BackwardArgs& args) {
  backward_by<VectorGradients<Storage>>(args);
}
template void backward<float>(const BackwardArgs&);
template void backward<double>(const BackwardArgs&);
template void backward<Half>(const BackwardArgs&);
template void backward<BFloat16>(const BackwardArgs&);

template <class Storage>
void backward_on_amx(const BackwardArgs& args) {
  backward_by<AmxGradients<Storage>>(args);
}
template void backward_on_amx<Half>(const BackwardArgs&);
template void backward_on_amx<BFloat16>(const BackwardArgs&);

}  // namespace keyhole::cpu
