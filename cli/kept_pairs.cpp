// cli/kept_pairs.cpp
#include "cli/kept_pairs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/check.h"
#include "base/npy.h"
#include "base/random.h"
#include "keyhole/attention.h"

namespace keyhole::cli {
namespace {

template <class Integer>
std::vector<int64_t> integers_of(const NpyArray& array) {
  std::vector<Integer> numbers(array.data.size() / sizeof(Integer));
  if (!numbers.empty()) std::memcpy(numbers.data(), array.data.data(), array.data.size());
  return {numbers.begin(), numbers.end()};
}

}  // namespace

// Values that are rows of a unit matrix turn the result into the weights, some keys at a time.
KeptPairs measured_support(const Pattern& pattern, const Shape& shape, int64_t batch, int64_t head,
                           const Normalizer& normalizer, int64_t head_dim, int64_t seed) {
  constexpr int64_t kMostKeys = 512;  // at a time: the width of a value
  const int64_t q_len = shape.q_len, k_len = shape.k_len;
  const Pattern of_head(pattern.for_head(shape, batch, head).node());
  const Plan made = plan(of_head, {.q_len = q_len, .k_len = k_len, .offset = shape.q_offset()});
  Random random{uint64_t(seed)};
  const auto normals = [&](int64_t count) {
    std::vector<float> numbers(static_cast<size_t>(count));
    for (float& number : numbers) {
      const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
      number = float(radius * std::cos(2 * std::numbers::pi * random.uniform()));
    }
    return numbers;
  };
  const std::vector<float> q = normals(q_len * head_dim), k = normals(k_len * head_dim);
  const TensorView q_view(q.data(), DType::f32, {1, 1, q_len, head_dim});
  const TensorView k_view(k.data(), DType::f32, {1, 1, k_len, head_dim});
  AttentionOptions options;
  options.normalizer = normalizer;
  options.backend = "cpu";

  KeptPairs kept{to_string(normalizer), say("normal q and k, head_dim ", head_dim, ", seed ", seed),
                 std::vector<std::vector<int32_t>>(static_cast<size_t>(q_len))};
  for (int64_t first = 0; first < k_len; first += kMostKeys) {
    const int64_t count = std::min(kMostKeys, k_len - first);
    std::vector<float> v(size_t(k_len * count)), weights(size_t(q_len * count));
    for (int64_t i = 0; i < count; ++i) v[size_t((first + i) * count + i)] = 1;
    attention_forward(q_view, k_view, {v.data(), DType::f32, {1, 1, k_len, count}}, made,
                      {weights.data(), DType::f32, {1, 1, q_len, count}}, {}, options);
    for (int64_t query = 0; query < q_len; ++query) {
      for (int64_t i = 0; i < count; ++i) {
        if (weights[size_t(query * count + i)] > 0)
          kept.keys[size_t(query)].push_back(int32_t(first + i));
      }
    }
  }
  return kept;
}

ChosenLists read_chosen(const std::string& path) {
  const NpyArray array = read_npy(path);
  const std::vector<int64_t>& shape = array.shape;
  KEYHOLE_CHECK(array.dtype == "<i4" || array.dtype == "<i8", "--chosen holds ", array.dtype,
                "; accepted are <i4 and <i8, as keyhole.select_keys gives them");
  KEYHOLE_CHECK(shape.size() == 2 || shape.size() == 4, "--chosen has ", shape.size(),
                " dimensions; accepted are 2 [q_len, k] and 4 [batch, groups, q_len, k]");
  const bool has_groups = shape.size() == 4;
  ChosenLists chosen{
      .path = path,
      .batch = has_groups ? shape[0] : 1,
      .groups = has_groups ? shape[1] : 1,
      .q_len = shape[shape.size() - 2],
      .k = shape.back(),
      .keys = array.dtype == "<i4" ? integers_of<int32_t>(array) : integers_of<int64_t>(array)};
  KEYHOLE_CHECK(chosen.batch > 0 && chosen.groups > 0, "--chosen has batch ", chosen.batch,
                " and groups ", chosen.groups, "; both must be at least 1");
  return chosen;
}

Shape shape_of_chosen(const ChosenLists& chosen, ShapeOptions options, const Pattern& pattern) {
  const std::optional<int64_t> q_len = options.k_len && options.len ? options.len : options.q_len;
  KEYHOLE_CHECK(!q_len || *q_len == chosen.q_len, "show: --chosen has the lists of ", chosen.q_len,
                " queries, but the options say ", q_len.value_or(0),
                "; leave --q-len out, and say with --k-len how many keys there are");
  options.q_len = chosen.q_len;
  if (!options.k_len) options.k_len = options.len.value_or(chosen.q_len);
  options.len.reset();
  const bool gives_heads = options.heads.has_value(), gives_batch = options.batch.has_value();
  Shape shape = options.shape("show", pattern);
  if (!gives_heads) shape.heads = std::max(shape.heads, chosen.groups);
  if (!gives_batch) shape.batch = std::max(shape.batch, chosen.batch);
  KEYHOLE_CHECK(shape.heads % chosen.groups == 0, "show: --chosen has ", chosen.groups,
                " groups for ", shape.heads, " heads; heads are divided evenly among groups");
  KEYHOLE_CHECK(shape.batch == chosen.batch, "show: --chosen has ", chosen.batch,
                " batch entries, and there are ", shape.batch, "; the numbers must be equal");
  return shape;
}

KeptPairs chosen_pairs(const ChosenLists& chosen, const Pattern& visible, const Shape& shape,
                       int64_t batch, int64_t head) {
  const HeadPattern pattern = visible.for_head(shape, batch, head);
  const int64_t group = head / (shape.heads / chosen.groups);
  KeptPairs pairs{
      say("at most ", chosen.k, chosen.k == 1 ? " key" : " keys"), chosen.path, {}, KeptAs::chosen};
  for (int64_t query = 0; query < chosen.q_len; ++query) {
    const auto list =
        chosen.keys.begin() + ((batch * chosen.groups + group) * chosen.q_len + query) * chosen.k;
    std::vector<int32_t>& keys = pairs.keys.emplace_back();
    for (int64_t i = 0; i < chosen.k; ++i) {
      const int64_t key = list[i];
      if (key == -1) continue;
      KEYHOLE_CHECK(key >= 0 && key < shape.k_len, "--chosen: query ", query, " has key ", key,
                    "; accepted are 0 to ", shape.k_len - 1,
                    " and -1 for padding; --k-len says how many keys there are");
      KEYHOLE_CHECK(pattern.allows(query, key), "--chosen: query ", query, " has key ", key,
                    ", which is not visible in \"", visible.text(),
                    "\"; pass the pattern that it was chosen from");
      keys.push_back(int32_t(key));
    }
    std::ranges::sort(keys);
    const auto twice = std::ranges::adjacent_find(keys);
    KEYHOLE_CHECK(twice == keys.end(), "--chosen: query ", query, " has key ", *twice,
                  " twice; a selection chooses a key once");
  }
  return pairs;
}

}  // namespace keyhole::cli
