// src/kernels/cpu/forward.cpp
// A work item is one query tile (or a few gathered queries) of one head. One thread processes it in
// the order of its list: the same bits for any number of threads. Keys and values are packed
// before, for as many heads as fit the memory set aside.
#include "kernels/cpu/forward.h"

#include "kernels/cpu/amx_products.h"
#include "kernels/cpu/gather_forward.h"
#include "kernels/cpu/output_rows.h"
#include "kernels/cpu/tile_forward.h"
#include "kernels/cpu/vector_products.h"

namespace keyhole::cpu {
namespace {

template <class Products>
void forward_by(const ForwardArgs& args) {
  using Storage = typename Products::Element;
  OutputRows<Storage> rows(args);
  if (rows.p.q_len == 0) return;
  TileForward<Products> tiles(args, rows);
  GatherForward<Storage> gathers(args, rows);
  const int64_t packs = std::max(tiles.bytes_per_unit(), gathers.bytes_per_unit());
  for_each_wave(rows.p, packs + rows.bytes_per_unit(), [&](int64_t first, int64_t last) {
    rows.begin_wave(first, last);
    for (size_t part = 0; part < args.plan.tiles.size(); ++part) tiles.follow(int64_t(part));
    for (const GatherView& view : args.plan.gathers) gathers.follow(view);
    rows.finish_wave();
  });
}

}  // namespace

template <class Storage>
void forward(const ForwardArgs& args) {
  forward_by<VectorProducts<Storage>>(args);
}
template void forward<float>(const ForwardArgs&);
template void forward<double>(const ForwardArgs&);
template void forward<Half>(const ForwardArgs&);
template void forward<BFloat16>(const ForwardArgs&);

template <class Storage>
void forward_on_amx(const ForwardArgs& args) {
  forward_by<AmxProducts<Storage>>(args);
}
template void forward_on_amx<Half>(const ForwardArgs&);
template void forward_on_amx<BFloat16>(const ForwardArgs&);

}  // namespace keyhole::cpu
