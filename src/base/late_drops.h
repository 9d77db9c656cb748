// src/base/late_drops.h
// Objects that their last owner must not destroy in its current context (for example a callback).
// They are handed over here and destroyed later by a caller that may. An object is held once,
// however often it is handed over.
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
  // Does not destroy anything.
  void hand_over(std::shared_ptr<void> object) {
    const std::lock_guard lock(mutex_);
    if (std::ranges::find(objects_, object) == objects_.end()) {
      objects_.push_back(std::move(object));
    } else {
      object.reset();  // under the lock, so that the kept reference cannot be dropped meanwhile
    }
    is_empty_.store(false, std::memory_order_release);
  }

  // Cheap enough for every call.
  bool is_empty() const { return is_empty_.load(std::memory_order_acquire); }

  // Destroys the objects that have no other owner.
  void drop_all() {
    std::vector<std::shared_ptr<void>> dropped;  // destroyed after the lock is released
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
