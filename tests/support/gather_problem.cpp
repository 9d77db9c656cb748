// tests/support/gather_problem.cpp
#include "support/gather_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/int_math.h"
#include "base/random.h"

namespace keyhole::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const char* to_text(Filling filling) {
  constexpr const char* kNames[] = {"mixed", "full", "gaps", "empty", "hostile"};
  return kNames[int(filling)];
}

// An entry that is no key, beside those that are.
int64_t hostile_entry(const GatherCase& c, Random& random) {
  constexpr int64_t kLow = std::numeric_limits<int32_t>::min();
  constexpr int64_t kHigh = std::numeric_limits<int32_t>::max();
  const int64_t end = ceil_div(c.k_len, c.keys_per_entry);
  if (!c.is_wide) return random.pick<int64_t>({-1, -2, -7, end, end + 100, kLow, kHigh});
  // The low half of the last ones is a key.
  return random.pick<int64_t>({-1, -2, end, std::numeric_limits<int64_t>::min(),
                               std::numeric_limits<int64_t>::max(), int64_t{1} << 32,
                               (int64_t{1} << 40) + end / 2, -(int64_t{1} << 32)});
}

template <class T>
std::vector<std::byte> bytes_of_all(const std::vector<T>& values) {
  const auto* const first = reinterpret_cast<const std::byte*>(values.data());
  return {first, first + values.size() * sizeof(T)};
}

PoisonedTensor input(DType dtype, const std::vector<int64_t>& shape, Layout layout,
                     Random& random) {
  PoisonedTensor tensor(place(dtype, shape, layout), /*is_output=*/false);
  tensor.fill([&](int64_t) { return random.quick_normal(); });
  tensor.seal();
  return tensor;
}
PoisonedTensor output(DType dtype, const std::vector<int64_t>& shape, Layout layout) {
  return PoisonedTensor(place(dtype, shape, layout), /*is_output=*/true);
}

}  // namespace

std::string to_text(const GatherCase& c) {
  return say(c.name, ": ", to_string(c.dtype), ", ", c.batch, " x ", c.heads, " heads over ",
             c.kv_heads, ", ", c.q_len, " queries, ", c.k_len, " keys, head_dim ", c.head_dim,
             " (v ", c.v_head_dim, "), ", c.index_heads, " x ", c.entries,
             c.is_wide ? " int64" : " int32", c.is_strided ? " strided" : "", " entries ",
             to_text(c.filling), ", ", c.rows_per_list, " queries a list, ", c.keys_per_entry,
             " keys an entry", c.has_counts ? ", counts" : "", c.causal ? ", causal" : "",
             c.has_sink ? ", sink" : "", c.softcap > 0 ? ", softcap" : "");
}

IndexMemory::IndexMemory(const GatherCase& c, uint64_t seed) : c_(c) {
  shape_[0] = c.batch, shape_[1] = c.index_heads;
  shape_[2] = ceil_div(c.q_len, c.rows_per_list), shape_[3] = c.entries;
  // Strided: entries two apart, lists with room between them, heads inside lists.
  strides_[3] = c.is_strided ? 2 : 1;
  strides_[1] = c.is_strided ? 2 * c.entries + 3 : shape_[2] * c.entries;
  strides_[2] = c.is_strided ? strides_[1] * shape_[1] + 1 : c.entries;
  strides_[0] = c.is_strided ? strides_[2] * shape_[2] + 5 : strides_[1] * shape_[1];
  first_ = c.is_strided ? 7 : 0;
  const auto size = size_t(first_ + strides_[0] * shape_[0]);
  // What lies between entries are keys, too: a wrong stride shows.
  narrow_.assign(c.is_wide ? 0 : size, 0);
  wide_.assign(c.is_wide ? size : 0, 0);
  Random random(seed);
  const int64_t entries = ceil_div(c.k_len, c.keys_per_entry);  // of k
  for (int64_t b = 0; b < shape_[0]; ++b) {
    for (int64_t h = 0; h < shape_[1]; ++h) {
      for (int64_t l = 0; l < shape_[2]; ++l) {
        const int64_t some = random.below(4) == 0 ? 0 : random.below(c.entries + 1);
        const int64_t gap = random.below(c.entries + 1);  // a long one, where there are gaps
        const int64_t used = c.has_counts ? random.below(c.entries + 1) : c.entries;
        if (c.has_counts) counts_.push_back(used);
        for (int64_t i = 0; i < c.entries; ++i) {
          const bool is_hole = random.chance(30) || (i >= gap && i < gap + 100);
          const bool is_key =
              c.k_len > 0 &&
              (c.filling == Filling::full || (c.filling == Filling::mixed && i < some) ||
               (c.filling >= Filling::gaps && c.filling != Filling::empty && !is_hole));
          const bool is_hostile = c.filling == Filling::hostile || i >= used;
          const int64_t none = is_hostile ? hostile_entry(c, random) : -1;
          set(b, h, l, i, is_key && i < used ? random.below(entries) : none);
        }
      }
    }
  }
  if (c.is_wide) narrow_counts_.assign(counts_.begin(), counts_.end());
}

