// tests/pattern/truth.h
// The truth about a node, found by asking allows() pair by pair: what every other answer is held
// against. Also the questions of the laws, each as one function that returns what is wrong, in
// words.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "pattern/node.h"

namespace keyhole::test {

// allows() on a rectangle of positions, with counts of any smaller rectangle in constant time.
class Truth {
 public:
  Truth(NodePtr node, Span q, Span k);

  const Node& node() const { return *node_; }
  const NodePtr& node_ptr() const { return node_; }
  Span q() const { return q_; }
  Span k() const { return k_; }
  bool allows(Position q, Position k) const { return allowed_[index(q, k)]; }
  int64_t count(const Rect& rect) const;
  Cover cover(const Rect& rect) const;
  std::string bitmap(const Rect& rect) const;  // one character a pair

 private:
  size_t index(Position q, Position k) const {
    return size_t((q - q_.begin) * k_.size() + (k - k_.begin));
  }
  int64_t sum_before(Position q, Position k) const {
    return sums_[size_t((q - q_.begin) * (k_.size() + 1) + (k - k_.begin))];
  }

  NodePtr node_;
  Span q_, k_;
  std::vector<char> allowed_;
  std::vector<int64_t> sums_;  // pairs above and left of each corner
};

std::string to_text(const Rect& rect);

// Every law returns what it found wrong, or nothing.
std::string wrong_cover(const Truth& truth, const Rect& rect);
std::string wrong_strip(const Truth& truth, const Rect& rect, Position grain);
std::string wrong_drawing(const Truth& truth, const Rect& rect);

// Signatures seen so far, each with its bitmap. One for all rectangles of one node.
class SignatureBook {
 public:
  std::string wrong_signature(const Truth& truth, const Rect& rect);
  int64_t num_signed() const { return num_signed_; }
  int64_t num_shared() const { return num_signed_ - int64_t(bitmaps_.size()); }

 private:
  std::unordered_map<std::string, std::string> bitmaps_;
  int64_t num_signed_ = 0;
};

}  // namespace keyhole::test
