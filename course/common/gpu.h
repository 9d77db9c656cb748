// course/common/gpu.h
// What every CUDA program of the course needs: calls that are checked, memory that frees itself, a
// stopwatch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace course {

// Every call of CUDA's runtime goes through here: an error that is not looked at shows up later,
// somewhere else.
#define GPU(call)                                                        \
  do {                                                                   \
    if (const cudaError_t error = (call); error != cudaSuccess) {        \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                   cudaGetErrorString(error));                           \
      std::exit(1);                                                      \
    }                                                                    \
  } while (false)

// Ends the program with status 77, "skipped", where no GPU of this compute capability (90: Hopper)
// is.
inline void need_gpu(int capability = 75) {
  int devices = 0;
  cudaDeviceProp gpu{};
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU here: this program was compiled, and not run\n");
    std::exit(77);
  }
  GPU(cudaGetDeviceProperties(&gpu, 0));
  if (gpu.major * 10 + gpu.minor < capability) {
    std::printf("this program needs compute capability %d.%d; the %s here has %d.%d\n",
                capability / 10, capability % 10, gpu.name, gpu.major, gpu.minor);
    std::exit(77);
  }
}

// Memory of the GPU that holds `count` values of T.
template <class T>
class GpuArray {
 public:
  explicit GpuArray(std::size_t count) : count_(count) {
    GPU(cudaMalloc(&data_, count * sizeof(T)));
  }
  explicit GpuArray(const std::vector<T>& values) : GpuArray(values.size()) {
    GPU(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  GpuArray(const GpuArray&) = delete;
  GpuArray& operator=(const GpuArray&) = delete;
  ~GpuArray() { cudaFree(data_); }

  T* data() const { return data_; }
  std::size_t size() const { return count_; }
  // Bytes of ones are NaN in every format of floating point: a value that a kernel forgets to write
  // is seen.
  void poison() { GPU(cudaMemset(data_, 0xff, count_ * sizeof(T))); }
  std::vector<T> to_host() const {
    std::vector<T> values(count_);
    GPU(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

// Milliseconds of one call of `run`, which puts work on the default stream: the shortest mean of a
// few groups of calls, between two events that the GPU itself notes. With COURSE_ONE_CALL in the
// environment it is one call, for tools that make every call a hundred times as slow.
template <class Function>
double gpu_milliseconds(Function&& run, int calls = 10, int groups = 5) {
  if (std::getenv("COURSE_ONE_CALL") != nullptr) calls = groups = 1;
  cudaEvent_t begin, end;
  GPU(cudaEventCreate(&begin));
  GPU(cudaEventCreate(&end));
  run();  // the first call loads the kernel
  GPU(cudaGetLastError());
  float best = 1e30f;
  for (int group = 0; group < groups; ++group) {
    GPU(cudaEventRecord(begin));
    for (int i = 0; i < calls; ++i) run();
    GPU(cudaEventRecord(end));
    GPU(cudaEventSynchronize(end));
    float milliseconds = 0;
    GPU(cudaEventElapsedTime(&milliseconds, begin, end));
    best = std::min(best, milliseconds / static_cast<float>(calls));
  }
  GPU(cudaEventDestroy(begin));
  GPU(cudaEventDestroy(end));
  return best;
}

}  // namespace course
