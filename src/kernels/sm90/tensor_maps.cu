// src/kernels/sm90/tensor_maps.cu
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <optional>

#include "kernels/device/check_cuda.h"
#include "kernels/sm90/tensor_maps.h"

namespace keyhole::sm90 {
namespace {

// Looked up at run time: a program linked to libcuda would not start on a machine without a driver.
template <class Function>
Function find_in_driver(const char* name) {
  constexpr unsigned since = 12000;  // the CUDA version that has these signatures
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  check_cuda(cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &result),
             "asking the driver for ", name);
  if (result != cudaDriverEntryPointSuccess || found == nullptr) {
    throw Error(ErrorKind::device,
                say("the CUDA driver has no ", name,
                    ", which the sm90 kernels need; install a driver of CUDA 12 or newer, or use "
                    "the sm80 backend"));
  }
  return reinterpret_cast<Function>(found);
}

using Box = std::array<uint32_t, kBoxDims>;

CUtensorMapDataType type_of(DType dtype) {
  if (dtype == DType::e4m3) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  return dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

CUtensorMap encode(const TmaTensor& rows, DType dtype, const Box& box) {
  static const auto call =
      find_in_driver<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  const uint32_t every_element[kBoxDims] = {1, 1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult status =
      call(&map, type_of(dtype), kBoxDims, const_cast<void*>(rows.base), rows.dims, rows.strides,
           box.data(), every_element, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
           CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);  // outside the tensor: zeros
  if (status != CUDA_SUCCESS) {
    throw Error(ErrorKind::device,
                say("cuTensorMapEncodeTiled refuses, with error ", int(status), ", boxes of ",
                    box[0], " x ", box[1], " x ", box[2], " x ", box[3], " of dimensions ",
                    rows.dims[0], " x ", rows.dims[1], " x ", rows.dims[2], " x ", rows.dims[3],
                    " x ", rows.dims[4], " with strides of ", rows.strides[0], ", ",
                    rows.strides[1], ", ", rows.strides[2], ", ", rows.strides[3], " bytes"));
  }
  return map;
}

CUtensorMap with_base(CUtensorMap map, const void* base) {
  static const auto call =
      find_in_driver<decltype(&cuTensorMapReplaceAddress)>("cuTensorMapReplaceAddress");
  const CUresult status = call(&map, const_cast<void*>(base));
  if (status != CUDA_SUCCESS) {
    throw Error(ErrorKind::device, say("cuTensorMapReplaceAddress refuses, with error ",
                                       int(status), ", the address ", uintptr_t(base)));
  }
  return map;
}

// The maps of a launch. Its tensors mostly have equal shapes and strides. Replacing the address of
// a map takes the driver less time than encoding a new one.
class MapMaker {
 public:
  explicit MapMaker(DType dtype) : dtype_(dtype) {}

  CUtensorMap map_of(const TmaTensor& rows, int box_rows) {
    for (const std::optional<Made>& made : made_) {
      if (made && made->is_for(rows, box_rows)) return with_base(made->map, rows.base);
    }
    std::optional<Made>& made = made_[num_made_++];
    made = {rows, box_rows, encode(rows, dtype_, {kBoxColumns, uint32_t(box_rows), 1, 1, 1})};
    return made->map;
  }

 private:
  struct Made {
    TmaTensor rows;
    int box_rows;
    CUtensorMap map;

    bool is_for(const TmaTensor& others, int other_box_rows) const {
      return box_rows == other_box_rows && std::ranges::equal(rows.dims, others.dims) &&
             std::ranges::equal(rows.strides, others.strides);
    }
  };
  DType dtype_;
  // Two for each of q, k, v, and out or dout, dk and dv. Optional, so that unused ones are not
  // initialised: that would cost kilobytes of writes per call.
  std::optional<Made> made_[12];
  int num_made_ = 0;
};

RowMaps row_maps(MapMaker& maker, const TensorView& tensor, int32_t stride, int box_rows,
                 const void* some_memory) {
  TmaTensors tensors = tma_tensors(tensor, stride);
  // Nothing is read from a tensor without rows, but the driver requires an address.
  if (tensor.shape[2] == 0) tensors.longer.base = tensors.shorter.base = some_memory;
  RowMaps maps{};
  maps.longer = maker.map_of(tensors.longer, box_rows);
  if (tensors.num_longer < stride) maps.shorter = maker.map_of(tensors.shorter, box_rows);
  maps.num_longer = tensors.num_longer;
  maps.longer_origin = tensors.longer_origin;
  maps.shorter_origin = tensors.shorter_origin;
  return maps;
}

// The tensors of a call whose plan has `stride` residue classes in this part.
class CallRows {
 public:
  // some_memory: any valid GPU address.
  CallRows(const device::Sizes& sizes, DType dtype, int32_t stride, const void* some_memory)
      : sizes_(sizes), dtype_(dtype), stride_(stride), some_memory_(some_memory), maker_(dtype) {}

  RowMaps of_queries(const device::DeviceTensor& tensor, int64_t head_dim, int box_rows) {
    return of(tensor, sizes_.heads, sizes_.q_len, head_dim, box_rows);
  }
  RowMaps of_keys(const device::DeviceTensor& tensor, int64_t head_dim, int box_rows) {
    return of(tensor, sizes_.kv_heads, sizes_.k_len, head_dim, box_rows);
  }

 private:
  RowMaps of(const device::DeviceTensor& tensor, int64_t heads, int64_t length, int64_t head_dim,
             int box_rows) {
    const TensorView view(tensor.data, dtype_, {sizes_.batch, heads, length, head_dim},
                          {tensor.batch_stride, tensor.head_stride, tensor.row_stride, 1});
    return row_maps(maker_, view, stride_, box_rows, some_memory_);
  }

  const device::Sizes& sizes_;
  DType dtype_;
  int32_t stride_;
  const void* some_memory_;
  MapMaker maker_;
};

// A tensor of these sizes and strides. The stride of a dimension of size 1 is never used.
TmaTensor tma_tensor(const void* base, DType dtype, const int64_t (&sizes)[kBoxDims],
                     const int64_t (&strides)[kBoxDims - 1]) {
  TmaTensor tensor;
  tensor.base = base;
  for (int d = 0; d < kBoxDims; ++d) tensor.dims[d] = uint64_t(std::max<int64_t>(1, sizes[d]));
  for (int d = 1; d < kBoxDims; ++d) {
    if (sizes[d] > 1) tensor.strides[d - 1] = uint64_t(strides[d - 1] * bytes_of(dtype));
  }
  return tensor;
}

}  // namespace

IndexMaps index_maps(const device::IndexScoreParams& params, DType dtype, int queries, int heads,
                     int entries) {
  const device::DeviceTensor &q = params.q, &k = params.k;
  const TmaTensor q_rows = tma_tensor(
      q.data, dtype, {params.head_dim, params.heads, params.groups, params.q_len, params.batch},
      {q.head_stride, q.head_stride * params.heads, q.row_stride, q.batch_stride});
  const TmaTensor k_rows =
      tma_tensor(k.data, dtype, {params.head_dim, params.entries, params.groups, params.batch, 1},
                 {k.row_stride, k.head_stride, k.batch_stride, 0});
  const auto columns = uint32_t(128 / bytes_of(dtype));
  return {encode(q_rows, dtype, {columns, uint32_t(heads), 1, uint32_t(queries), 1}),
          encode(k_rows, dtype, {columns, uint32_t(entries), 1, 1, 1})};
}

RowMaps key_maps(const device::Sizes& sizes, const device::DeviceTensor& k, DType dtype,
                 int32_t stride, int k_rows) {
  return CallRows(sizes, dtype, stride, k.data).of_keys(k, sizes.head_dim, k_rows);
}

RowMaps value_maps(const device::Sizes& sizes, const device::DeviceTensor& v, DType dtype,
                   int32_t stride, int k_rows) {
  return CallRows(sizes, dtype, stride, v.data).of_keys(v, sizes.v_head_dim, k_rows);
}

EntmaxMaps entmax_maps(const device::Sizes& sizes, const device::DeviceTensor& q,
                       const device::DeviceTensor& k, const device::DeviceTensor& v, DType dtype,
                       int32_t stride, int q_rows, int k_rows) {
  CallRows rows(sizes, dtype, stride, q.data);
  return {.q = rows.of_queries(q, sizes.head_dim, q_rows),
          .k = rows.of_keys(k, sizes.head_dim, k_rows),
          .v = rows.of_keys(v, sizes.v_head_dim, k_rows)};
}

ForwardMaps forward_maps(const device::ForwardParams& params, DType dtype, int q_rows, int k_rows) {
  const device::Sizes& sizes = params.sizes;
  CallRows rows(sizes, dtype, params.view.stride, params.q.data);
  return {.q = rows.of_queries(params.q, sizes.head_dim, q_rows),
          .k = rows.of_keys(params.k, sizes.head_dim, k_rows),
          .v = rows.of_keys(params.v, sizes.v_head_dim, k_rows),
          .out = rows.of_queries(params.out, sizes.v_head_dim, kWarpRows)};
}

BackwardMaps backward_maps(const device::BackwardParams& params, DType dtype, int q_rows,
                           int k_rows) {
  const device::Sizes& sizes = params.sizes;
  CallRows rows(sizes, dtype, params.view.stride, params.k.data);
  BackwardMaps maps{};
  maps.q = rows.of_queries(params.q, sizes.head_dim, q_rows);
  maps.dout = rows.of_queries(params.dout, sizes.v_head_dim, q_rows);
  maps.k = rows.of_keys(params.k, sizes.head_dim, k_rows);
  maps.v = rows.of_keys(params.v, sizes.v_head_dim, k_rows);
  if (params.sums.dk == nullptr) {  // else the launch does not store dk and dv
    maps.dk = rows.of_keys(params.dk, sizes.head_dim, kWarpgroupRows);
    maps.dv = rows.of_keys(params.dv, sizes.v_head_dim, kWarpgroupRows);
  }
  return maps;
}

}  // namespace keyhole::sm90
