// src/kernels/sm90/tensor_maps.cu
#include <cuda_runtime_api.h>

#include "kernels/device/check_cuda.h"
#include "kernels/sm90/tensor_maps.h"

namespace keyhole::sm90 {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Asked of the driver that runs: linking it would keep programs from starting where there is none.
Encode find_encode() {
  constexpr const char* name = "cuTensorMapEncodeTiled";
  constexpr unsigned since = 12000;  // the CUDA version whose signature this is
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
  return reinterpret_cast<Encode>(found);
}

CUtensorMap encode(const BoxedRows& rows, DType dtype, int box_rows) {
  static const Encode call = find_encode();
  const uint32_t box[kBoxDims] = {kBoxColumns, uint32_t(box_rows), 1, 1, 1};
  const uint32_t every_element[kBoxDims] = {1, 1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult status = call(
      &map,
      dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      kBoxDims, const_cast<void*>(rows.base), rows.dims, rows.strides, box, every_element,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);  // "none": zeros
  if (status != CUDA_SUCCESS) {
    throw Error(ErrorKind::device,
                say("cuTensorMapEncodeTiled refuses, with error ", int(status), ", boxes of ",
                    box_rows, " x ", kBoxColumns, " of dimensions ", rows.dims[0], " x ",
                    rows.dims[1], " x ", rows.dims[2], " x ", rows.dims[3], " x ", rows.dims[4],
                    " with strides of ", rows.strides[0], ", ", rows.strides[1], ", ",
                    rows.strides[2], ", ", rows.strides[3], " bytes"));
  }
  return map;
}

RowMaps row_maps(const TensorView& tensor, int32_t stride, int box_rows, const void* some_memory) {
  RowBoxes boxes = row_boxes(tensor, stride);
  // Without a row nothing is read, but the driver wants an address.
  if (tensor.shape[2] == 0) boxes.longer.base = boxes.shorter.base = some_memory;
  RowMaps maps{};
  maps.longer = encode(boxes.longer, tensor.dtype, box_rows);
  if (boxes.num_longer < stride) maps.shorter = encode(boxes.shorter, tensor.dtype, box_rows);
  maps.num_longer = boxes.num_longer;
  maps.longer_origin = boxes.longer_origin;
  maps.shorter_origin = boxes.shorter_origin;
  return maps;
}

}  // namespace

ForwardMaps forward_maps(const device::ForwardParams& params, DType dtype, int q_rows, int k_rows) {
  const device::Sizes& sizes = params.sizes;
  const auto view = [&](const device::DeviceTensor& tensor, int64_t heads, int64_t length,
                        int64_t head_dim) {
    return TensorView(tensor.data, dtype, {sizes.batch, heads, length, head_dim},
                      {tensor.batch_stride, tensor.head_stride, tensor.row_stride, 1});
  };
  const TensorView q = view(params.q, sizes.heads, sizes.q_len, sizes.head_dim);
  const TensorView k = view(params.k, sizes.kv_heads, sizes.k_len, sizes.head_dim);
  const TensorView v = view(params.v, sizes.kv_heads, sizes.k_len, sizes.v_head_dim);
  const int32_t stride = params.view.stride;
  return {.q = row_maps(q, stride, q_rows, q.data),
          .k = row_maps(k, stride, k_rows, q.data),
          .v = row_maps(v, stride, k_rows, q.data)};
}

}  // namespace keyhole::sm90
