// tests/support/skips.h
// What did not run, counted by reason, so that counts add up to what was asked for. Plain data:
// worker processes share it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace keyhole::test {

class Skips {
 public:
  // A reason with the numbers of one case behind a comma or semicolon counts as the reason alone.
  void add(std::string_view reason, int64_t count = 1) {
    reason = reason.substr(0, reason.find_first_of(",;"));
    for (int i = 0; i < kSlots; ++i) {
      const bool is_last = i == kSlots - 1;
      if (slots_[i].count == 0) {
        const std::string_view text = is_last ? "other reasons" : reason;
        std::snprintf(slots_[i].reason, kTextBytes, "%.*s", int(text.size()), text.data());
      } else if (!is_last && reason.substr(0, kTextBytes - 1) != slots_[i].reason) {
        continue;
      }
      slots_[i].count += count;
      return;
    }
  }
  void add(const Skips& other) {
    for (const Slot& slot : other.slots_) {
      if (slot.count != 0) add(slot.reason, slot.count);
    }
  }
  int64_t total() const {
    int64_t sum = 0;
    for (const Slot& slot : slots_) sum += slot.count;
    return sum;
  }
  std::string text() const {  // ": 12 reason, 3 another"; empty when nothing was skipped
    std::string all;
    for (const Slot& slot : slots_) {
      if (slot.count == 0) continue;
      all += (all.empty() ? ": " : ", ") + std::to_string(slot.count) + " " + slot.reason;
    }
    return all;
  }

 private:
  static constexpr int kSlots = 12;
  static constexpr size_t kTextBytes = 80;
  struct Slot {
    int64_t count;
    char reason[kTextBytes];
  };
  Slot slots_[kSlots] = {};
};

}  // namespace keyhole::test
