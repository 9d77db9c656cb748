// src/kernels/mma/tensor_gather.cuh
// Products with the rows of a tensor that a list names, and weighted sums of such rows, on tensor
// cores: the interface of device/gather_rows.cuh for 16-bit rows of up to kCols columns. A warp
// copies up to 32 rows to a slot of its shared memory and multiplies them there:
//
//   dot   rows of the slot (16 at a time) by a vector, which is all eight columns of the operand
//   add   transposed rows by the weights: the even columns of the operand have the weights in 16
//         bits, the odd ones what rounding took from them. So a weight has 16 bits in bf16 and 22
//         in f16, where the result keeps 8 and 11
//
// All columns of an operand are in use so that every lane gets what it needs of the result without
// an exchange.
#pragma once

#include "kernels/device/gather_rows.cuh"
#include "kernels/mma/ptx.cuh"
#include "kernels/mma/row_swizzle.cuh"

namespace keyhole::mma {

template <class Storage_, int32_t kCols_, int32_t kSlots>
struct TensorGather : device::OwnColumnStores<TensorGather<Storage_, kCols_, kSlots>, Storage_,
                                              kCols_ / 64, 2, true> {
  using Storage = Storage_;
  static constexpr int32_t kCols = kCols_, kSteps = kCols / 64, kOwn = 2;
  static constexpr bool kInVectors = true;
  using Columns = float[kCols / 16][4];
  using OwnColumns = float[kSteps][kOwn];
  static constexpr int32_t kRows = device::kGatherPlaces;
  static constexpr int32_t kWeightBytes = 2 * kRows * 2, kSlotBytes = kRows * 2 * kCols;
  static constexpr int32_t kRoomBytes = kSlots * kSlotBytes + kWeightBytes;  // of a warp

  TensorGather() = default;
  // room: of this warp, aligned to 128 bytes.
  __device__ explicit TensorGather(unsigned char* room) : room_(opaque(smem_address(room))) {}

  static __device__ __forceinline__ int32_t lane() { return int32_t(threadIdx.x % 32); }
  static __device__ __forceinline__ int32_t place_of_lane() { return lane() / 4 + lane() % 4 * 8; }
  // Copies of four rows that a batch needs; those of 16 rows are multiplied together.
  static __device__ __forceinline__ int32_t loads_for(bool is_in_use) {
    const uint32_t end = is_in_use ? uint32_t(place_of_lane()) + 1 : 0;
    return int32_t((__reduce_max_sync(~0u, end) + 15) / 16 * 4);
  }
  template <class Visit>
  static __device__ __forceinline__ void for_each_chunk(int32_t /*cols*/, Visit visit) {
    visit(0);
  }

  // Starts to copy the rows of a batch; zeros where there is none, and past `cols`. The slot is
  // free once all lanes have used what was in it. The lane that owns a place computes where its row
  // is, in units of 16 bytes (spans_few_units).
  template <class RowAt>
  __device__ __forceinline__ void start(int32_t slot, RowAt row_at, int32_t cols, int32_t index,
                                        int32_t loads) const {
    constexpr int32_t kPerUnit = 16 / int32_t(sizeof(Storage));
    const uint32_t row = uint32_t(lane()) / 8, chunk = uint32_t(lane()) % 8;  // row: of a load
    const uint32_t units = index >= 0 ? uint32_t(row_at.offset(index) / kPerUnit) : 0;
    // Of the owners of this lane's rows: 16 (i % 2) + 4 row + i / 2 of load i.
    const uint32_t there = __ballot_sync(~0u, index >= 0) >> (4 * row);
    const uint4* const first = reinterpret_cast<const uint4*>(row_at.first) + chunk;
    const uint32_t to = slot_at(slot) + Swizzle::offset(row, chunk);
    __syncwarp();
#pragma unroll
    for (int32_t i = 0; i < kRows / 4; ++i) {
      if (i >= loads) continue;  // the same for all lanes
      const int32_t from = i % 2 * 16 + i / 2;
      const uint32_t his = __shfl_sync(~0u, units, from + int32_t(row) * 4);
#pragma unroll
      for (int32_t s = 0; s < kSteps; ++s) {
        const bool is_inside = (there >> from & 1) != 0 && int32_t(chunk + 8 * s) * 8 < cols;
        // Rows 4 and more of eight have another swizzle.
        const uint32_t place = (i % 2 == 0 ? to : to ^ 64) + uint32_t(i * 4 * Swizzle::row_bytes);
        copy_async_or_zeros(place + s * 128, first + (uint64_t{his} + 8 * s), is_inside);
      }
    }
    commit_copies();
  }
  // Until all copies have arrived.
  static __device__ __forceinline__ void await() {
    await_copies<0>();
    __syncwarp();
  }

  // The product of the row `x` with that of this lane's place.
  template <class RowAt>
  __device__ __forceinline__ float dot(int32_t slot, const Storage* x, RowAt /*row_at*/,
                                       int32_t cols, int32_t /*index*/, int32_t loads) const {
    uint32_t vector[kCols / 16][2];
#pragma unroll
    for (int32_t d = 0; d < kCols / 16; ++d) {
#pragma unroll
      for (int32_t half = 0; half < 2; ++half) {
        const int32_t col = d * 16 + half * 8 + lane() % 4 * 2;
        vector[d][half] = col < cols ? *reinterpret_cast<const uint32_t*>(x + col) : 0;
      }
    }
    const uint32_t at = slot_at(slot) + Swizzle::offset(uint32_t(lane()) % 16, lane() / 16);
    float products[kRows / 16][4] = {};
#pragma unroll
    for (int32_t tile = 0; tile < kRows / 16; ++tile) {
      if (4 * tile >= loads) continue;
#pragma unroll
      for (int32_t d = 0; d < kCols / 16; ++d) {
        uint32_t rows[4];
        load_matrices(rows, Swizzle::further(at, 2 * d) + tile * 16 * Swizzle::row_bytes);
        Element<Storage>::multiply_add(products[tile], rows, vector[d][0], vector[d][1]);
      }
    }
    // Place lane / 4 + 8 i of the batch is in element 2 (i % 2) of tile i / 2.
    const float low = lane() % 2 == 0 ? products[0][0] : products[0][2];
    const float high = lane() % 2 == 0 ? products[1][0] : products[1][2];
    return lane() % 4 < 2 ? low : high;
  }

  // Adds weight * row for all places. Of a row that must not be read the weight is 0, and start()
  // was given no index.
  template <class RowAt>
  __device__ __forceinline__ void add(Columns& sum, int32_t slot, RowAt /*row_at*/,
                                      int32_t /*first*/, int32_t /*cols*/, int32_t /*index*/,
                                      float weight, int32_t loads) const {
    // bf16 has the range of fp32. fp16 gets weights with a maximum between 1 and 2.
    constexpr bool kScales = std::is_same_v<Storage, __half>;
    float back = 1;
    if constexpr (kScales) {
      const uint32_t exponent = __reduce_max_sync(~0u, __float_as_uint(weight) & 0x7fffffffu) >> 23;
      if (exponent != 0 && exponent < 254) {
        weight *= __uint_as_float((254 - exponent) << 23);
        back = __uint_as_float(exponent << 23);
      }
    }
    const uint32_t rounded = Element<Storage>::pack(weight, 0);
    const uint32_t rest = Element<Storage>::pack(weight - low_of(rounded), 0);
    __syncwarp();  // the weights before these are in use no more
    const uint32_t weights = room_ + kSlots * kSlotBytes;
    const uint32_t mine = weights + uint32_t(place_of_lane()) * 2;
    store_shared_half(mine, rounded);
    store_shared_half(mine + kWeightBytes / 2, rest);
    __syncwarp();
    const uint32_t operand =
        weights + uint32_t(lane() / 4 % 2 * (kWeightBytes / 2) + lane() % 4 * 4);
    // Matrices 0 to 3: the first eight rows, columns 0..7 and 8..15; the other eight rows.
    const uint32_t row = uint32_t(lane()) / 16 * 8 + uint32_t(lane()) % 8;
    const uint32_t at = slot_at(slot) + Swizzle::offset(row, uint32_t(lane()) / 8 % 2);
    Columns scaled = {};
    Columns& to = *(kScales ? &scaled : &sum);
#pragma unroll
    for (int32_t tile = 0; tile < kRows / 16; ++tile) {
      if (4 * tile >= loads) continue;
      const uint32_t low = load_shared(operand + tile * 32);
      const uint32_t high = load_shared(operand + tile * 32 + 16);
#pragma unroll
      for (int32_t d = 0; d < kCols / 16; ++d) {
        uint32_t rows[4];
        load_matrices_transposed(rows,
                                 Swizzle::further(at, 2 * d) + tile * 16 * Swizzle::row_bytes);
        Element<Storage>::multiply_add(to[d], rows, low, high);
      }
    }
    if constexpr (kScales) {
#pragma unroll
      for (int32_t d = 0; d < kCols / 16; ++d) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) sum[d][i] = fmaf(back, scaled[d][i], sum[d][i]);
      }
    }
  }

  // Adds the columns of this lane to `own`. All four lanes of a row of the result have the same.
  static __device__ __forceinline__ void share(const Columns& sum, OwnColumns& own) {
    const bool is_odd = lane() / 4 % 2 != 0;
#pragma unroll
    for (int32_t s = 0; s < kSteps; ++s) {
      // Of columns lane / 4 and 8 further.
      const float both[2] = {together(mine(sum, s, 0), mine(sum, s, 1)),
                             together(mine(sum, s, 2), mine(sum, s, 3))};
      // Neighbours exchange: then a lane has two neighbouring columns.
      const float other = __shfl_xor_sync(~0u, is_odd ? both[0] : both[1], 4);
      own[s][0] += is_odd ? other : both[0];
      own[s][1] += is_odd ? both[1] : other;
    }
  }
  static __device__ __forceinline__ int32_t own_column(int32_t /*first*/, int32_t step) {
    const int32_t row = lane() / 4;
    return step * 64 + lane() % 4 * 16 + (row % 2 == 0 ? row : row + 7);
  }

 private:
  using Swizzle = RowSwizzle<kCols>;

  __device__ __forceinline__ uint32_t slot_at(int32_t slot) const {
    return room_ + uint32_t(slot * kSlotBytes);
  }
  // Element i of the 16 columns of this lane, of four times 16. Without an index that the compiler
  // does not know: arrays with one are not in registers.
  static __device__ __forceinline__ float mine(const Columns& sum, int32_t step, int32_t i) {
    const bool is_odd = lane() % 2 != 0;
    const float low = is_odd ? sum[4 * step + 1][i] : sum[4 * step][i];
    const float high = is_odd ? sum[4 * step + 3][i] : sum[4 * step + 2][i];
    return lane() % 4 < 2 ? low : high;
  }
  // Infinite or NaN is what the weights say: what is left of one times infinity may be NaN.
  static __device__ __forceinline__ float together(float of_weights, float of_rests) {
    return device::is_finite(of_weights) ? of_weights + of_rests : of_weights;
  }
  static __device__ __forceinline__ float low_of(uint32_t two) {
    if constexpr (std::is_same_v<Storage, __half>) {
      return __half2float(__ushort_as_half(uint16_t(two)));
    } else {
      return __uint_as_float(two << 16);
    }
  }
  // The low half.
  static __device__ __forceinline__ void store_shared_half(uint32_t smem, uint32_t two) {
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(smem), "h"(uint16_t(two)) : "memory");
  }

  uint32_t room_ = 0;
};

// Whether 32 bits can say where rows of some heads of a tensor are, in units of 16 bytes: heads and
// rows may span 32 GiB each.
inline bool spans_few_units(const device::DeviceTensor& tensor, int64_t heads, int64_t rows) {
  constexpr int64_t kMost = int64_t{1} << 35;  // elements
  const auto fits = [](int64_t stride, int64_t count) {
    return stride >= 0 && (count == 0 || stride <= kMost / 2 / count);
  };
  return fits(tensor.head_stride, heads) && fits(tensor.row_stride, rows);
}

// Calls visit(TensorGather<...>{}) for 16-bit rows of at most `cols` columns, up to 128.
template <int32_t kSlots, class Visitor>
void with_narrow_gather(DType dtype, int32_t cols, Visitor visit) {
  const auto with_storage = [&]<class Storage>() {
    if (cols <= 64) {
      visit(TensorGather<Storage, 64, kSlots>{});
    } else {
      visit(TensorGather<Storage, 128, kSlots>{});
    }
  };
  dtype == DType::f16 ? with_storage.template operator()<__half>()
                      : with_storage.template operator()<__nv_bfloat16>();
}

}  // namespace keyhole::mma
