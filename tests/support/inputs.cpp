// tests/support/inputs.cpp
// Fills the tensors of a case with numbers of its regime.
#include "support/inputs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "support/random.h"

namespace keyhole::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double largest_of(DType dtype) { return dtype == DType::f16 ? 60000.0 : 1e30; }

double subnormal_of(DType dtype) {  // a number below the normal ones of a dtype
  switch (dtype) {
    case DType::f16:
      return 0x1p-18;
    case DType::f64:
      return 0x1p-1040;
    default:
      return 0x1p-130;
  }
}

void fill_normal(PoisonedTensor& tensor, Random random, double size = 1) {
  tensor.fill([&](int64_t) { return size * random.quick_normal(); });
}
void fill_constant(PoisonedTensor& tensor, double value) {
  tensor.fill([&](int64_t) { return value; });
}

// q . k * scale comes out near `score`, up to a few percent, of one sign or of both.
void fill_scores(const Case& c, Inputs& in, Random& random, double score, bool both_signs) {
  const double scale = std::abs(c.scale.value_or(1 / std::sqrt(double(c.head_dim))));
  const double product = std::abs(score) / (double(c.head_dim) * (scale == 0 ? 1 : scale));
  const double q_size = std::min(std::sqrt(product), 200.0);
  const double k_size = std::min(product / q_size, largest_of(c.dtype));
  Random q_random = random.fork(), k_random = random.fork();
  const double sign = c.scale.value_or(1) < 0 ? -1 : 1;
  in.q.fill([&](int64_t) { return q_size * (1 + 0.02 * q_random.quick_normal()); });
  in.k.fill([&](int64_t i) {
    Random row(c.data + uint64_t(i / std::max<int64_t>(c.head_dim, 1)));  // one sign per key
    const double flip = both_signs && row.chance(50) ? -1 : 1;
    return sign * flip * (score < 0 ? -1 : 1) * k_size * (1 + 0.02 * k_random.quick_normal());
  });
}

// All keys are zero but one, at the edge of what some row may see; its score is ln(k_len) + 3.
void fill_spike(const Case& c, const AllowedPairs& allowed, Inputs& in, Random& random) {
  fill_constant(in.q, 1);
  fill_constant(in.k, 0);
  if (c.batch == 0 || c.heads == 0 || c.q_len == 0 || c.k_len == 0 || c.head_dim == 0) return;
  const int64_t batch = random.below(c.batch), head = random.below(c.heads);
  const uint8_t* row = allowed.row(batch, head, random.below(c.q_len));
  std::vector<int64_t> edges = {0, c.k_len - 1, random.below(c.k_len)};
  for (int64_t key = 1; key < c.k_len; ++key) {
    if (row[key] != row[key - 1]) edges.insert(edges.end(), {key - 1, key});
  }
  const int64_t key = random.pick(edges);
  const double scale = c.scale.value_or(1 / std::sqrt(double(c.head_dim)));
  const double value =
      (std::log(double(c.k_len)) + 3) / (double(c.head_dim) * (scale == 0 ? 1 : scale));
  const int64_t kv_head = head / (c.heads / c.kv_heads);
  // Unequal shares: equal ones would all be rounded alike, which no kernel's sum is made for.
  std::vector<double> shares(static_cast<size_t>(c.head_dim));
  double all = 0;
  for (double& share : shares) all += share = 0.5 + random.uniform();
  for (int64_t x = 0; x < c.head_dim; ++x) {
    in.k.set(((batch * c.kv_heads + kv_head) * c.k_len + key) * c.head_dim + x,
             value * double(c.head_dim) * shares[size_t(x)] / all);
  }
}

bool nobody_sees(const Case& c, const AllowedPairs& allowed, int64_t batch, int64_t kv_head,
                 int64_t key) {
  const int64_t group = c.heads / c.kv_heads;
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t query = 0; query < c.q_len; ++query) {
      if (allowed(batch, head, query, key)) return false;
    }
  }
  return true;
}

void spoil_row(PoisonedTensor& tensor, int64_t row, int64_t columns, Random& random) {
  for (int64_t x = 0; x < columns; ++x) {
    tensor.set(row * columns + x, random.pick({kNan, kInfinity, -kInfinity, kNan}));
  }
}

