// tests/kernels/bounds_test.cpp
// Tensors that end exactly where the process's memory ends, or begin exactly where it begins: one
// element read or written too far is a crash, not a wrong number that a tolerance might forgive.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <iostream>

#include "base/dtype.h"
#include "base/random.h"
#include "support/check_case.h"

namespace keyhole::test {
namespace {

// Contiguous memory between two pages that cannot be touched.
class GuardedTensor {
 public:
  GuardedTensor(DType dtype, std::initializer_list<int64_t> shape, bool at_end) {
    int64_t elements = 1;
    for (const int64_t size : shape) elements *= size;
    const size_t page = size_t(sysconf(_SC_PAGESIZE)), bytes = size_t(elements * bytes_of(dtype));
    const size_t inside = (bytes + page - 1) / page * page;
    mapped_bytes_ = inside + 2 * page;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + page, inside, PROT_READ | PROT_WRITE);
    view_ = TensorView(base_ + page + (at_end ? inside - bytes : 0), dtype, shape);
  }
  ~GuardedTensor() { munmap(base_, mapped_bytes_); }
  GuardedTensor(const GuardedTensor&) = delete;
  GuardedTensor& operator=(const GuardedTensor&) = delete;

  const TensorView& view() const { return view_; }
  void fill(Random random) {
    with_storage(view_.dtype, [&](auto storage) {
      using Storage = decltype(storage);
      auto* data = static_cast<Storage*>(view_.data);
      for (int64_t i = 0; i < view_.num_elements(); ++i) {
        data[i] = Traits<Storage>::from(typename Traits<Storage>::Compute(random.quick_normal()));
      }
    });
  }

 private:
  std::byte* base_;
  size_t mapped_bytes_;
  TensorView view_;
};

TEST(Bounds, KernelsTouchNothingBesideTheirTensors) {
  int64_t runs = 0;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    const DType lse_dtype = dtype == DType::f64 ? DType::f64 : DType::f32;
    for (const char* text : {"dense", "causal", "strided(5)", "random(1,4,1)", "window(3)"}) {
      for (const auto& [q_len, k_len] :
           {std::pair<int64_t, int64_t>{1, 1}, {17, 33}, {64, 64}, {65, 63}}) {
        for (const auto& [d, vd] :
             {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {17, 16}, {64, 33}}) {
          for (const bool at_end : {true, false}) {
            const Plan made = plan(build(parse_expression(text), {1, 2, q_len, k_len, {}}),
                                   Shape{1, 2, q_len, k_len, {}});
            GuardedTensor q(dtype, {1, 2, q_len, d}, at_end), k(dtype, {1, 1, k_len, d}, at_end);
            GuardedTensor v(dtype, {1, 1, k_len, vd}, at_end),
                dout(dtype, {1, 2, q_len, vd}, at_end);
            GuardedTensor out(dtype, {1, 2, q_len, vd}, at_end),
                lse(lse_dtype, {1, 2, q_len}, at_end);
            GuardedTensor dq(dtype, {1, 2, q_len, d}, at_end), dk(dtype, {1, 1, k_len, d}, at_end);
            GuardedTensor dv(dtype, {1, 1, k_len, vd}, at_end);
            Random random(uint64_t(q_len * 100 + d));
            for (GuardedTensor* tensor : {&q, &k, &v, &dout}) tensor->fill(random.fork());
            AttentionOptions options;
            options.threads = 1;
            const Normalizer sparse[] = {softmax(), entmax(1.5), softmax(3), entmax(1.3)};
            options.normalizer = sparse[runs % 4];
            attention_forward(q.view(), k.view(), v.view(), made, out.view(), lse.view(), options);
            attention_backward(dout.view(), q.view(), k.view(), v.view(), out.view(), lse.view(),
                               made, {dq.view(), dk.view(), dv.view(), {}}, options);
            ++runs;
          }
        }
      }
    }
  }
  std::cout << runs << " forward and backward runs between guard pages\n";
}

}  // namespace
}  // namespace keyhole::test
