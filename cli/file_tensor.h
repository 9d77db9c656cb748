// cli/file_tensor.h
// From .npy files to tensors: an array of two to four dimensions as [batch, heads, length, dim].
#pragma once

#include <string>
#include <vector>

#include "base/npy.h"
#include "keyhole/tensor.h"

namespace keyhole::cli {

struct FileTensor {
  NpyArray array;
  TensorView view;  // into array.data
};

// `option` names the file in errors; `dtype` is what the user says it holds, or empty. With
// is_bshd, length comes before heads in the file.
FileTensor read_tensor(const std::string& path, const std::string& option, const std::string& dtype,
                       bool is_bshd);
// One logit per head, as f32 whatever float the file holds.
std::vector<float> read_sink(const std::string& path);
// The same rank, order and dtype as the file of q, with another last dimension; not yet filled.
FileTensor like(const FileTensor& q, int64_t last, bool is_bshd);
// Values in logical order, rounded to the tensor's dtype.
void store(const std::vector<double>& values, const TensorView& to);

}  // namespace keyhole::cli
