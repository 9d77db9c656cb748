// tests/support/generator.cpp
// Draws patterns by a typed grammar over the catalog and cases around them. Leaves come from the
// catalog: one that is listed there is drawn here without another line.
#include "support/generator.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "base/int_math.h"
#include "pattern/catalog.h"

namespace keyhole::test {
namespace {

constexpr int kMaxDepth = 5;

bool takes_only_numbers(const CatalogEntry& entry) {
  return std::all_of(entry.parameters.begin(), entry.parameters.end(), [](const Parameter& p) {
    return p.kind == ParameterKind::integer || p.kind == ParameterKind::integers;
  });
}

// A list argument. Most lists are anything above `least`; a tree names parents, which come before
// their children.
std::vector<int64_t> draw_list(Random& random, std::string_view name, const Parameter& parameter,
                               const Shape& shape) {
  std::vector<int64_t> list;
  const int64_t around = std::max<int64_t>(1, shape.k_len);
  const int64_t count = random.between(1, 6);
  if (name == "tree") {
    const int64_t nodes =
        std::min<int64_t>(random.chance(50) ? around : draw_integer(random, around), 40);
    for (int64_t i = 0; i < std::max<int64_t>(nodes, 1); ++i)
      list.push_back(random.between(-1, i - 1));
    return list;
  }
  for (int64_t i = 0; i < count; ++i) {
    list.push_back(
        std::max(parameter.least, draw_integer(random, std::max<int64_t>(around / 3, 1))));
  }
  return list;
}

Expression draw_catalog_leaf(Random& random, const Shape& shape) {
  static const std::vector<const CatalogEntry*> entries = [] {
    std::vector<const CatalogEntry*> usable;
    for (const CatalogEntry& entry : catalog()) {
      if (takes_only_numbers(entry)) usable.push_back(&entry);
    }
    return usable;
  }();
  const CatalogEntry& entry = *random.pick(entries);
  Expression leaf{std::string(entry.name), {}, {}};
  for (const Parameter& parameter : entry.parameters) {
    if (parameter.kind == ParameterKind::integers) {
      const auto list = draw_list(random, entry.name, parameter, shape);
      leaf.numbers.insert(leaf.numbers.end(), list.begin(), list.end());
      continue;
    }
    if (parameter.is_optional && random.chance(40)) break;
    if (parameter.may_be_unbounded && random.chance(10)) {
      leaf.numbers.push_back(kUnbounded);
      continue;
    }
    const int64_t around = std::max(shape.q_len, shape.k_len);
    const bool is_size = parameter.least >= 1;  // block sizes and strides: more telling when small
    leaf.numbers.push_back(
        std::max(parameter.least, draw_integer(random, is_size ? around / 4 : around)));
  }
  return leaf;
}

Expression draw_array_leaf(Random& random) {
  const int64_t percent = random.pick({0, 3, 20, 50, 90, 100}), seed = random.below(1000);
  switch (random.below(5)) {
    case 0:
      return {"csr", {percent, seed}, {}};
    case 1:
      return {"mask", {percent, seed}, {}};
    case 2:
    case 3: {
      const int64_t tile_q = random.pick({1, 3, 8, 16, 17}),
                    tile_k = random.pick({1, 2, 8, 16, 31, 70});
      if (random.chance(50)) return {"tiles", {tile_q, tile_k, percent, seed}, {}};
      return {"bitmaps", {tile_q, tile_k, percent, seed, random.between(0, 6)}, {}};
    }
    default:
      return {"lambda", {random.between(-3, 3), random.between(-3, 3), random.between(1, 7)}, {}};
  }
}

// Where a part of an expression stands, and so what it may hold.
struct Place {
  bool has_lengths = true;    // those of the shape: `at` and `packed` fit. Inside a document, not
  bool has_positions = true;  // all are among those of the keys: what knows its lengths fits
};

Place top_place(const Shape& shape) {
  const int64_t first = shape.q_offset();
  return {.has_positions = shape.k_len > 0 && first >= 0 && first + shape.q_len <= shape.k_len};
}

bool knows_its_lengths(const Expression& leaf) {
  constexpr std::string_view kNames[] = {
      "csr",  "mask", "tiles",        "bitmaps", "documents",
      "tree", "grid", "neighborhood", "volume",  "volume_neighborhood"};
  return std::ranges::find(kNames, leaf.name) != std::end(kNames);
}

bool can_be_built(const Expression& e, const Shape& shape) {
  try {
    build(e, shape);
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    return false;  // a combination of numbers that the leaf refuses, such as an even bigbird window
  }
}

Expression draw_leaf(Random& random, const Shape& shape, const Place& place) {
  for (int attempt = 0; attempt < 8; ++attempt) {
    Expression leaf =
        random.chance(15) ? draw_array_leaf(random) : draw_catalog_leaf(random, shape);
    if (knows_its_lengths(leaf) && !place.has_positions) continue;
    if (can_be_built(leaf, shape)) return leaf;
  }
  return {"causal", {}, {}};
}

Expression draw_tree(Random& random, const Shape& shape, int depth, const Place& place) {
  if (depth >= kMaxDepth || random.chance(depth == 0 ? 25 : 45)) {
    return draw_leaf(random, shape, place);
  }
  const auto child = [&] { return draw_tree(random, shape, depth + 1, place); };
  const int64_t draw = random.below(100);
  if (draw < 32) return {"and", {}, {child(), child()}};
  if (draw < 64) return {"or", {}, {child(), child()}};
  if (draw < 74) return {"not", {}, {child()}};
  if (draw < 80 && shape.heads > 1) return {"per_head", {}, {child(), child()}};
  if (draw < 86 && shape.batch > 1) return {"per_batch", {}, {child(), child()}};
  if (draw < 90 && place.has_lengths) {
    const int64_t order = random.below(5);
    // The first three orders keep to the positions 0 to length - 1.
    const bool has_positions =
        order < 3 && shape.k_len > 0 && shape.q_len <= shape.k_len && shape.q_offset() >= 0;
    const Place there{.has_lengths = has_positions, .has_positions = has_positions};
    return {"at",
            {random.between(1, 3), order, random.below(1000)},
            {draw_tree(random, shape, depth + 1, there)}};
  }
  if (draw < 94 && place.has_lengths) {
    const Place inside{.has_lengths = false, .has_positions = false};
    return {"packed",
            {random.pick({1, 2, 3, 5, 12}), random.below(1000)},
            {draw_tree(random, shape, depth + 1, inside)}};
  }
  // Identities in disguise: they must give the same plan's worth of answers.
  const Expression a = child();
  switch (random.below(4)) {
    case 0:
      return {"not", {}, {{"not", {}, {a}}}};
    case 1:
      return {"or", {}, {a, a}};
    case 2:
      return {"and", {}, {a, {"not", {}, {a}}}};
    default:
      return {"or", {}, {a, {"not", {}, {a}}}};
  }
}

int64_t draw_length(Random& random, int64_t most) {
  if (random.chance(12)) return random.below(3);
  return std::min(most, draw_integer(random, most));
}

double draw_softcap(Random& random) {
  return random.chance(20) ? random.pick({0.5, 2.0, 30.0}) : 0.0;
}

Normalizer draw_normalizer(Random& random, int64_t k_len) {
  if (random.chance(65)) return softmax();
  const double alpha = random.pick({1., 1.5, 1.5, 2., 1.25, 4. / 3, 1.1, 1.3, 1.75, 1.005, 1.999});
  const int64_t top = random.chance(60) ? 0 : 1 + random.below(random.chance(50) ? 8 : k_len + 2);
  return entmax(alpha, top);
}

std::optional<double> draw_scale(Random& random) {
  if (random.chance(70)) return {};
  return random.pick({1.0, 0.125, 0.0, -0.5, 0.0703125, 3.0});
}

void draw_layouts(Random& random, Case& c) {
  for (int i = 0; i < kNumTensors; ++i) {
    const auto tensor = Tensor(i);
    const bool is_input =
        tensor == Tensor::q || tensor == Tensor::k || tensor == Tensor::v || tensor == Tensor::dout;
    Layout layout = random.chance(35) ? Layout::contiguous : Layout(random.below(kNumLayouts));
    const bool is_expanded = layout == Layout::expanded_heads || layout == Layout::expanded_batch;
    if (is_expanded && !is_input) layout = Layout::padded;
    if (tensor == Tensor::lse && (layout == Layout::bshd || layout == Layout::sliced)) {
      layout = Layout::padded;  // its last dimension is the length, which must stay contiguous
    }
    c.layouts[size_t(i)] = layout;
  }
}

}  // namespace

int64_t draw_integer(Random& random, int64_t around) {
  const int64_t most = 2 * std::max<int64_t>(around, 1);
  const int64_t kind = random.below(10);
  if (kind < 3) return random.below(4);
  if (kind < 7) {
    const int64_t unit = random.pick({8, 16, 32, 64, 128, 192, 256});
    const int64_t multiples = std::max<int64_t>(1, most / unit);
    const int64_t multiple = unit * random.between(1, multiples);
    const int64_t value = multiple + random.between(-1, 1);
    return value <= most ? value : random.between(0, most);
  }
  if (kind <
      9) {  // every order of magnitude alike; no libm, whose last bit differs between machines
    return random.below(
        std::min(most, int64_t{1} << random.between(0, std::bit_width(uint64_t(most)))) + 1);
  }
  return random.pick(
      {5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 97, 127, 131});
}

Expression draw_pattern(Random& random, const Shape& shape) {
  for (int attempt = 0; attempt < 4; ++attempt) {
    Expression tree = draw_tree(random, shape, 0, top_place(shape));
    if (can_be_built(tree, shape)) return tree;
  }
  return draw_leaf(random, shape, top_place(shape));
}

Case draw_case(uint64_t seed, int64_t work) {
  Random random(seed);
  Case c;
  c.data = random.next();
  // A few are large enough for several threads, strips of tiles and chunks of work.
  const int64_t longest = random.chance(2) ? 450 : 200;
  if (longest > 200) work *= 12;
  c.dtype = random.pick({DType::f32, DType::f32, DType::f16, DType::bf16, DType::f64});
  c.batch = random.pick({1, 1, 1, 2, 3});
  c.kv_heads = random.pick({1, 1, 2, 3});
  c.heads = c.kv_heads * random.pick({1, 1, 2, 3, 5});
  c.head_dim = random.pick({1, 2, 3, 8, 8, 16, 16, 17, 31, 32, 33, 40, 64, 96});
  c.v_head_dim = random.chance(60) ? c.head_dim : random.pick({1, 3, 8, 16, 24, 33, 64});
  if (random.chance(1)) c.head_dim = random.pick({128, 192, 576});
  if (random.chance(1)) c.v_head_dim = random.pick({128, 257, 576});
  if (random.chance(1)) c.batch = 0;
  const int64_t per_pair =
      std::max<int64_t>(1, c.batch * c.heads) * std::max(c.head_dim, c.v_head_dim);
  const int64_t side =
      std::clamp<int64_t>(int64_t(std::sqrt(double(work) / double(per_pair))), 3, longest);
  c.q_len = draw_length(random, side);
  c.k_len = random.chance(40) ? c.q_len : draw_length(random, side);
  // Long and thin now and then: decoding, and many keys for few queries.
  if (random.chance(8)) {
    c.q_len = random.below(4);
    c.k_len = draw_length(random, std::min<int64_t>(side * side / 2, 700));
  }
  c.scale = draw_scale(random);
  c.softcap = draw_softcap(random);
  c.has_sink = random.chance(20);
  if (random.chance(15)) {
    const int64_t near = random.between(-3, 3);
    c.offset = near + (random.chance(50) ? c.k_len : 0);
  }
  c.regime = random.chance(40) ? Regime::normal : Regime(random.below(kNumRegimes));
  c.threads = int(random.between(1, 3));
  c.forms = int(random.between(0, 4));
  c.tile = int(random.between(-1, 7));
  draw_layouts(random, c);
  c.pattern = draw_pattern(random, c.shape());
  c.normalizer = draw_normalizer(random, c.k_len);
  return c;
}

namespace {

constexpr int64_t kGpuWork = 1'000'000;

void suit_tensor_cores(Random& random, Case& c) {
  c.head_dim = round_up(c.head_dim, 8);
  c.v_head_dim = round_up(c.v_head_dim, 8);
  if (random.chance(10)) {  // kernels for wide heads refuse narrow ones
    (random.chance(75) ? c.head_dim : c.v_head_dim) = random.pick({136, 192, 200, 256});
  }
  for (Layout& layout : c.layouts) {
    if (layout == Layout::padded || layout == Layout::odd_offset) layout = Layout::contiguous;
  }
}

}  // namespace

Case draw_gpu_case(uint64_t seed) {
  Case c = draw_case(seed, kGpuWork);
  Random random(c.data);
  // Others are judged on the host, which takes longer.
  if (c.data % 4 != 0) c.normalizer = softmax();
  if (c.dtype == DType::f64) c.dtype = random.chance(50) ? DType::bf16 : DType::f16;
  if (random.chance(25)) return c;
  suit_tensor_cores(random, c);
  return random.chance(10) ? draw_key_list_case(seed) : c;
}

Case draw_key_list_case(uint64_t seed) {
  Case c = draw_case(seed, kGpuWork);
  Random random(c.data);
  c.normalizer = softmax();
  c.dtype = random.pick({DType::bf16, DType::f16});
  if (random.chance(90)) c.softcap = 0;
  suit_tensor_cores(random, c);
  c.head_dim = std::min<int64_t>(c.head_dim, 256);
  c.v_head_dim = std::min<int64_t>(c.v_head_dim, 256);
  c.batch = random.pick({1, 1, 2});
  c.kv_heads = random.pick({1, 1, 2});
  c.heads = c.kv_heads * random.pick({4, 6, 8, 16, 20});
  c.k_len = random.between(200, 1100);
  const int64_t per_query = c.batch * c.heads * c.k_len * std::max(c.head_dim, c.v_head_dim);
  c.q_len = random.between(1, std::clamp<int64_t>(40 * kGpuWork / per_query, 1, 40));
  c.offset.reset();
  c.forms = int(random.chance(85) ? SplitPolicy::gather : SplitPolicy::mixed);
  c.pattern = draw_pattern(random, c.shape());
  const Expression tokens{"random", {1, random.between(1, c.k_len / 2), random.below(1000)}, {}};
  const int64_t draw = random.below(100);
  if (draw < 30) {
    c.pattern = tokens;
  } else if (draw < 50) {
    c.pattern = {"or", {}, {c.pattern, tokens}};
  } else if (draw < 65) {  // four neighbouring heads share lists
    std::vector<Expression> of_heads;
    for (int64_t head = 0; head < c.heads; ++head) {
      of_heads.push_back(head / 4 % 2 == 0 ? tokens : Expression{"causal", {}, {}});
    }
    c.pattern = {"per_head", {}, of_heads};
  }
  return c;
}

}  // namespace keyhole::test
