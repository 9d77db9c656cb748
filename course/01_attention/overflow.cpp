// course/01_attention/overflow.cpp
// What goes wrong without the maximum, and in fp16. Three scores 0, s/2 and s: the weight of the
// largest, with exp(score) and with exp(score - maximum), in fp32 and rounded to fp16 at each step.
// Then two more ways in which fp16 loses numbers: long sums, and small gradients.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

namespace {

// The nearest number that fp16 has. It has numbers of 11 binary digits up to 65504; the smallest
// above 0 is 2^-24.
float to_fp16(float x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int exponent = std::max(std::ilogb(x), -14);  // below 2^-14 steps get no smaller
  const float step = std::ldexp(1.0f, exponent - 10);
  const float rounded = std::nearbyint(x / step) * step;
  if (std::abs(rounded) <= 65504) return rounded;
  return std::copysign(std::numeric_limits<float>::infinity(), rounded);
}
float to_fp32(float x) { return x; }

// The weight of the largest score. Every result is rounded, as if the computer had nothing wider.
float largest_weight(const std::vector<float>& scores, bool subtract_maximum,
                     float (*rounded)(float)) {
  const float largest = *std::max_element(scores.begin(), scores.end());
  const float shift = subtract_maximum ? largest : 0;
  float sum = 0;
  for (const float score : scores) sum = rounded(sum + rounded(std::exp(rounded(score - shift))));
  return rounded(rounded(std::exp(rounded(largest - shift))) / sum);
}

// "nan" without the sign that printf gives to some of them.
void print(float x) {
  if (std::isnan(x)) {
    std::printf(" %12s", "nan");
  } else {
    std::printf(" %12.4f", x);
  }
}

}  // namespace

int main() {
  std::printf("%6s %12s %12s %12s %12s\n", "s", "fp16_plain", "fp32_plain", "fp16_max", "fp32_max");
  // -20 and -110: all three scores are s, and so small that exp(s) becomes 0.
  for (const float s : {-110.0f, -20.0f, 1.0f, 5.0f, 11.0f, 12.0f, 88.0f, 89.0f, 1000.0f}) {
    const std::vector<float> scores =
        s < 0 ? std::vector<float>{s, s, s} : std::vector<float>{0, s / 2, s};
    std::printf("%6g", s);
    for (const bool subtract_maximum : {false, true}) {
      print(largest_weight(scores, subtract_maximum, to_fp16));
      print(largest_weight(scores, subtract_maximum, to_fp32));
    }
    std::printf("\n");
  }
  std::printf("limits: fp32 ends at %.3g, exp(%.1f); fp16 at %.0f, exp(%.1f)\n",
              static_cast<double>(std::numeric_limits<float>::max()),
              std::log(static_cast<double>(std::numeric_limits<float>::max())), 65504.0,
              std::log(65504.0));

  // A row that attends to nothing: all scores are -inf. So is their maximum, and -inf - -inf is
  // NaN. Subtracting the maximum does not help here; such a row needs a case of its own.
  const float nothing = -std::numeric_limits<float>::infinity();
  std::printf("a row that attends to nothing:");
  print(largest_weight({nothing, nothing, nothing}, true, to_fp32));
  std::printf("\n");

  // A sum of weights in fp16 stands still where the next number is further than what is added.
  float sum = 0;
  int count = 0;
  while (count < 10000 && to_fp16(sum + 1) != sum) {
    sum = to_fp16(sum + 1);
    ++count;
  }
  std::printf("10000 times 1 in fp16: the sum stands still at %.0f\n", static_cast<double>(sum));

  // A gradient below 2^-25 is 0 in fp16. Training multiplies the loss, and with it every gradient,
  // by a factor, and divides by it again in fp32.
  const float gradient = 1e-8f, factor = 65536;
  std::printf("a gradient of 1e-8 in fp16: %g; scaled by %.0f and back: %.3g\n",
              static_cast<double>(to_fp16(gradient)), static_cast<double>(factor),
              static_cast<double>(to_fp16(gradient * factor) / factor));
}
