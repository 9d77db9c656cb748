// tests/gpu/gpu_problem.cpp
#include "gpu/gpu_problem.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <set>

#include "base/dtype.h"
#include "runtime/dispatch.h"
#include "runtime/registry.h"

namespace keyhole::test {
namespace {

// Numbers drawn on the host for one tensor. Longer tensors repeat them; the odd remainder keeps
// rows of equal number in neighbouring heads, or 2^31 elements apart, different.
constexpr int64_t kDrawn = (int64_t{1} << 24) + 37 * 128;

Normalizer normalizer_for(const KernelEntry& kernel) {
  return kernel.weights == Weights::sparse ? entmax(1.5, 40) : softmax();
}

Request request_for(const KernelEntry& kernel, int64_t head_dim) {
  Request request = keyhole::request_for(kGpu, kernel.operation, kernel.dtype, head_dim, head_dim);
  request.normalizer = normalizer_for(kernel);
  request.deterministic = kernel.operation == Operation::backward;
  return request;
}

// Some kernels take any head_dim up to 576; the others are tried at the width of their registers.
int64_t head_dim_for(const KernelEntry& kernel) {
  return kernel.max_head_dim <= 256 ? kernel.max_head_dim : 64;
}

double scale_of(const GpuProblem& problem) {
  return 1 / std::sqrt(double(problem.q.view().shape[3]));
}

}  // namespace

GpuTensor::GpuTensor(DType dtype, std::initializer_list<int64_t> shape)
    : view_(nullptr, dtype, shape) {
  memory_ = GpuMemory(kGpu, view_.num_elements() * bytes_of(dtype));
  view_.data = memory_.data();
  view_.device = kGpu;
}

void GpuTensor::draw(Random& random) const {
  const int64_t count = view_.num_elements(), drawn = std::min(count, kDrawn);
  std::vector<float> numbers(static_cast<size_t>(drawn));
  for (float& number : numbers) number = float(random.quick_normal());
  write(numbers);
  const int64_t size = bytes_of(view_.dtype);
  for (int64_t first = drawn; first < count; first += drawn) {
    check_cuda(cudaMemcpyAsync(static_cast<std::byte*>(memory_.data()) + first * size,
                               memory_.data(), size_t(std::min(drawn, count - first) * size),
                               cudaMemcpyDeviceToDevice, nullptr),
               "repeating the numbers of a tensor");
  }
}

void GpuTensor::write(const std::vector<float>& numbers) const {
  with_storage(view_.dtype, [&](auto storage) {
    using Storage = decltype(storage);
    std::vector<Storage> stored(numbers.size());
    std::transform(numbers.begin(), numbers.end(), stored.begin(), Traits<Storage>::from);
    memory_.copy_from_host(stored.data(), int64_t(stored.size() * sizeof(Storage)));
    // The copy may still be reading what is about to go.
    check_cuda(cudaStreamSynchronize(nullptr), "copying to the GPU");
  });
}

std::vector<float> GpuTensor::read(int64_t first, int64_t count) const {
  synchronize(kGpu);
  std::vector<float> numbers(static_cast<size_t>(count));
  with_storage(view_.dtype, [&](auto storage) {
    using Storage = decltype(storage);
    std::vector<Storage> stored(numbers.size());
    check_cuda(cudaMemcpy(stored.data(), static_cast<const Storage*>(memory_.data()) + first,
                          stored.size() * sizeof(Storage), cudaMemcpyDeviceToHost),
               "copying from the GPU");
    std::transform(stored.begin(), stored.end(), numbers.begin(),
                   [](Storage x) { return float(to_f32(x)); });
  });
  return numbers;
}

GpuProblem::GpuProblem(const ProblemSizes& s, uint64_t seed) {
  const DType lse_dtype = s.dtype == DType::f64 ? DType::f64 : DType::f32;
  for (GpuTensor* tensor : {&q, &dout, &out, &dq}) {
    *tensor = GpuTensor(s.dtype, {1, s.heads, s.q_len, s.head_dim});
  }
  for (GpuTensor* tensor : {&k, &v, &dk, &dv}) {
    *tensor = GpuTensor(s.dtype, {1, s.kv_heads, s.k_len, s.head_dim});
  }
  lse = GpuTensor(lse_dtype, {1, s.heads, s.q_len});
  if (s.has_sink) {
    sink = GpuTensor(DType::f32, {s.heads});
    dsink = GpuTensor(DType::f32, {s.heads});
  }
  draw(seed);
}

void GpuProblem::draw(uint64_t seed) const {
  Random random(seed);
  for (const GpuTensor* tensor : {&q, &k, &v, &dout, &sink}) {
    if (tensor->view().is_given()) tensor->draw(random);
  }
  synchronize(kGpu);
}

std::vector<const GpuTensor*> GpuProblem::outputs(Operation operation) const {
  if (operation == Operation::forward) return {&out, &lse};
  return {&dq, &dk, &dv, &dsink};
}

void GpuProblem::spoil(Operation operation) const {
  for (const GpuTensor* tensor : outputs(operation)) tensor->fill(0xff);
  synchronize(kGpu);
}

std::vector<std::byte> GpuProblem::results(Operation operation) const {
  synchronize(kGpu);
  std::vector<std::byte> all;
  for (const GpuTensor* tensor : outputs(operation)) {
    if (tensor->bytes() == 0) continue;
    const size_t begin = all.size();
    all.resize(begin + size_t(tensor->bytes()));
    check_cuda(cudaMemcpy(all.data() + begin, tensor->view().data, size_t(tensor->bytes()),
                          cudaMemcpyDeviceToHost),
               "copying from the GPU");
  }
  return all;
}

void GpuProblem::forward(const Lists& lists, AttentionOptions options) const {
  options.sink = sink.view();
  attention_forward(q.view(), k.view(), v.view(), lists, out.view(), lse.view(), options);
}

void GpuProblem::backward(const Lists& lists, AttentionOptions options) const {
  options.sink = sink.view();
  attention_backward(dout.view(), q.view(), k.view(), v.view(), out.view(), lse.view(), lists,
                     {dq.view(), dk.view(), dv.view(), dsink.view()}, options);
}

int64_t GpuProblem::forward_workspace(const Lists& lists, AttentionOptions options) const {
  options.sink = sink.view();
  return forward_workspace_bytes(q.view(), k.view(), v.view(), lists, out.view(), lse.view(),
                                 options);
}

int64_t GpuProblem::backward_workspace(const Lists& lists, AttentionOptions options) const {
  options.sink = sink.view();
  return backward_workspace_bytes(dout.view(), q.view(), k.view(), v.view(), out.view(), lse.view(),
                                  lists, {dq.view(), dk.view(), dv.view(), dsink.view()}, options);
}

ForwardArgs forward_args(const GpuProblem& problem, const Launch& launch) {
  ForwardArgs args;
  args.q = problem.q.view(), args.k = problem.k.view(), args.v = problem.v.view();
  args.out = problem.out.view(), args.lse = problem.lse.view(), args.sink = problem.sink.view();
  args.rule.scale = scale_of(problem);
  args.launch = launch;
  return args;
}

BackwardArgs backward_args(const GpuProblem& problem, const Launch& launch) {
  BackwardArgs args;
  args.dout = problem.dout.view(), args.q = problem.q.view(), args.k = problem.k.view();
  args.v = problem.v.view(), args.out = problem.out.view(), args.lse = problem.lse.view();
  args.dq = problem.dq.view(), args.dk = problem.dk.view(), args.dv = problem.dv.view();
  args.sink = problem.sink.view(), args.dsink = problem.dsink.view();
  args.rule.scale = scale_of(problem);
  args.launch = launch;
  return args;
}

std::vector<const KernelEntry*> gpu_kernels(Operation operation) {
  std::vector<const KernelEntry*> kernels;
  for (const KernelEntry& kernel : kernel_table()) {
    if (kernel.device != Device::Kind::cuda || kernel.operation != operation) continue;
    std::string why_not = why_not_here(kernel);
    if (why_not.empty()) why_not = refusal(kernel, request_for(kernel, head_dim_for(kernel)));
    if (why_not.empty()) {
      kernels.push_back(&kernel);
    } else if (static std::set<std::string> told; told.insert(kernel.name).second) {
      std::cout << kernel.name << " is left out: " << why_not << "\n";
    }
  }
  return kernels;
}

std::vector<std::string> gpu_backends(Operation operation, DType dtype) {
  std::vector<std::string> backends;
  for (const KernelEntry* kernel : gpu_kernels(operation)) {
    if (kernel->dtype != dtype || kernel->weights != Weights::softmax) continue;
    if (std::find(backends.begin(), backends.end(), kernel->backend) == backends.end()) {
      backends.push_back(kernel->backend);
    }
  }
  return backends;
}

ProblemSizes sizes_for(const KernelEntry& kernel, int64_t length) {
  return {
      .q_len = length, .k_len = length, .head_dim = head_dim_for(kernel), .dtype = kernel.dtype};
}

namespace {

ForwardArgs forward_args_for(const KernelEntry& kernel, const GpuProblem& problem,
                             const Launch& launch) {
  ForwardArgs args = forward_args(problem, launch);
  args.rule.normalizer = normalizer_for(kernel);
  return args;
}
// Deterministic.
BackwardArgs backward_args_for(const KernelEntry& kernel, const Plan& plan, TileShape tile,
                               const GpuProblem& problem, const Launch& launch) {
  BackwardArgs args = backward_args(problem, launch);
  args.rule.normalizer = normalizer_for(kernel);
  args.schedule = schedule_of(kernel, plan, tile, args, /*deterministic=*/true);
  return args;
}

}  // namespace

void queue(const KernelEntry& kernel, const Plan& plan, const GpuProblem& problem,
           const Launch& launch) {
  const TileShape tile = pick_tile(kernel, plan);
  if (kernel.operation == Operation::forward) {
    run_forward(kernel, plan, tile, forward_args_for(kernel, problem, launch));
  } else {
    run_backward(kernel, plan, tile, backward_args_for(kernel, plan, tile, problem, launch));
  }
}

BackwardSchedule queued_schedule(const KernelEntry& kernel, const Plan& plan,
                                 const GpuProblem& problem) {
  return backward_args_for(kernel, plan, pick_tile(kernel, plan), problem, {}).schedule;
}

int64_t workspace_bytes(const KernelEntry& kernel, const Plan& plan, const GpuProblem& problem,
                        const Launch& launch) {
  const TileShape tile = pick_tile(kernel, plan);
  if (kernel.operation == Operation::forward) {
    return forward_workspace_on_gpu(kernel, plan, tile, forward_args_for(kernel, problem, launch));
  }
  return backward_workspace_on_gpu(kernel, plan, tile,
                                   backward_args_for(kernel, plan, tile, problem, launch));
}

Stream::Stream() {
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
}
Stream::~Stream() { cudaStreamDestroy(stream_); }

AttentionOptions by_backend(const std::string& backend) {
  AttentionOptions options;
  options.backend = backend;
  return options;
}
AttentionOptions for_forward(AttentionOptions options) {
  const std::vector<std::string> able = gpu_backends(Operation::forward, DType::bf16);
  if (std::find(able.begin(), able.end(), options.backend) == able.end()) options.backend = "auto";
  return options;
}
AttentionOptions on_stream(const Stream& stream) {
  AttentionOptions options;
  options.deterministic = true;
  options.stream = stream.get();
  return options;
}

void expect_error(ErrorKind kind, const std::string& text, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), text);
    EXPECT_STREQ(to_string(error.kind()), to_string(kind));
    return;
  }
  ADD_FAILURE() << "no error, where this one is due: " << text;
}

}  // namespace keyhole::test
