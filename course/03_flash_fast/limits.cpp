// course/03_flash_fast/limits.cpp
// What each step asks of one SM of a Hopper GPU, for 128 queries and 128 keys of one head of
// head_dim 128: clocks of the units that compute products, of shared memory, and of softmax. No
// GPU is needed. The largest number is a limit if everything overlaps, the sum is one if nothing
// does: a measured time should lie between the two.
#include <algorithm>
#include <cstdio>

namespace {

constexpr double kQueries = 128, kKeys = 128, kHeadDim = 128;
constexpr double kPairs = kQueries * kKeys;
constexpr double kMultiplyAdds = 2 * kPairs * kHeadDim;  // scores, and output

// Per clock of one SM.
constexpr double kFma = 128;             // fp32 multiply-adds, and as many multiplications
constexpr double kWgmma = 2048;          // bf16 multiply-adds of the tensor cores, by wgmma
constexpr double kMma = kWgmma * 2 / 3;  // by mma.sync: assumed, and measured since
constexpr double kSharedBytes = 128;     // between shared memory and everything else: a pass
constexpr double kExponentials = 16, kMaxima = 64;

constexpr double kSms = 132, kGhz = 1.7;  // H200; hot it runs at 1.6 GHz, cool at up to 1.98

// Softmax: maxima first, then exponentials (their other instructions fit in between), then the
// output is rescaled. The guess of step 7 leaves the exponentials alone.
constexpr double kGuessed = kPairs / kExponentials;
constexpr double kClassic = kPairs / kMaxima + kGuessed + kQueries * kHeadDim / kFma;

// Passes of shared memory for a warp's read of 16 bytes a lane, and where neighbouring lanes read
// the same address. A read of 4 bytes a lane takes one pass, and so does a shuffle.
constexpr double kVector = 32 * 16 / kSharedBytes, kVectorOfPairs = kVector / 2;

// Keys and values of 16 bits are written to shared memory once.
constexpr double kWritten = 2 * kKeys * kHeadDim * 2;
// mma.sync: each of four warps reads all keys and values, and 32 queries for every 64 keys.
constexpr double kFragments = 4 * (kWritten + kKeys / 64 * 32 * kHeadDim * 2);
// wgmma: each of two warpgroups reads 64 queries, all keys and all values. A product of 16 columns
// reads its queries, too.
constexpr double kOperands = 2 * (64 * kHeadDim * 2 + kWritten);

struct Step {
  const char* name;
  double products, shared, softmax;  // clocks
  bool reads_by_itself;              // wgmma: reading operands is part of the product
};

const Step kSteps[] = {
    // For 4 multiply-adds: 4 reads of a float, and one of 16 bytes that all lanes share.
    {"1", kMultiplyAdds / kFma, kMultiplyAdds / 32 * (4 + kVectorOfPairs) / 4, kClassic, false},
    // Scores: 4 reads of q and 8 of k for 128 multiply-adds; output: 4 of v, 4 shuffles for 64.
    {"2", kMultiplyAdds / kFma,
     kMultiplyAdds / 2 / 32 * ((4 * kVectorOfPairs + 8 * kVector) / 128 + (4 * kVector + 4) / 64),
     kClassic, false},
    // Eight rows of a fragment in the same banks: eight accesses instead of one.
    {"3", kMultiplyAdds / kMma, (8 * kFragments + kWritten) / kSharedBytes, kClassic, false},
    {"4", kMultiplyAdds / kMma, (kFragments + kWritten) / kSharedBytes, kClassic, false},
    {"5", kMultiplyAdds / kWgmma, (kOperands + kWritten) / kSharedBytes, kClassic, true},
    {"6", kMultiplyAdds / kWgmma, (kOperands + kWritten) / kSharedBytes, kClassic, true},
    {"7", kMultiplyAdds / kWgmma, (kOperands + kWritten) / kSharedBytes, kGuessed, true},
};

double tflops(double clocks) { return 2 * kMultiplyAdds / clocks * kSms * kGhz * 1e-3; }

}  // namespace

int main() {
  std::printf("clocks of one SM for 128 queries and 128 keys; TFLOP/s of %.0f SMs at %.1f GHz\n\n",
              kSms, kGhz);
  std::printf("step products shared softmax largest sum TFLOPs_of_sum TFLOPs_of_largest\n");
  for (const Step& step : kSteps) {
    const double largest = std::max({step.products, step.shared, step.softmax});
    const double fed =
        step.reads_by_itself ? std::max(step.products, step.shared) : step.products + step.shared;
    const double sum = fed + step.softmax;
    std::printf("%-4s %8.0f %6.0f %7.0f %7.0f %6.0f %13.0f %17.0f\n", step.name, step.products,
                step.shared, step.softmax, largest, sum, tflops(sum), tflops(largest));
  }
}
