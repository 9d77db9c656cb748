// tests/support/draw_numbers.cpp
// Each regime in turn.
#include "support/draw_numbers.h"

#include <algorithm>
#include <cmath>

namespace keyhole::test {
namespace {

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

bool is_shared(const Case& c, Tensor tensor) {
  const Layout layout = c.layout(tensor);
  return layout == Layout::expanded_heads || layout == Layout::expanded_batch;
}

// Where heads or batch entries share memory, the last of them stays: a row of k or v that is to
// stand out must be that one.
int64_t row_that_stays(const Case& c, Tensor tensor, int64_t batch, int64_t kv_head, int64_t key) {
  if (c.layout(tensor) == Layout::expanded_batch) batch = c.batch - 1;
  if (c.layout(tensor) == Layout::expanded_heads) kv_head = c.kv_heads - 1;
  return (batch * c.kv_heads + kv_head) * c.k_len + key;
}

void set_kind(Numbers& numbers, Numbers::Kind kind, uint64_t seed, double size = 1) {
  numbers.kind = kind, numbers.seed = seed, numbers.size = size;
}

// q . k * scale comes out near `score`, up to a few percent, of one sign or of both.
void draw_scores(const Case& c, InputNumbers& in, Random& random, double score, bool both_signs) {
  const double scale = std::abs(c.score_scale());
  const double product = std::abs(score) / (double(c.head_dim) * (scale == 0 ? 1 : scale));
  const double q_size = std::min(std::sqrt(product), 200.0);
  const double k_size = std::min(product / q_size, largest_of(c.dtype));
  const double sign = (c.scale.value_or(1) < 0) != (score < 0) ? -1 : 1;
  set_kind(in.q, Numbers::Kind::around, random.next(), q_size);
  set_kind(in.k, Numbers::Kind::around, random.next(), sign * k_size);
  in.k.has_row_signs = both_signs;
  in.k.sign_seed = c.data;
}

// All keys are zero but one, at the edge of what some row may see; its score is ln(k_len) + 3.
void draw_spike(const Case& c, const AllowedPairs& allowed, InputNumbers& in, Random& random) {
  set_kind(in.q, Numbers::Kind::constant, 0, 1);
  set_kind(in.k, Numbers::Kind::constant, 0, 0);
  if (c.batch == 0 || c.heads == 0 || c.q_len == 0 || c.k_len == 0 || c.head_dim == 0) return;
  const int64_t batch = random.below(c.batch), head = random.below(c.heads);
  const uint8_t* row = allowed.row(batch, head, random.below(c.q_len));
  std::vector<int64_t> edges = {0, c.k_len - 1, random.below(c.k_len)};
  for (int64_t key = 1; key < c.k_len; ++key) {
    if (row[key] != row[key - 1]) edges.insert(edges.end(), {key - 1, key});
  }
  const int64_t key = random.pick(edges);
  const double scale = c.score_scale();
  in.k.spike_seed = random.next();
  double shares = 0;
  for (int64_t x = 0; x < c.head_dim; ++x) shares += spike_share(in.k.spike_seed, x);
  in.k.spike_size = (std::log(double(c.k_len)) + 3) / ((scale == 0 ? 1 : scale) * shares);
  in.k.spike_row = row_that_stays(c, Tensor::k, batch, head / (c.heads / c.kv_heads), key);
}

// NaN and infinity in the keys and values that no query of any head sees, and in the queries and
// output gradients of rows that see nothing. Only where elements do not share memory.
void spoil_unseen(const Case& c, const AllowedPairs& allowed, InputNumbers& in, Random& random) {
  in.empty_queries.assign(size_t(c.batch * c.heads * c.q_len), 0);
  in.unseen_keys.assign(size_t(c.batch * c.kv_heads * c.k_len), 1);
  const int64_t group = c.kv_heads == 0 ? 1 : c.heads / c.kv_heads;
  for (int64_t batch = 0; batch < c.batch; ++batch) {
    for (int64_t head = 0; head < c.heads; ++head) {
      uint8_t* unseen = in.unseen_keys.data() + (batch * c.kv_heads + head / group) * c.k_len;
      for (int64_t query = 0; query < c.q_len; ++query) {
        const uint8_t* row = allowed.row(batch, head, query);
        for (int64_t key = 0; key < c.k_len; ++key) unseen[key] &= row[key] == 0;
        in.empty_queries[size_t((batch * c.heads + head) * c.q_len + query)] =
            allowed.count(batch, head, query) == 0;
      }
    }
  }
  const auto spoil = [&](Tensor tensor, Numbers& numbers, const std::vector<uint8_t>& rows) {
    numbers.spoil_seed = random.next();
    if (!is_shared(c, tensor)) numbers.is_spoilt = rows.data();
  };
  spoil(Tensor::k, in.k, in.unseen_keys);
  spoil(Tensor::v, in.v, in.unseen_keys);
  spoil(Tensor::q, in.q, in.empty_queries);
  spoil(Tensor::dout, in.dout, in.empty_queries);
}

// One element of k or v.
void draw_nan(const Case& c, InputNumbers& in, Random& random) {
  const bool in_keys = random.chance(50);
  Numbers& numbers = in_keys ? in.k : in.v;
  const int64_t elements = c.batch * c.kv_heads * c.k_len * numbers.columns;
  if (elements == 0) return;
  const int64_t at = random.below(elements), row = at / numbers.columns;
  const int64_t stays =
      row_that_stays(c, in_keys ? Tensor::k : Tensor::v, row / c.k_len / c.kv_heads,
                     row / c.k_len % c.kv_heads, row % c.k_len);
  numbers.nan_at = stays * numbers.columns + at % numbers.columns;
}

}  // namespace

InputNumbers draw_numbers(const Case& c, const AllowedPairs& allowed) {
  using Kind = Numbers::Kind;
  InputNumbers in;
  Random random(c.data);
  in.q.columns = in.k.columns = std::max<int64_t>(c.head_dim, 1);
  in.v.columns = in.dout.columns = std::max<int64_t>(c.v_head_dim, 1);
  for (Numbers* numbers : {&in.q, &in.k, &in.v, &in.dout}) {
    set_kind(*numbers, Kind::normal, random.next());
  }
  if (c.has_sink) set_kind(in.sink, Kind::normal, random.next(), 2);
  switch (c.regime) {
    case Regime::normal:
      break;
    case Regime::integers:
      for (Numbers* numbers : {&in.q, &in.k, &in.v, &in.dout}) {
        set_kind(*numbers, Kind::integers, random.next());
      }
      break;
    case Regime::count:
      set_kind(in.q, Kind::constant, 0, 0);
      break;
    case Regime::ones:
      set_kind(in.v, Kind::constant, 0, 1);
      break;
    case Regime::spike:
      draw_spike(c, allowed, in, random);
      break;
    case Regime::deep:
      draw_scores(c, in, random, -120, false);
      break;
    case Regime::huge:
      draw_scores(c, in, random, 6e4, true);
      break;
    case Regime::ties:
      for (Numbers* numbers : {&in.q, &in.k, &in.v}) {
        set_kind(*numbers, Kind::ties, random.next());
      }
      break;
    case Regime::zeros:
      for (Numbers* numbers : {&in.q, &in.k, &in.v, &in.dout}) {
        set_kind(*numbers, Kind::constant, 0, 0);
      }
      break;
    case Regime::subnormal:
      set_kind(in.v, Kind::normal, random.next(), subnormal_of(c.dtype));
      set_kind(in.dout, Kind::normal, random.next());
      in.dout.size = random.chance(50) ? 1 : subnormal_of(c.dtype);
      break;
    case Regime::masked_nan:
      spoil_unseen(c, allowed, in, random);
      break;
    case Regime::attended_nan:
      draw_nan(c, in, random);
      break;
  }
  return in;
}

}  // namespace keyhole::test
