// cli/device.cpp
#include "cli/device.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/check.h"
#include "cli/common.h"
#include "runtime/gpu.h"
#include "runtime/list_facts.h"
#include "runtime/registry.h"

namespace keyhole::cli {
namespace {

bool has_kernels(const Gpu& gpu, std::optional<DType> dtype) {
  const auto table = kernel_table();
  return std::any_of(table.begin(), table.end(), [&](const KernelEntry& kernel) {
    return kernel.device == Device::Kind::cuda && (!dtype || kernel.dtype == *dtype) &&
           kernel.min_compute_capability <= gpu.compute_capability;
  });
}

Device best_device(std::optional<DType> dtype) {
  for (size_t i = 0; i < gpus().size(); ++i) {
    if (has_kernels(gpus()[i], dtype)) return {Device::Kind::cuda, int32_t(i)};
  }
  return {};
}

// The number after "gpu:"; 0 for "gpu" alone, nothing for anything else.
std::optional<int> ordinal_from(const std::string& text) {
  if (text == "gpu") return 0;
  const auto ordinal = text.starts_with("gpu:") ? integer_from(text.substr(4)) : std::nullopt;
  return ordinal && *ordinal >= 0 && *ordinal <= INT32_MAX ? std::optional(int(*ordinal))
                                                           : std::nullopt;
}

}  // namespace

std::string device_text(const Device& device) {
  return is_gpu(device) ? say("gpu:", device.ordinal) : "cpu";
}

void DeviceOption::add_to(CLI::App& app, const std::string& automatic) {
  app.add_option("--device", text_, "cpu, gpu or gpu:N; default: auto, " + automatic)
      ->type_name("DEVICE");
}

Device DeviceOption::settle(std::string_view verb, std::optional<DType> dtype) const {
  if (text_ == "cpu") return {};
  if (is_auto()) return best_device(dtype);
  const std::optional<int> ordinal = ordinal_from(text_);
  KEYHOLE_CHECK(ordinal.has_value(), verb, ": --device is \"", text_,
                "\"; accepted are auto, cpu, gpu and gpu:N, such as gpu:0");
  KEYHOLE_CHECK(!gpus().empty(), verb, ": --device is ", text_,
                ", but there is no GPU to use: ", why_no_gpu(),
                has_cuda_kernels() ? "" : "; configure Keyhole with -DKEYHOLE_CUDA=ON",
                "; --device cpu runs without one");
  const int count = int(gpus().size());
  KEYHOLE_CHECK(*ordinal < count, verb, ": --device is ", text_, ", but this machine has ",
                count == 1 ? "one GPU, gpu:0" : say(count, " GPUs, gpu:0 to gpu:", count - 1));
  return {Device::Kind::cuda, *ordinal};
}

Choice choice_for(Request request, const Lists& lists) {
  const FactsOf facts(lists);
  request.lists = &facts.get();
  return choose_call(kernel_table(), request);
}

}  // namespace keyhole::cli