int64_t IndexMemory::place_of(int64_t batch, int64_t head, int64_t list, int64_t place) const {
  return first_ + batch * strides_[0] + head * strides_[1] + list * strides_[2] +
         place * strides_[3];
}
int64_t IndexMemory::get(int64_t batch, int64_t head, int64_t list, int64_t place) const {
  const auto at = size_t(place_of(batch, head, list, place));
  return c_.is_wide ? wide_[at] : narrow_[at];
}
void IndexMemory::set(int64_t batch, int64_t head, int64_t list, int64_t place, int64_t value) {
  const auto at = size_t(place_of(batch, head, list, place));
  if (c_.is_wide) {
    wide_[at] = value;
  } else {
    narrow_[at] = int32_t(value);
  }
}

IndexView IndexMemory::view() const {
  IndexView view;
  view.is_wide = c_.is_wide;
  view.data =
      c_.is_wide ? static_cast<const void*>(wide_.data() + first_) : narrow_.data() + first_;
  std::copy_n(shape_, 4, view.shape);
  std::copy_n(strides_, 4, view.strides);
  view.rows_per_list = c_.rows_per_list;
  return view;
}

KeyListView IndexMemory::lists() const {
  KeyListView lists{.indices = view(), .keys_per_entry = c_.keys_per_entry, .causal = c_.causal};
  if (!c_.has_counts) return lists;
  const std::initializer_list<int64_t> shape = {shape_[0], shape_[1], shape_[2], 1};
  lists.counts =
      c_.is_wide ? IndexView(narrow_counts_.data(), shape) : IndexView(counts_.data(), shape);
  return lists;
}

std::vector<std::byte> IndexMemory::bytes() const {
  return c_.is_wide ? bytes_of_all(wide_) : bytes_of_all(narrow_);
}
std::vector<std::byte> IndexMemory::count_bytes() const {
  return c_.is_wide ? bytes_of_all(narrow_counts_) : bytes_of_all(counts_);
}

std::vector<int64_t> IndexMemory::keys(int64_t batch, int64_t head, int64_t query) const {
  const int64_t group = head / (c_.heads / c_.index_heads), list = query / c_.rows_per_list;
  const int64_t used = c_.has_counts ? counts_[size_t(number_of(batch, group, list))] : c_.entries;
  const int64_t end = c_.causal ? std::min(c_.k_len, query + c_.k_len - c_.q_len + 1) : c_.k_len;
  std::vector<int64_t> keys;
  for (int64_t i = 0; i < used; ++i) {
    const int64_t entry = get(batch, group, list, i);
    if (entry < 0 || entry >= c_.k_len) continue;
    for (int64_t step = 0; step < c_.keys_per_entry; ++step) {
      const int64_t key = entry * c_.keys_per_entry + step;
      if (key < end) keys.push_back(key);
    }
  }
  return keys;
}

