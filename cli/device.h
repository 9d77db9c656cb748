// cli/device.h
// Where tensors lie and what computes: the option --device, and what is asked of kernels there.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/contract.h"
#include "keyhole/lists.h"
#include "keyhole/tensor.h"
#include "runtime/dispatch.h"

namespace CLI {
class App;
}

namespace keyhole::cli {

inline bool is_gpu(const Device& device) { return device.kind == Device::Kind::cuda; }
std::string device_text(const Device& device);  // "cpu", "gpu:0"

class DeviceOption {
 public:
  // `automatic` says what happens when the option is not given.
  void add_to(CLI::App& app, const std::string& automatic);
  bool is_auto() const { return text_ == "auto"; }
  const std::string& text() const { return text_; }
  // The device asked for, or Error(usage) with the reason why it is not to be had. auto: the first
  // GPU when it has kernels (for this dtype), else the CPU.
  Device settle(std::string_view verb, std::optional<DType> dtype = {}) const;

 private:
  std::string text_ = "auto";
};

// What runs for a request on these lists: kernel, tile, schedule.
Choice choice_for(Request request, const Lists& lists);

}  // namespace keyhole::cli
