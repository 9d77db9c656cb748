// include/keyhole/tensor.h
// TensorView: a pointer with dtype, shape and strides. It owns nothing and copies nothing.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

namespace keyhole {

// e4m3 is the 8-bit format of OCP (e4m3fn): four bits of exponent, no infinities, at most 448. Only
// an indexer reads it (select.h).
enum class DType : uint8_t { f16, bf16, f32, f64, e4m3 };

const char* to_string(DType dtype);  // "f16", "bf16", "f32", "f64", "e4m3"
int64_t bytes_of(DType dtype);

// Where the memory is. ordinal is the index of the GPU.
struct Device {
  enum class Kind : uint8_t { cpu, cuda } kind = Kind::cpu;
  int32_t ordinal = 0;
  bool operator==(const Device&) const = default;
};

// The logical order is [batch, heads, length, head_dim] for q, k, v and out, and [batch, heads,
// length] for lse. Strides describe the order in memory. They count elements; the last dimension
// must be contiguous (stride 1) unless its size is 0 or 1.
struct TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  int64_t shape[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};
  Device device = {};

  TensorView() = default;
  // A contiguous tensor, last dimension fastest.
  TensorView(const void* data, DType dtype, std::initializer_list<int64_t> shape);
  TensorView(const void* data, DType dtype, std::initializer_list<int64_t> shape,
             std::initializer_list<int64_t> strides);

  bool is_given() const { return rank != 0; }  // an optional tensor that was not passed has rank 0
  int64_t num_elements() const;                // throws when the product exceeds int64
};

std::string to_string(const TensorView& tensor);  // "f32 [1, 4, 2048, 128]"

}  // namespace keyhole
