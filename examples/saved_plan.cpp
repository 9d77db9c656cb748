// examples/saved_plan.cpp
// A plan is compiled once, saved, and loaded where it is needed: the loaded plan gives the same
// bits. A damaged file is refused with a message, never followed.
#include <keyhole/keyhole.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

using namespace keyhole;

namespace {

constexpr int64_t kLength = 500, kHeadDim = 32;

std::vector<float> attend(const Plan& plan) {
  std::vector<float> q(kLength * kHeadDim), k(q.size()), v(q.size()), out(q.size());
  for (size_t i = 0; i < q.size(); ++i) {
    q[i] = static_cast<float>(i % 7) - 3;
    k[i] = static_cast<float>(i % 11) / 11;
    v[i] = static_cast<float>(i % 13);
  }
  const auto view = [](const std::vector<float>& values) {
    return TensorView(values.data(), DType::f32, {1, 1, kLength, kHeadDim});
  };
  attention_forward(view(q), view(k), view(v), plan, view(out));
  return out;
}

}  // namespace

int main() {
  const std::string path = "example.plan";

  const Plan compiled = plan(parse("bigbird(16, 3, 3, 2, seed=7)"), kLength, kLength);
  compiled.save(path);  // written beside the path, then renamed: never half a plan

  const Plan loaded = Plan::load(path);
  std::printf("pattern:  %s\n", loaded.pattern_text().c_str());
  std::printf("lengths:  %lld x %lld\n", static_cast<long long>(loaded.shape().q_len),
              static_cast<long long>(loaded.shape().k_len));
  const bool is_same = attend(compiled) == attend(loaded);
  std::printf("same bits from the loaded plan: %s\n", is_same ? "yes" : "no");

  // Cut the file in half: its checksum and its sizes no longer agree.
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  bool is_refused = false;
  try {
    Plan::load(path);
  } catch (const Error&) {
    is_refused = true;
  }
  std::printf("half a file is refused: %s\n", is_refused ? "yes" : "no");
  std::filesystem::remove(path);
  return is_same && is_refused ? 0 : 1;
}
