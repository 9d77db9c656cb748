// src/base/late_drops.h
// Objects whose last owner must not destroy them where it is: handed over here, and destroyed by
// whoever comes by and may. It holds an object once, however often that is handed over.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace keyhole {

class LateDrops {
 public:
  // Destroys nothing.
  void hand_over(std::shared_ptr<void> object) {
    const std::lock_guard lock(mutex_);
    if (std::ranges::find(objects_, object) == objects_.end()) {
      objects_.push_back(std::move(object));
    } else {
      object.reset();  // under the lock: the one that is kept cannot go meanwhile
    }
    is_empty_.store(false, std::memory_order_release);
  }

  // Cheap: for every call.
  bool is_empty() const { return is_empty_.load(std::memory_order_acquire); }

  // Destroys what nobody else holds.
  void drop_all() {
    std::vector<std::shared_ptr<void>> dropped;  // goes after the lock
    const std::lock_guard lock(mutex_);
    dropped.swap(objects_);
    is_empty_.store(true, std::memory_order_release);
  }

 private:
  std::atomic<bool> is_empty_ = true;
  std::mutex mutex_;
  std::vector<std::shared_ptr<void>> objects_;
};

}  // namespace keyhole
