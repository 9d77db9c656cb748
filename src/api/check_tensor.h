// src/api/check_tensor.h
// Checks of single tensors and pairs of them, for the checks of every public function. who: the
// function or family that an error names.
#pragma once

#include <initializer_list>
#include <string>

#include "keyhole/tensor.h"

namespace keyhole {

// First and one-past-last byte that a tensor can touch, equal if there are none. Computed with
// overflow checks.
struct Extent {
  uintptr_t begin = 0, end = 0;
};
Extent extent_of(const TensorView& tensor, const char* name);

std::string shape_text(const TensorView& tensor);  // "[1, 4, 2048, 128]"
std::string place_text(const Device& device);      // "in host memory", "on GPU 0"

// The rules for every tensor, whatever its role. Returns its extent, so that it is computed once.
Extent check_tensor(const char* who, const TensorView& tensor, const char* name, int rank,
                    const char* expected);
void check_sizes(const char* who, const TensorView& tensor, const char* name,
                 std::initializer_list<int64_t> want, const char* meaning, const char* of = "");
// Does nothing if `tensor` was not given.
void check_same_device(const char* who, const TensorView& tensor, const char* name,
                       const TensorView& q, const char* q_name = "q");
void check_same_dtype(const char* who, const TensorView& tensor, const char* name,
                      const TensorView& q, const char* q_name = "q");
void check_apart(const char* who, const Extent& output, const char* output_name,
                 const Extent& other, const char* other_name);

// An output must not have two elements at the same address.
void check_output(const char* who, const TensorView& tensor, const char* name);

// Does nothing if one of them was not given.
void check_no_overlap(const char* who, const TensorView& output, const char* output_name,
                      const TensorView& other, const char* other_name);

}  // namespace keyhole
