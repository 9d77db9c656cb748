// tests/support/gpu/fill.h
// Writes poison and numbers into the memory of a GPU. All of it is queued on the default stream.
#pragma once

#include <cstdint>

#include "keyhole/tensor.h"
#include "support/numbers.h"

namespace keyhole::test {

// `bytes`, an even number of them, filled with a 16-bit pattern.
void paint_on_gpu(void* memory, int64_t bytes, uint16_t pattern);
// Every element of a tensor, and nothing beside them. Where elements share memory (stride 0) the
// last one stays, as on the host.
void fill_on_gpu(const TensorView& tensor, const Numbers& numbers);
void paint_elements_on_gpu(const TensorView& tensor, uint16_t pattern);
// The same numbers in another place; or head h / group of `from` for head h of `to`.
void copy_on_gpu(const TensorView& to, const TensorView& from);
void repeat_heads_on_gpu(const TensorView& to, const TensorView& from, int64_t group);

}  // namespace keyhole::test