// NaN and infinity in the keys and values that no query of any head sees, and in the queries and
// output gradients of rows that see nothing. Only where elements do not share memory.
void spoil_unseen(const Case& c, const AllowedPairs& allowed, Inputs& in, Random& random) {
  const auto is_shared = [&](Tensor tensor) {
    const Layout layout = c.layout(tensor);
    return layout == Layout::expanded_heads || layout == Layout::expanded_batch;
  };
  for (int64_t batch = 0; batch < c.batch; ++batch) {
    for (int64_t kv_head = 0; kv_head < c.kv_heads; ++kv_head) {
      for (int64_t key = 0; key < c.k_len; ++key) {
        if (!nobody_sees(c, allowed, batch, kv_head, key)) continue;
        const int64_t row = (batch * c.kv_heads + kv_head) * c.k_len + key;
        if (!is_shared(Tensor::k)) spoil_row(in.k, row, c.head_dim, random);
        if (!is_shared(Tensor::v)) spoil_row(in.v, row, c.v_head_dim, random);
      }
    }
    for (int64_t head = 0; head < c.heads; ++head) {
      for (int64_t query = 0; query < c.q_len; ++query) {
        if (allowed.count(batch, head, query) != 0) continue;
        const int64_t row = (batch * c.heads + head) * c.q_len + query;
        if (!is_shared(Tensor::q)) spoil_row(in.q, row, c.head_dim, random);
        if (!is_shared(Tensor::dout)) spoil_row(in.dout, row, c.v_head_dim, random);
      }
    }
  }
}

void fill(const Case& c, const AllowedPairs& allowed, Inputs& in) {
  Random random(c.data);
  fill_normal(in.q, random.fork());
  fill_normal(in.k, random.fork());
  fill_normal(in.v, random.fork());
  fill_normal(in.dout, random.fork());
  if (c.has_sink) fill_normal(in.sink, random.fork(), 2);
  switch (c.regime) {
    case Regime::normal:
      break;
    case Regime::integers:
      for (PoisonedTensor* tensor : {&in.q, &in.k, &in.v, &in.dout}) {
        Random draw = random.fork();
        tensor->fill([&](int64_t) { return double(draw.between(-3, 3)); });
      }
      break;
    case Regime::count:
      fill_constant(in.q, 0);
      break;
    case Regime::ones:
      fill_constant(in.v, 1);
      break;
    case Regime::spike:
      fill_spike(c, allowed, in, random);
      break;
    case Regime::deep:
      fill_scores(c, in, random, -120, false);
      break;
    case Regime::huge:
      fill_scores(c, in, random, 6e4, true);
      break;
    case Regime::ties:
      for (PoisonedTensor* tensor : {&in.q, &in.k, &in.v}) {
        Random draw = random.fork();
        tensor->fill([&](int64_t) { return draw.chance(50) ? 0.5 : -0.25; });
      }
      break;
    case Regime::zeros:
      for (PoisonedTensor* tensor : {&in.q, &in.k, &in.v, &in.dout}) fill_constant(*tensor, 0);
      break;
    case Regime::subnormal:
      fill_normal(in.v, random.fork(), subnormal_of(c.dtype));
      fill_normal(in.dout, random.fork(), random.chance(50) ? 1 : subnormal_of(c.dtype));
      break;
    case Regime::masked_nan:
      spoil_unseen(c, allowed, in, random);
      break;
    case Regime::attended_nan:
      if (PoisonedTensor& tensor = random.chance(50) ? in.k : in.v; tensor.num_elements() > 0) {
        tensor.set(random.below(tensor.num_elements()), kNan);
      }
      break;
  }
}

void take_options(const Case& c, Inputs& in) {
  in.options.scale = c.scale;
  in.options.softcap = c.softcap;
  in.options.threads = c.threads;
  in.options.deterministic = true;
  if (c.has_sink) in.options.sink = in.sink.view();
}

