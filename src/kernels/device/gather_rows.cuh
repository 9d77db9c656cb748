// src/kernels/device/gather_rows.cuh
// Products with the rows of a tensor that a list names, and weighted sums of such rows. A warp
// takes up to 32 rows at a time. Eight lanes read a row together, 16 bytes each, and every lane has
// up to eight rows in flight: all loads of a batch are issued before the first is awaited.
//
//   lanes    0..7   8..15    16..23   24..31
//   load i   4 i    4 i + 1  4 i + 2  4 i + 3     the places of the list whose rows they read
//
// Lane L owns the place place_of_lane(): it brings the index and the weight of that row, and gets
// its product. No shared memory is needed.
//
// The order of additions depends on the number of columns alone: not on the alignment, and not on
// which of the two rows of a product is the gathered one.
#pragma once

#include <algorithm>

#include "kernels/device/convert.cuh"
#include "kernels/device/row_blocks.cuh"

namespace keyhole::device {

inline constexpr int32_t kGatherLanes = 8;    // that read a row together
inline constexpr int32_t kGatherPlaces = 32;  // rows of a batch

__device__ __forceinline__ int32_t place_of_lane() {
  const int32_t lane = int32_t(threadIdx.x % 32);
  return lane % kGatherLanes * 4 + lane / kGatherLanes;
}
// How many loads of four rows a batch needs, if each lane says whether its own place is in use.
__device__ __forceinline__ int32_t loads_for(bool is_in_use) {
  uint32_t lanes = __ballot_sync(~0u, is_in_use);
  lanes |= lanes >> 16;
  lanes |= lanes >> 8;
  return 32 - __clz(int(lanes & 0xff));
}

// All rows of one head or unit that a list may name.
template <class Storage>
struct RowsOfHead {
  const Storage* first;
  int64_t stride;
  __device__ __forceinline__ int64_t offset(int32_t index) const { return index * stride; }
  __device__ __forceinline__ const Storage* operator()(int32_t index) const {
    return first + offset(index);
  }
};
template <class Storage>
__device__ __forceinline__ RowsOfHead<Storage> rows_of_head(const DeviceTensor& tensor,
                                                            int32_t batch, int32_t head) {
  return {tensor.row<const Storage>(batch, head, 0), tensor.row_stride};
}

// How a lane stores its columns of a sum. Gather::own_column(first, step): the first of kOwn
// neighbours.
template <class Gather, class Storage, int32_t kSteps, int32_t kOwn, bool kInVectors>
struct OwnColumnStores {
  using OwnColumns = float[kSteps][kOwn];

  static __device__ __forceinline__ void store(Storage* row, int32_t first, int32_t cols,
                                               const OwnColumns& own) {
    struct alignas(kOwn * sizeof(Storage)) Elements {
      Storage elements[kOwn];
    };
#pragma unroll
    for (int32_t s = 0; s < kSteps; ++s) {
      const int32_t col = Gather::own_column(first, s);
      Elements all;
#pragma unroll
      for (int32_t c = 0; c < kOwn; ++c) all.elements[c] = stored_as<Storage>(own[s][c]);
      if constexpr (kInVectors) {
        if (col < cols) *reinterpret_cast<Elements*>(row + col) = all;
      } else {
#pragma unroll
        for (int32_t c = 0; c < kOwn; ++c) {
          if (col + c < cols) row[col + c] = all.elements[c];
        }
      }
    }
  }
  // The same for rows of fp32 sums.
  static __device__ __forceinline__ void store_sums(float* row, int32_t first, int32_t cols,
                                                    const OwnColumns& own) {
    for_each_own(first, cols, [&](int32_t s, int32_t c, int32_t col) { row[col] = own[s][c]; });
  }
  static __device__ __forceinline__ void add_sums(const float* row, int32_t first, int32_t cols,
                                                  OwnColumns& own) {
    if constexpr (kInVectors && kOwn == 2) {
#pragma unroll
      for (int32_t s = 0; s < kSteps; ++s) {
        const int32_t col = Gather::own_column(first, s);
        if (col >= cols) continue;
        const float2 two = *reinterpret_cast<const float2*>(row + col);
        own[s][0] += two.x;
        own[s][1] += two.y;
      }
    } else {
      for_each_own(first, cols, [&](int32_t s, int32_t c, int32_t col) { own[s][c] += row[col]; });
    }
  }

 private:
  template <class Visit>
  static __device__ __forceinline__ void for_each_own(int32_t first, int32_t cols, Visit visit) {
#pragma unroll
    for (int32_t s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int32_t c = 0; c < kOwn; ++c) {
        const int32_t col = Gather::own_column(first, s) + c;
        if (col < cols) visit(s, c, col);
      }
    }
  }
};

