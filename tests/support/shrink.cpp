// tests/support/shrink.cpp
// Greedy delta debugging: lists the neighbours of a case that are simpler by one step, takes the
// first that still fails alike, and begins again.
#include "support/shrink.h"

#include <chrono>
#include <vector>

namespace keyhole::test {
namespace {

// Smaller values to try for a number, boldest first.
std::vector<int64_t> smaller(int64_t number) {
  std::vector<int64_t> values;
  if (number == kUnbounded) return {64, 1};
  if (number < 0) values.push_back(0);
  for (const int64_t value :
       {int64_t{0}, int64_t{1}, number / 2, number - number / 4, number - 1}) {
    if (value >= 0 && value < number && (values.empty() || values.back() != value)) {
      values.push_back(value);
    }
  }
  return values;
}

// Every expression that is one step simpler: whole branches first, then numbers.
std::vector<Expression> simpler(const Expression& e) {
  std::vector<Expression> results;
  for (const Expression& child : e.children) results.push_back(child);
  if (e.name != "dense") results.push_back({"dense", {}, {}});
  if (e.name != "dense" && e.name != "causal") results.push_back({"causal", {}, {}});
  if (e.children.size() > 1 && (e.name == "per_head" || e.name == "per_batch")) {
    Expression fewer = e;
    fewer.children.pop_back();
    results.push_back(fewer);
  }
  for (size_t i = 0; i < e.children.size(); ++i) {
    for (Expression& child : simpler(e.children[i])) {
      Expression changed = e;
      changed.children[i] = std::move(child);
      results.push_back(std::move(changed));
    }
  }
  for (size_t i = 0; i < e.numbers.size(); ++i) {
    if (e.numbers.size() > 1) {  // lists may lose an element; other leaves refuse, and that is fine
      Expression shorter = e;
      shorter.numbers.erase(shorter.numbers.begin() + int64_t(i));
      results.push_back(std::move(shorter));
    }
    for (const int64_t value : smaller(e.numbers[i])) {
      Expression changed = e;
      changed.numbers[i] = value;
      results.push_back(std::move(changed));
    }
  }
  return results;
}

class Neighbours {
 public:
  explicit Neighbours(const Case& c) : c_(c) {
    for (Expression& e : simpler(c.pattern)) {
      add([&](Case& x) { x.pattern = e; });
    }
    for (const int64_t value : smaller(c.q_len)) add([&](Case& x) { x.q_len = value; });
    for (const int64_t value : smaller(c.k_len)) add([&](Case& x) { x.k_len = value; });
    if (c.q_len > 0 && c.k_len > 0) add([](Case& x) { --x.q_len, --x.k_len; });
    for (const int64_t value : smaller(c.batch)) {
      if (value >= 1) add([&](Case& x) { x.batch = value; });
    }
    add([](Case& x) { x.heads = x.kv_heads = 1; });
    add([](Case& x) { x.heads = x.kv_heads; });
    for (const int64_t value : smaller(c.kv_heads)) {
      if (value >= 1)
        add([&](Case& x) { x.heads = x.heads / x.kv_heads * value, x.kv_heads = value; });
    }
    for (const int64_t value : smaller(c.heads / std::max<int64_t>(c.kv_heads, 1))) {
      if (value >= 1) add([&](Case& x) { x.heads = x.kv_heads * value; });
    }
    for (const int64_t value : smaller(c.head_dim)) {
      if (value >= 1) add([&](Case& x) { x.head_dim = value; });
    }
    for (const int64_t value : smaller(c.v_head_dim)) {
      if (value >= 1) add([&](Case& x) { x.v_head_dim = value; });
    }
    add([](Case& x) { x.layouts = {}; });
    for (size_t i = 0; i < c.layouts.size(); ++i) {
      add([&](Case& x) { x.layouts[i] = Layout::contiguous; });
    }
    add([](Case& x) { x.regime = Regime::normal; });
    add([](Case& x) { x.normalizer = {}; });
    add([](Case& x) { x.normalizer.top_k = 0; });
    for (const int64_t value : smaller(c.normalizer.top_k)) {
      if (value >= 1) add([&](Case& x) { x.normalizer.top_k = value; });
    }
    add([](Case& x) { x.normalizer.alpha = 1; });
    if (c.normalizer.alpha != 1) add([](Case& x) { x.normalizer.alpha = 1.5; });
    add([](Case& x) { x.scale.reset(); });
    add([](Case& x) { x.softcap = 0; });
    add([](Case& x) { x.has_sink = false; });
    add([](Case& x) { x.offset.reset(); });
    add([](Case& x) { x.threads = 1; });
    add([](Case& x) { x.tile = 0; });
    add([](Case& x) { x.forms = 0; });
    add([](Case& x) { x.dtype = DType::f32; });
    add([](Case& x) { x.data = 1; });
  }
  const std::vector<Case>& all() const { return all_; }

 private:
  template <class Change>
  void add(const Change& change) {
    Case changed = c_;
    change(changed);
    if (!(changed == c_)) all_.push_back(std::move(changed));
  }

  const Case& c_;
  std::vector<Case> all_;
};

}  // namespace

Shrunk shrink(const Case& failing, const FailureKind& kind_of, ShrinkBudget budget) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  Shrunk shrunk{failing, 0, 0};
  const std::string kind = kind_of(failing);
  if (kind.empty()) return shrunk;
  for (bool is_smaller = true; is_smaller;) {
    is_smaller = false;
    const Neighbours neighbours(shrunk.smallest);
    for (const Case& candidate : neighbours.all()) {
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      if (shrunk.attempts >= budget.attempts || seconds > budget.seconds) return shrunk;
      ++shrunk.attempts;
      if (kind_of(candidate) != kind) continue;
      shrunk.smallest = candidate;
      ++shrunk.steps;
      is_smaller = true;
      break;
    }
  }
  return shrunk;
}

}  // namespace keyhole::test
