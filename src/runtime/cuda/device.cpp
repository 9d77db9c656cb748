// src/runtime/cuda/device.cpp
// The properties of the GPUs, queried once.
#include <algorithm>
#include <vector>

#include "kernels/device/check_cuda.h"
#include "runtime/gpu.h"

namespace keyhole {
namespace {

struct Found {
  std::vector<Gpu> gpus;
  std::string why_none;
};

int64_t attribute(cudaDeviceAttr which, int ordinal) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, ordinal), "asking a GPU for its properties");
  return value;
}

Gpu describe(int ordinal) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, ordinal), "asking a GPU for its properties");
  return {.name = properties.name,
          .compute_capability = 10 * properties.major + properties.minor,
          .num_processors = properties.multiProcessorCount,
          .shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal),
          .l2_cache_bytes = properties.l2CacheSize,
          .memory_bytes = int64_t(properties.totalGlobalMem)};
}

Found find() {
  Found found;
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    cudaGetLastError();  // a machine without a driver is not an error
    found.why_none = "no CUDA driver";
    return found;
  }
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    found.why_none =
        say("no GPU: ", cudaGetErrorString(status == cudaSuccess ? cudaErrorNoDevice : status));
    return found;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) found.gpus.push_back(describe(ordinal));
  // A refused GPU stays in the list if another one is accepted: the index is the ordinal.
  if (std::ranges::none_of(found.gpus, [](const Gpu& gpu) { return why_refused(gpu).empty(); })) {
    found.why_none = why_refused(found.gpus.front());
    found.gpus.clear();
  }
  return found;
}

const Found& found() {
  static const Found once = find();
  return once;
}

}  // namespace

std::span<const Gpu> gpus() { return found().gpus; }
const std::string& why_no_gpu() { return found().why_none; }
bool has_cuda_kernels() { return true; }

std::string why_refused(const Gpu& gpu) {
  constexpr int kOldest = 75;
  if (gpu.compute_capability >= kOldest) return {};
  return say(gpu.name, " is of compute capability ", gpu.compute_capability / 10, ".",
             gpu.compute_capability % 10, ", and CUDA 13 compiles for 7.5 and newer only");
}

const Gpu& gpu(const Device& device) {
  if (!why_no_gpu().empty()) {
    throw Error(ErrorKind::usage, say("a tensor is on GPU ", device.ordinal,
                                      ", but there is none to use here: ", why_no_gpu(),
                                      "; pass tensors in host memory"));
  }
  KEYHOLE_CHECK(device.kind == Device::Kind::cuda && device.ordinal >= 0 &&
                    device.ordinal < int(gpus().size()),
                "GPU ", device.ordinal, " does not exist; this machine has GPUs 0 to ",
                int(gpus().size()) - 1);
  const Gpu& chosen = gpus()[size_t(device.ordinal)];
  if (const std::string why = why_refused(chosen); !why.empty()) {
    throw Error(ErrorKind::unsupported,
                say("a tensor is on GPU ", device.ordinal, ", which has no kernels: ", why,
                    "; use another GPU, or pass tensors in host memory"));
  }
  return chosen;
}

}  // namespace keyhole
