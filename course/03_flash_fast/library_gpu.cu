// course/03_flash_fast/library_gpu.cu [LENGTH]
// The same problem by the library, through its public headers: the line to compare with. It runs
// where the library was built with its GPU kernels. Where it was not, this program says so and ends
// with status 77.
#include <keyhole/keyhole.h>

#include <optional>

#include "problem.h"

namespace {

// A tensor [batch, heads, length, head_dim] on the first GPU: a pointer and a shape, no copy.
keyhole::TensorView view_of(const void* data, std::int64_t length) {
  keyhole::TensorView view(data, keyhole::DType::bf16,
                           {1, course::kHeads, length, course::kHeadDim});
  view.device = {keyhole::Device::Kind::cuda, 0};
  return view;
}

keyhole::Plan dense_plan(std::int64_t length) {
  return plan(keyhole::dense(),
              {.batch = 1, .heads = course::kHeads, .q_len = length, .k_len = length});
}

// Why the library has no kernel for this problem here; empty if it has one.
std::string why_not() {
  const course::GpuArray<course::bf16> some(std::size_t(course::kHeads) * 128 * course::kHeadDim);
  const keyhole::TensorView view = view_of(some.data(), 128);
  try {
    kernel_for_forward(view, view, dense_plan(128));
    return {};
  } catch (const keyhole::Error& error) {
    return error.what();
  }
}

}  // namespace

int main(int argc, char** argv) {
  course::need_gpu();
  if (const std::string why = why_not(); !why.empty()) {
    std::printf("the library has no kernel for this GPU here: %s\n", why.c_str());
    return 77;
  }
  // Compiled once, before anything is timed: the dense pattern as lists of tiles, all of them full.
  std::optional<keyhole::Plan> dense;
  return course::run_step("library attention_forward", argc, argv, [&](const course::Tensors& t) {
    if (!dense) dense = dense_plan(t.length);
    attention_forward(view_of(t.q, t.length), view_of(t.k, t.length), view_of(t.v, t.length),
                      *dense, view_of(t.out, t.length));
  });
}
