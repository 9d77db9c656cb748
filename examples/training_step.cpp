// examples/training_step.cpp
// One step of training: forward, a loss, backward, an update. Checks one gradient of q, k and v
// each by a finite difference, and that the step lowers the loss.
#include <keyhole/keyhole.h>

#include <cmath>
#include <cstdio>
#include <vector>

using namespace keyhole;

namespace {

constexpr int64_t kLength = 48, kHeadDim = 16, kCount = kLength * kHeadDim;

using Values = std::vector<double>;  // f64, so that finite differences can be trusted

TensorView view(const Values& values) {
  return TensorView(values.data(), DType::f64, {1, 1, kLength, kHeadDim});
}

Values waves(double frequency) {
  Values values(kCount);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(frequency * static_cast<double>(i + 1));
  }
  return values;
}

struct Model {
  Values q = waves(0.37), k = waves(0.71), v = waves(1.13);
  Values out = Values(kCount), lse = Values(kLength);
  Plan plan = keyhole::plan(streaming(/*sinks=*/2, /*window=*/8), kLength, kLength);

  TensorView lse_view() const { return TensorView(lse.data(), DType::f64, {1, 1, kLength}); }

  // Half the squared distance between the output and a target that is 0 everywhere.
  double loss() {
    attention_forward(view(q), view(k), view(v), plan, view(out), lse_view());
    double sum = 0;
    for (double value : out) sum += 0.5 * value * value;
    return sum;
  }
};

// (loss(x + h) - loss(x - h)) / 2h
double slope(Model& model, double& parameter) {
  const double kept = parameter, h = 1e-5;
  parameter = kept + h;
  const double above = model.loss();
  parameter = kept - h;
  const double below = model.loss();
  parameter = kept;
  return (above - below) / (2 * h);
}

}  // namespace

int main() {
  Model model;
  const double before = model.loss();

  // The gradient of this loss by the output is the output itself. Backward takes out and lse as the
  // forward pass left them.
  const Values dout = model.out;
  Values dq(kCount), dk(kCount), dv(kCount);
  attention_backward(view(dout), view(model.q), view(model.k), view(model.v), view(model.out),
                     model.lse_view(), model.plan, {view(dq), view(dk), view(dv), {}});

  bool is_right = true;
  const size_t probe = 20 * kHeadDim + 3;  // token 20, channel 3
  const auto compare = [&](const char* name, Values& parameters, const Values& gradient) {
    const double expected = slope(model, parameters[probe]);
    const bool is_close = std::abs(gradient[probe] - expected) < 1e-7;
    std::printf("%s agrees with the finite difference: %s\n", name, is_close ? "yes" : "no");
    is_right = is_right && is_close;
  };
  compare("dq", model.q, dq);
  compare("dk", model.k, dk);
  compare("dv", model.v, dv);

  for (size_t i = 0; i < model.q.size(); ++i) {  // plain gradient descent
    model.q[i] -= 0.1 * dq[i];
    model.k[i] -= 0.1 * dk[i];
    model.v[i] -= 0.1 * dv[i];
  }
  const bool is_lower = model.loss() < before;
  std::printf("the step lowers the loss: %s\n", is_lower ? "yes" : "no");
  return is_right && is_lower ? 0 : 1;
}
