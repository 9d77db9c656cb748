// cli/file_tensor.cpp
#include "cli/file_tensor.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/dtype.h"

namespace keyhole::cli {
namespace {

template <class Storage>
void store_as(const std::vector<double>& values, const TensorView& to) {
  size_t at = 0;
  for (int64_t b = 0; b < to.shape[0]; ++b) {
    for (int64_t h = 0; h < to.shape[1]; ++h) {
      for (int64_t i = 0; i < to.shape[2]; ++i) {
        for (int64_t x = 0; x < to.shape[3]; ++x, ++at) {
          const int64_t offset = b * to.strides[0] + h * to.strides[1] + i * to.strides[2] + x;
          using Compute = typename Traits<Storage>::Compute;
          static_cast<Storage*>(to.data)[offset] = Traits<Storage>::from(Compute(values[at]));
        }
      }
    }
  }
}

DType dtype_of(const NpyArray& array, const std::string& option, const std::string& wanted) {
  if (array.dtype == "<u2") {
    KEYHOLE_CHECK(
        wanted == "bf16", option,
        " holds <u2, unsigned 16-bit integers; if they are bf16 numbers, pass --dtype bf16");
    return DType::bf16;
  }
  const std::optional<DType> dtype = array.dtype == "<f4"   ? std::optional(DType::f32)
                                     : array.dtype == "<f8" ? std::optional(DType::f64)
                                     : array.dtype == "<f2" ? std::optional(DType::f16)
                                                            : std::nullopt;
  KEYHOLE_CHECK(dtype.has_value(), option, " holds ", array.dtype,
                "; accepted are <f4, <f8, <f2, and <u2 for bf16");
  KEYHOLE_CHECK(wanted.empty() || wanted == to_string(*dtype), option, " holds ", to_string(*dtype),
                " but --dtype is ", wanted, "; leave --dtype out, or convert the file");
  return *dtype;
}

// Ranks 2 and 3 are rank 4 without the leading dimensions. In memory, bshd has length before heads.
TensorView view_of(const NpyArray& array, DType dtype, const std::string& option, bool is_bshd) {
  const size_t rank = array.shape.size();
  KEYHOLE_CHECK(rank >= 2 && rank <= 4, option, " has ", rank,
                " dimensions; accepted are 2 [length, dim], 3 ",
                is_bshd ? "[length, heads, dim]" : "[heads, length, dim]", " and 4 ",
                is_bshd ? "[batch, length, heads, dim]" : "[batch, heads, length, dim]");
  int64_t shape[4] = {1, 1, 1, 1};
  std::copy(array.shape.begin(), array.shape.end(), shape + (4 - rank));
  if (rank == 2 || !is_bshd)
    return TensorView(array.data.data(), dtype, {shape[0], shape[1], shape[2], shape[3]});
  const int64_t row = shape[3], token = shape[2] * row, entry = shape[1] * token;
  return TensorView(array.data.data(), dtype, {shape[0], shape[2], shape[1], shape[3]},
                    {entry, row, token, 1});
}

}  // namespace

FileTensor read_tensor(const std::string& path, const std::string& option, const std::string& dtype,
                       bool is_bshd) {
  FileTensor tensor;
  tensor.array = read_npy(path);
  tensor.view = view_of(tensor.array, dtype_of(tensor.array, option, dtype), option, is_bshd);
  return tensor;
}

std::vector<float> read_sink(const std::string& path) {
  const NpyArray array = read_npy(path);
  KEYHOLE_CHECK(array.shape.size() == 1, "--sink has ", array.shape.size(),
                " dimensions; expected 1: [heads]");
  KEYHOLE_CHECK(array.dtype == "<f4" || array.dtype == "<f8", "--sink holds ", array.dtype,
                "; accepted are <f4 and <f8");
  std::vector<float> sink(size_t(array.shape[0]));
  for (size_t i = 0; i < sink.size(); ++i) {
    if (array.dtype == "<f4") {
      std::memcpy(&sink[i], array.data.data() + 4 * i, 4);
    } else {
      double wide;
      std::memcpy(&wide, array.data.data() + 8 * i, 8);
      sink[i] = float(wide);
    }
  }
  return sink;
}

FileTensor like(const FileTensor& q, int64_t last, bool is_bshd) {
  FileTensor made;
  made.array.dtype = q.array.dtype;
  made.array.shape = q.array.shape;
  made.array.shape.back() = last;
  int64_t count = 1;
  for (const int64_t size : made.array.shape) count *= size;
  made.array.data.resize(size_t(count * bytes_of(q.view.dtype)));
  made.view = view_of(made.array, q.view.dtype, "--out", is_bshd);
  return made;
}

void store(const std::vector<double>& values, const TensorView& to) {
  with_storage(to.dtype, [&](auto storage) { store_as<decltype(storage)>(values, to); });
}

}  // namespace keyhole::cli
