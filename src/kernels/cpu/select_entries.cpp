// src/kernels/cpu/select_entries.cpp
#include "kernels/cpu/select_entries.h"

#include <string>

#include "base/dtype.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/index_loss.h"
#include "kernels/cpu/index_scores.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/select_keys.h"
#include "kernels/cpu/top_k.h"

namespace keyhole::cpu {
namespace {

SelectKernel entry(SelectOperation operation, DType dtype) {
  SelectKernel made{};
  made.name = std::string("cpu.") + to_string(operation) + "." + to_string(dtype);
  made.backend = "cpu";
  made.operation = operation;
  made.dtype = dtype;
  made.tile = {64, 64};  // a tile of attention's, so that a plan is compiled once for both
  return made;
}

template <class Storage>
void add_top_k(std::vector<SelectKernel>& entries) {
  entries.push_back(entry(SelectOperation::top_k, Traits<Storage>::dtype));
  entries.back().top_k = top_k<Storage>;
}

// e4m3 is multiplied as bf16.
bool multiplies_on_amx(DType dtype) {
  return primitives<float>().lanes == amx::kCols &&
         amx::multiplies(dtype == DType::e4m3 ? DType::bf16 : dtype);
}

// Storage: of q and k.
template <class Storage>
void add_on_amx(std::vector<SelectKernel>& entries) {
  constexpr DType kDType = Traits<Storage>::dtype;
  if (!multiplies_on_amx(kDType)) return;
  for (const SelectOperation operation : {SelectOperation::scores, SelectOperation::select}) {
    SelectKernel& made = entries.emplace_back(entry(operation, kDType));
    made.name += ".amx";
    if (operation == SelectOperation::scores) {
      made.scores = index_scores_on_amx<Storage>;
    } else {
      made.select = select_keys_on_amx<Storage>;
    }
  }
}

template <class Storage>
void add_indexer(std::vector<SelectKernel>& entries) {
  using T = typename Traits<Storage>::Compute;
  constexpr DType kDType = Traits<Storage>::dtype;
  entries.push_back(entry(SelectOperation::scores, kDType));
  entries.back().scores = index_scores<T>;
  entries.push_back(entry(SelectOperation::select, kDType));
  entries.back().select = select_keys<T>;
  entries.push_back(entry(SelectOperation::loss, kDType));
  entries.back().loss = index_loss_forward<T>;
  if (kDType == DType::e4m3) return;  // has no gradients
  entries.push_back(entry(SelectOperation::gradients, kDType));
  entries.back().gradients = index_loss_backward<T>;
}

}  // namespace

std::vector<SelectKernel> select_entries() {
  std::vector<SelectKernel> entries;
  add_on_amx<Half>(entries);  // dispatch takes the first that suits
  add_on_amx<BFloat16>(entries);
  add_on_amx<E4m3>(entries);
  add_indexer<float>(entries);
  add_indexer<Half>(entries);
  add_indexer<BFloat16>(entries);
  add_indexer<E4m3>(entries);
  add_indexer<double>(entries);
  add_top_k<float>(entries);
  add_top_k<Half>(entries);
  add_top_k<BFloat16>(entries);
  add_top_k<double>(entries);
  return entries;
}

}  // namespace keyhole::cpu