GatherProblem::GatherProblem(const GatherCase& made, uint64_t seed)
    : c(made), indices(made, seed + 1) {
  Random random(seed);
  const DType lse_dtype = c.dtype == DType::f64 ? DType::f64 : DType::f32;
  const std::vector<int64_t> on_q = {c.batch, c.heads, c.q_len, c.head_dim};
  const std::vector<int64_t> on_out = {c.batch, c.heads, c.q_len, c.v_head_dim};
  const std::vector<int64_t> on_k = {c.batch, c.kv_heads, c.k_len, c.head_dim};
  const std::vector<int64_t> on_v = {c.batch, c.kv_heads, c.k_len, c.v_head_dim};
  q = input(c.dtype, on_q, Layout::bshd, random);
  k = input(c.dtype, on_k, Layout::contiguous, random);
  v = input(c.dtype, on_v, Layout::bshd, random);
  dout = input(c.dtype, on_out, Layout::contiguous, random);
  if (c.has_sink) sink = input(DType::f32, {c.heads}, Layout::contiguous, random);
  out = output(c.dtype, on_out, Layout::bshd);
  lse = output(lse_dtype, {c.batch, c.heads, c.q_len}, Layout::contiguous);
  dq = output(c.dtype, on_q, Layout::contiguous);
  dk = output(c.dtype, on_k, Layout::bshd);
  dv = output(c.dtype, on_v, Layout::contiguous);
  if (c.has_sink) dsink = output(DType::f32, {c.heads}, Layout::contiguous);
}

GatherOptions GatherProblem::options() const {
  GatherOptions options;
  options.softcap = c.softcap;
  options.sink = sink.view();
  return options;
}

std::string GatherProblem::damage() const {
  const InputTensors<PoisonedTensor>& in = *this;
  const OutputTensors<PoisonedTensor>& o = *this;
  return damage_of(in) + damage_of(o);
}

std::vector<uint64_t> GatherProblem::result_bits() const {
  std::vector<uint64_t> all;
  for (const PoisonedTensor* tensor : {&out, &lse, &dq, &dk, &dv}) {
    const std::vector<uint64_t> bits = tensor->bits();
    all.insert(all.end(), bits.begin(), bits.end());
  }
  return all;
}

namespace {

// One query of one head: its keys, their scores and weights.
struct Row {
  std::vector<int64_t> keys;
  std::vector<double> score, weight;
  double lse = -kInfinity, sink_weight = 0;
};

// A tensor's elements in fp64, by place.
struct Numbers {
  std::vector<double> values;
  int64_t heads, length, columns;
  explicit Numbers(const PoisonedTensor& tensor)
      : values(tensor.values()),
        heads(tensor.view().shape[1]),
        length(tensor.view().shape[2]),
        columns(tensor.view().shape[3]) {}
  size_t at(int64_t b, int64_t h, int64_t i) const {
    return size_t(((b * heads + h) * length + i) * columns);
  }
  const double* row(int64_t b, int64_t h, int64_t i) const { return values.data() + at(b, h, i); }
};

double dot(const double* a, const double* b, int64_t size) {
  double sum = 0;
  for (int64_t x = 0; x < size; ++x) sum += a[x] * b[x];
  return sum;
}
void add(double* to, double weight, const double* from, int64_t size) {
  for (int64_t x = 0; x < size; ++x) to[x] += weight * from[x];
}

}  // namespace