Inputs allocate_inputs(const Case& c) {
  Inputs in;
  in.q = {c.dtype, {c.batch, c.heads, c.q_len, c.head_dim}, c.layout(Tensor::q), false};
  in.k = {c.dtype, {c.batch, c.kv_heads, c.k_len, c.head_dim}, c.layout(Tensor::k), false};
  in.v = {c.dtype, {c.batch, c.kv_heads, c.k_len, c.v_head_dim}, c.layout(Tensor::v), false};
  in.dout = {c.dtype, {c.batch, c.heads, c.q_len, c.v_head_dim}, c.layout(Tensor::dout), false};
  if (c.has_sink) in.sink = {DType::f32, {c.heads}, Layout::contiguous, false};
  return in;
}

void seal(Inputs& in) {
  for (PoisonedTensor* tensor : {&in.q, &in.k, &in.v, &in.dout, &in.sink}) tensor->seal();
}

Case with_contiguous_layouts(Case c) {
  c.layouts = {};
  return c;
}

template <size_t N>
std::string first_damage(const std::pair<const char*, const PoisonedTensor*> (&tensors)[N]) {
  for (const auto& [name, tensor] : tensors) {
    const std::string damage = tensor->damage();
    if (!damage.empty()) return say(name, ": ", damage);
  }
  return "";
}

}  // namespace

AllowedPairs::AllowedPairs(const Pattern& pattern, const Shape& shape)
    : shape_(shape), allowed_(size_t(shape.batch * shape.heads * shape.q_len * shape.k_len)) {
  uint8_t* pair = allowed_.data();
  for (int64_t batch = 0; batch < shape.batch; ++batch) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const HeadPattern asked = pattern.for_head(shape, batch, head);
      for (int64_t query = 0; query < shape.q_len; ++query) {
        for (int64_t key = 0; key < shape.k_len; ++key) *pair++ = asked.allows(query, key);
      }
    }
  }
}

int64_t AllowedPairs::count(int64_t batch, int64_t head, int64_t query) const {
  const uint8_t* first = row(batch, head, query);
  return std::count(first, first + shape_.k_len, uint8_t{1});
}

std::string Inputs::damage() const {
  return first_damage({{"q", &q}, {"k", &k}, {"v", &v}, {"dout", &dout}, {"sink", &sink}});
}

std::string Outputs::damage() const {
  return first_damage(
      {{"out", &out}, {"lse", &lse}, {"dq", &dq}, {"dk", &dk}, {"dv", &dv}, {"dsink", &dsink}});
}

Inputs make_inputs(const Case& c, const AllowedPairs& allowed) {
  Inputs in = allocate_inputs(c);
  fill(c, allowed, in);
  take_options(c, in);
  seal(in);
  return in;
}

Inputs contiguous(const Case& c, const Inputs& inputs) {
  Inputs in = allocate_inputs(with_contiguous_layouts(c));
  in.q.fill([&](int64_t i) { return inputs.q.get(i); });
  in.k.fill([&](int64_t i) { return inputs.k.get(i); });
  in.v.fill([&](int64_t i) { return inputs.v.get(i); });
  in.dout.fill([&](int64_t i) { return inputs.dout.get(i); });
  if (c.has_sink) in.sink.fill([&](int64_t i) { return inputs.sink.get(i); });
  take_options(c, in);
  seal(in);
  return in;
}

Outputs make_outputs(const Case& c) {
  const DType lse_dtype = c.dtype == DType::f64 ? DType::f64 : DType::f32;
  Outputs o;
  o.out = {c.dtype, {c.batch, c.heads, c.q_len, c.v_head_dim}, c.layout(Tensor::out), true};
  o.lse = {lse_dtype, {c.batch, c.heads, c.q_len}, c.layout(Tensor::lse), true};
  o.dq = {c.dtype, {c.batch, c.heads, c.q_len, c.head_dim}, c.layout(Tensor::dq), true};
  o.dk = {c.dtype, {c.batch, c.kv_heads, c.k_len, c.head_dim}, c.layout(Tensor::dk), true};
  o.dv = {c.dtype, {c.batch, c.kv_heads, c.k_len, c.v_head_dim}, c.layout(Tensor::dv), true};
  if (c.has_sink) o.dsink = {DType::f32, {c.heads}, Layout::contiguous, true};
  return o;
}

Outputs contiguous_outputs(const Case& c) { return make_outputs(with_contiguous_layouts(c)); }

}  // namespace keyhole::test
