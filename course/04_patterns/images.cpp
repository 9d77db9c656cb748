// course/04_patterns/images.cpp
// Images are sequences too, read row by row, but near in an image is not near in the sequence. What
// one pixel sees by three patterns; which pattern keeps the weight of text, which that of images;
// and what the order of the tokens costs.
#include <cstdio>

#include "definition.h"

using namespace keyhole;

namespace {

void print_fields() {
  constexpr int64_t kSide = 12, kLength = kSide * kSide, kPixel = 1 * kSide + 2;  // row 1, column 2
  std::printf("what the pixel in row 1, column 2 of an image of 12 x 12 sees\n");
  std::printf("%-27s%-27s%-27s\n", "window(12)", "grid(12, 12, 2, 2)",
              "neighborhood(12, 12, 2, 2)");
  for (int64_t y = 0; y < kSide; ++y) {
    for (const Pattern& pattern :
         {window(12), grid(kSide, kSide, 2, 2), neighborhood(kSide, kSide, 2, 2)}) {
      const HeadPattern asked =
          pattern.for_head({.q_len = kLength, .k_len = kLength, .offset = {}});
      for (int64_t key = y * kSide; key < (y + 1) * kSide; ++key) {
        std::printf("%c ", key == kPixel ? 'Q' : asked.allows(kPixel, key) ? '#' : '.');
      }
      std::printf("   ");
    }
    std::printf("\n");
  }
  std::printf("\n");
}

// What a model might look at, made up: in text the first token has a fifth of the weight, and the
// rest falls with the distance; in an image the weight falls with the distance in two dimensions.
constexpr int64_t kSide = 24, kLength = kSide * kSide;

double text_falloff(int64_t query, int64_t key) {
  return key > query ? 0 : 1.0 / static_cast<double>(1 + query - key);
}

double image_falloff(int64_t a, int64_t b) {
  const auto dy = static_cast<double>(a / kSide - b / kSide);
  const auto dx = static_cast<double>(a % kSide - b % kSide);
  return std::exp(-(dy * dy + dx * dx) / 8);
}

void print_kept_weight() {
  std::vector<double> text_sum(kLength), image_sum(kLength);
  for (int64_t q = 0; q < kLength; ++q) {
    for (int64_t k = 0; k < kLength; ++k) {
      text_sum[q] += text_falloff(q, k);
      image_sum[q] += image_falloff(q, k);
    }
  }
  std::printf("%-42s %8s %6s %6s\n", "share_of_weight_kept_by", "keys", "text", "image");
  for (const Pattern& pattern :
       {causal() & window(48), streaming(1, 48), strided(25), causal() & random(1, 98, 7),
        window(24), grid(kSide, kSide, 3, 3), neighborhood(kSide, kSide, 3, 3),
        grid(kSide, kSide, 0, 23) | grid(kSide, kSide, 23, 0), bigbird(8, 3, 1, 1, 7)}) {
    const HeadPattern asked = pattern.for_head({.q_len = kLength, .k_len = kLength, .offset = {}});
    double pairs = 0, text = 0, image = 0;
    for (int64_t q = 0; q < kLength; ++q) {
      for (int64_t k = 0; k < kLength; ++k) {
        if (!asked.allows(q, k)) continue;
        pairs += 1;
        text += (k == 0 ? 0.2 : 0) + 0.8 * text_falloff(q, k) / text_sum[q];
        image += image_falloff(q, k) / image_sum[q];
      }
    }
    std::printf("%-42s %8.1f %5.0f%% %5.0f%%\n", pattern.text().c_str(), pairs / kLength,
                100 * text / kLength, 100 * image / kLength);
  }
  std::printf("\n");
}

// Token i of the new order is the pixel order[i]: patches of 8 x 8 pixels, one after the other.
std::vector<int64_t> by_patches(int64_t side) {
  std::vector<int64_t> order;
  for (int64_t token = 0; token < side * side; ++token) {
    const int64_t patch = token / 64, y = patch / (side / 8) * 8 + token % 64 / 8;
    const int64_t x = patch % (side / 8) * 8 + token % 8;
    order.push_back(y * side + x);
  }
  return order;
}

course::Values reordered(const course::Values& rows, const std::vector<int64_t>& order) {
  const int64_t width = std::ssize(rows) / std::ssize(order);
  course::Values moved;
  for (const int64_t row : order) {
    moved.insert(moved.end(), rows.begin() + row * width, rows.begin() + (row + 1) * width);
  }
  return moved;
}

void print_orders(int64_t side) {
  const int64_t length = side * side;
  const std::vector<int64_t> order = by_patches(side);
  const Pattern rows = neighborhood(side, side, 7, 7);
  // The same pairs under the tokens' new numbers.
  const HeadPattern asked = rows.for_head({.q_len = length, .k_len = length, .offset = {}});
  std::vector<uint8_t> allowed;
  for (const int64_t query : order) {
    for (const int64_t key : order) allowed.push_back(asked.allows(query, key));
  }
  const Plan row_plan = plan(rows, length, length);
  const Plan patch_plan = plan(mask(allowed, length, length), length, length);
  const course::Head head = course::random_head(length, length, 32);
  course::Head moved = head;
  for (course::Values* values : {&moved.q, &moved.k, &moved.v}) *values = reordered(*values, order);
  const double error = course::largest_difference(
      reordered(course::by_library(head, row_plan), order), course::by_library(moved, patch_plan));
  course::Values out;
  const auto time_of = [&out](const course::Head& tokens, const Plan& compiled) {
    return course::cpu_milliseconds([&] { course::run_library(tokens, compiled, out); });
  };
  const auto tiles_of = [](const Plan& compiled) {
    return static_cast<long long>(compiled.explain({64, 64}).parts[0].tiles);
  };
  std::printf("%4lld %8lld %10lld %13lld %8.2f %10.2f %6s\n", static_cast<long long>(side),
              static_cast<long long>(row_plan.explain().pairs), tiles_of(row_plan),
              tiles_of(patch_plan), time_of(head, row_plan), time_of(moved, patch_plan),
              error < 1e-5 ? "yes" : "no");
}

}  // namespace

int main() {
  print_fields();
  print_kept_weight();
  std::printf(
      "neighborhood of 15 x 15, tiles of 64 x 64: pixels by rows, and by patches of 8 x 8\n");
  std::printf("%4s %8s %10s %13s %8s %10s %6s\n", "side", "pairs", "row_tiles", "patch_tiles",
              "row_ms", "patch_ms", "agree");
  for (const int64_t side : {16, 32, 64}) print_orders(side);
}