ListAttention by_definition(const GatherProblem& problem) {
  const GatherCase& c = problem.c;
  const Numbers q(problem.q), k(problem.k), v(problem.v), dout(problem.dout);
  ListAttention want;
  want.out.resize(dout.values.size()), want.dq.resize(q.values.size());
  want.dk.resize(k.values.size()), want.dv.resize(v.values.size());
  want.lse.resize(size_t(c.batch * c.heads * c.q_len), -kInfinity);
  want.dsink.resize(c.has_sink ? size_t(c.heads) : 0);
  const double scale = 1 / std::sqrt(double(c.head_dim));
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t kv_head = h / (c.heads / c.kv_heads);
      for (int64_t i = 0; i < c.q_len; ++i) {
        Row row{.keys = problem.indices.keys(b, h, i), .score = {}, .weight = {}};
        const double sink = c.has_sink ? problem.sink.get(h) : -kInfinity;
        double total = std::exp(sink);
        for (const int64_t key : row.keys) {
          double score = scale * dot(q.row(b, h, i), k.row(b, kv_head, key), c.head_dim);
          if (c.softcap > 0) score = c.softcap * std::tanh(score / c.softcap);
          row.score.push_back(score);
          total += std::exp(score);
        }
        want.lse[size_t((b * c.heads + h) * c.q_len + i)] = std::log(total);
        if (row.keys.empty()) continue;
        const double* row_dout = dout.row(b, h, i);
        double delta = 0;
        for (size_t j = 0; j < row.keys.size(); ++j) {
          const double* value = v.row(b, kv_head, row.keys[j]);
          row.weight.push_back(std::exp(row.score[j]) / total);
          add(&want.out[dout.at(b, h, i)], row.weight[j], value, c.v_head_dim);
          delta += row.weight[j] * dot(row_dout, value, c.v_head_dim);
        }
        for (size_t j = 0; j < row.keys.size(); ++j) {
          const int64_t key = row.keys[j];
          const double capped = c.softcap > 0 ? row.score[j] / c.softcap : 0;
          const double slope = scale * (1 - capped * capped);
          const double dp = dot(row_dout, v.row(b, kv_head, key), c.v_head_dim);
          const double ds = row.weight[j] * (dp - delta) * slope;
          add(&want.dq[q.at(b, h, i)], ds, k.row(b, kv_head, key), c.head_dim);
          add(&want.dk[k.at(b, kv_head, key)], ds, q.row(b, h, i), c.head_dim);
          add(&want.dv[v.at(b, kv_head, key)], row.weight[j], row_dout, c.v_head_dim);
        }
        if (c.has_sink) want.dsink[size_t(h)] -= std::exp(sink) / total * delta;
      }
    }
  }
  return want;
}

namespace {

// Of 1 + the result: numbers are around 1, and many are added.
double allowed_share(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0.03;
    case DType::f16:
      return 0.004;
    case DType::f32:
      return 2e-4;
    case DType::f64:
    case DType::e4m3:  // attention has none
      break;
  }
  return 1e-11;
}

}  // namespace

std::string difference(const char* name, const PoisonedTensor& got, const std::vector<double>& want,
                       DType dtype) {
  if (!got.view().is_given()) return "";
  const double share = std::max(allowed_share(dtype), allowed_share(got.view().dtype));
  for (int64_t i = 0; i < got.num_elements(); ++i) {
    const double x = got.get(i), y = want[size_t(i)];
    const bool is_equal = x == y || (std::isnan(x) && std::isnan(y));
    if (is_equal || std::abs(x - y) <= share * (1 + std::abs(y))) continue;
    return say(name, "[", i, "] is ", x, ", the definition gives ", y, "; ");
  }
  return "";
}

std::string forward_difference(const GatherProblem& p, const ListAttention& want) {
  return difference("out", p.out, want.out, p.c.dtype) +
         difference("lse", p.lse, want.lse, p.lse.view().dtype) + p.damage();
}
std::string backward_difference(const GatherProblem& p, const ListAttention& want) {
  return difference("dq", p.dq, want.dq, p.c.dtype) + difference("dk", p.dk, want.dk, p.c.dtype) +
         difference("dv", p.dv, want.dv, p.c.dtype) +
         difference("dsink", p.dsink, want.dsink, p.c.dtype) + p.damage();
}

}  // namespace keyhole::test