// kSteps: vectors of 16 bytes that a lane reads of each row at a time. With 1, rows are at most one
// chunk of columns wide; with more, they may have any number of chunks.
template <class Storage_, int32_t kSteps_, bool kInVectors_>
struct RowGather : OwnColumnStores<RowGather<Storage_, kSteps_, kInVectors_>, Storage_, kSteps_,
                                   kVector<Storage_> / 4, kInVectors_> {
  using Storage = Storage_;
  static constexpr int32_t kSteps = kSteps_, kWidth = kVector<Storage>;
  static constexpr bool kInVectors = kInVectors_;
  static constexpr int32_t kColumns = kGatherLanes * kSteps * kWidth;  // of a chunk
  static constexpr int32_t kRows = 8;                                  // in flight, of a lane
  static constexpr int32_t kOwn = kWidth / 4;  // columns per step that a lane has of a sum
  using Columns = float[kSteps][kWidth];       // a lane's part of a chunk of a row
  using OwnColumns = float[kSteps][kOwn];      // the same of a sum over all lanes

  // The interface of lists that may also be followed on tensor cores (mma/tensor_gather.cuh). There
  // rows are copied to slots of shared memory before they are used; here they are read when they
  // are.
  static constexpr int32_t kRoomBytes = 0;
  RowGather() = default;
  __device__ explicit RowGather(unsigned char* /*room*/) {}
  static __device__ __forceinline__ int32_t place_of_lane() { return device::place_of_lane(); }
  static __device__ __forceinline__ int32_t loads_for(bool is_in_use) {
    return device::loads_for(is_in_use);
  }
  template <class RowAt>
  __device__ __forceinline__ void start(int32_t /*slot*/, RowAt, int32_t, int32_t, int32_t) const {}
  static __device__ __forceinline__ void await() {}
  template <class RowAt>
  static __device__ __forceinline__ float dot(int32_t /*slot*/, const Storage* x, RowAt row_at,
                                              int32_t cols, int32_t index, int32_t loads) {
    return dot(x, row_at, cols, index, loads);
  }
  template <class RowAt>
  static __device__ __forceinline__ void add(Columns& sum, int32_t /*slot*/, RowAt row_at,
                                             int32_t first, int32_t cols, int32_t index,
                                             float weight, int32_t loads) {
    add(sum, row_at, first, cols, index, weight, loads);
  }

  // Calls visit(first column) for each chunk of a row.
  template <class Visit>
  static __device__ __forceinline__ void for_each_chunk(int32_t cols, Visit visit) {
    if constexpr (kSteps == 1) {
      visit(0);
    } else {
#pragma unroll 1
      for (int32_t first = 0; first < cols; first += kColumns) visit(first);
    }
  }

  // The product of the row `x` with that of this lane's place. row_at(index): a pointer to a row;
  // index: -1: no row, and 0 is returned. loads: loads_for these places. The whole warp calls.
  template <class RowAt>
  static __device__ __forceinline__ float dot(const Storage* x, RowAt row_at, int32_t cols,
                                              int32_t index, int32_t loads) {
    const int32_t lane = int32_t(threadIdx.x % 32);
    float sum[kRows] = {};
    for_each_chunk(cols, [&](int32_t first) {
      uint4 raw_x[kSteps], raw[kRows][kSteps];
      load_row(x, first, cols, raw_x);
#pragma unroll
      for (int32_t i = 0; i < kRows; ++i) {
        if (i >= loads) continue;  // the same for all lanes
        const int32_t his = __shfl_sync(~0u, index, i, kGatherLanes);
        load_row_or_zeros(his >= 0, row_at(his), first, cols, raw[i]);
      }
      float of_x[kSteps][kWidth];
#pragma unroll
      for (int32_t s = 0; s < kSteps; ++s) convert<Storage>(raw_x[s], of_x[s]);
#pragma unroll
      for (int32_t i = 0; i < kRows; ++i) {
        if (i >= loads) continue;
#pragma unroll
        for (int32_t s = 0; s < kSteps; ++s) {
          float value[kWidth];
          convert<Storage>(raw[i][s], value);
#pragma unroll
          for (int32_t c = 0; c < kWidth; ++c) sum[i] = fmaf(of_x[s][c], value[c], sum[i]);
        }
      }
    });
    // Each step halves the rows of a lane: it keeps those whose number has the bit of its own.
#pragma unroll
    for (int32_t half = kRows / 2; half > 0; half /= 2) halve<kRows>(sum, half, half, lane);
    return sum[0];
  }

  // Adds weight * row for all places to a chunk of columns. Rows of weight 0 are not read. Each
  // group of eight lanes has a sum of its own.
  template <class RowAt>
  static __device__ __forceinline__ void add(Columns& sum, RowAt row_at, int32_t first,
                                             int32_t cols, int32_t index, float weight,
                                             int32_t loads) {
    uint4 raw[kRows][kSteps];
#pragma unroll
    for (int32_t i = 0; i < kRows; ++i) {
      if (i >= loads) continue;
      const int32_t his = __shfl_sync(~0u, index, i, kGatherLanes);
      const float his_weight = __shfl_sync(~0u, weight, i, kGatherLanes);
      load_row_or_zeros(his >= 0 && his_weight != 0, row_at(his), first, cols, raw[i]);
    }
#pragma unroll
    for (int32_t i = 0; i < kRows; ++i) {
      if (i >= loads) continue;
      const float his_weight = __shfl_sync(~0u, weight, i, kGatherLanes);
#pragma unroll
      for (int32_t s = 0; s < kSteps; ++s) {
        float value[kWidth];
        convert<Storage>(raw[i][s], value);
#pragma unroll
        for (int32_t c = 0; c < kWidth; ++c) sum[s][c] = fmaf(his_weight, value[c], sum[s][c]);
      }
    }
  }

  // Adds up the sums of the four groups of lanes, and adds the result to `own`: lane L has kOwn
  // columns of each step, those from own_column on.
  static __device__ __forceinline__ void share(Columns& sum, OwnColumns& own) {
    const int32_t lane = int32_t(threadIdx.x % 32);
#pragma unroll
    for (int32_t s = 0; s < kSteps; ++s) {
      halve<kWidth>(sum[s], kWidth / 2, 16, lane);
      halve<kWidth>(sum[s], kWidth / 4, 8, lane);
#pragma unroll
      for (int32_t c = 0; c < kOwn; ++c) own[s][c] += sum[s][c];
    }
  }
  static __device__ __forceinline__ int32_t own_column(int32_t first, int32_t step) {
    const int32_t lane = int32_t(threadIdx.x % 32);
    return first + (step * kGatherLanes + lane % kGatherLanes) * kWidth +
           lane / kGatherLanes * kOwn;
  }

 private:
  static __device__ __forceinline__ void load_row(const Storage* row, int32_t first, int32_t cols,
                                                  uint4 (&raw)[kSteps]) {
    load_row_or_zeros(true, row, first, cols, raw);
  }
  static __device__ __forceinline__ void load_row_or_zeros(bool is_there, const Storage* row,
                                                           int32_t first, int32_t cols,
                                                           uint4 (&raw)[kSteps]) {
    const int32_t lane = int32_t(threadIdx.x % kGatherLanes);
    const int32_t end = is_there ? cols : 0;
#pragma unroll
    for (int32_t s = 0; s < kSteps; ++s) {
      const int32_t col = first + (s * kGatherLanes + lane) * kWidth;
      raw[s] = device::load<Storage, kInVectors>(row, col, end);
    }
  }

  // Exchanges halves with the lane whose number differs in one bit, and adds what both have.
  template <int32_t kCount>
  static __device__ __forceinline__ void halve(float (&sum)[kCount], int32_t half, int32_t bit,
                                               int32_t lane) {
    const bool is_upper = (lane & bit) != 0;
#pragma unroll
    for (int32_t i = 0; i < kCount / 2; ++i) {
      if (i >= half) continue;
      const float kept = is_upper ? sum[i + half] : sum[i];
      const float given = is_upper ? sum[i] : sum[i + half];
      sum[i] = kept + __shfl_xor_sync(~0u, given, bit);
    }
  }
};

// Calls visit(RowGather<...>{}) for rows of at most `cols` columns.
template <class Visitor>
void with_row_gather(DType dtype, int32_t cols, bool is_in_vectors, Visitor visit) {
  with_device_storage(dtype, [&](auto storage) {
    using Storage = decltype(storage);
    const auto with_steps = [&]<int32_t kSteps>() {
      if (is_in_vectors) {
        visit(RowGather<Storage, kSteps, true>{});
      } else {
        visit(RowGather<Storage, kSteps, false>{});
      }
    };
    if (cols <= RowGather<Storage, 1, true>::kColumns) {
      with_steps.template operator()<1>();
    } else {
      with_steps.template operator()<2>();
    }
  });
}

}  // namespace keyhole::device
