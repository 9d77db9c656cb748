// src/runtime/call_site.cpp
#include "runtime/call_site.h"

#include <deque>
#include <new>

#include "runtime/gpu.h"
#include "runtime/host_lists.h"

namespace keyhole {
namespace {

class HostSite final : public CallSite {
 public:
  explicit HostSite(int threads) : threads_(threads) {}

  Launch launch() const override { return {}; }
  PlanView follow(const Lists& lists, const Following& how) override {
    return lists_
        .emplace_back(lists, how.tile, how.q, how.k, threads_, /*with_transposed=*/false, how.who)
        .get();
  }
  void with_scratch(int64_t bytes, const std::function<void(void*)>& run) override {
    constexpr std::align_val_t kAlignment{256};
    struct Free {
      void operator()(void* memory) const { ::operator delete(memory, kAlignment); }
    };
    const std::unique_ptr<void, Free> memory(bytes > 0 ? ::operator new(size_t(bytes), kAlignment)
                                                       : nullptr);
    run(memory.get());
  }

 private:
  int threads_;
  std::deque<HostLists> lists_;  // a deque: its elements never move
};

}  // namespace

std::unique_ptr<CallSite> call_site(const Device& device, int threads, void* stream,
                                    const AllocateWorkspace& allocate) {
  if (device.kind == Device::Kind::cuda) return call_site_on_gpu(device, stream, allocate);
  return std::make_unique<HostSite>(threads);
}

}  // namespace keyhole
