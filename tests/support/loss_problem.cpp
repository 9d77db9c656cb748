// tests/support/loss_problem.cpp
#include "support/loss_problem.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/check.h"
#include "base/dtype.h"
#include "base/random.h"
#include "support/allowed_pairs.h"

namespace keyhole::test {
namespace {

DType sum_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace

std::string to_text(const LossCase& c) {
  return say("batch ", c.batch, ", groups ", c.groups, ", heads ", c.heads, " of ", c.head_dim,
             ", target ", c.target_heads, ":", c.kv_heads, " of ", c.target_dim, ", q_len ",
             c.q_len, ", entries ", c.entries, ", ", to_string(c.dtype), ", target ",
             to_string(c.target_dtype), c.has_w ? ", w" : "", c.has_scale ? ", k_scale" : "", ", ",
             c.pattern, ", selected ", c.selected, ", rows ", c.rows.size(), ", softcap ",
             c.softcap, ", other weight ", c.other_weight, ", layout ", int(c.layout), ", threads ",
             c.threads, c.on_gpu ? ", on a GPU" : "", ", seed ", c.seed);
}

LossProblem::LossProblem(const LossCase& of)
    : c(of),
      q(place(c.dtype, {c.batch, c.groups * c.heads, c.q_len, c.head_dim}, c.layout), false),
      k(place(c.dtype, {c.batch, c.groups, c.entries, c.head_dim}, c.layout), false),
      w(place(sum_dtype(c.dtype), {c.batch, c.groups * c.heads, c.q_len}, c.layout), false),
      k_scale(place(sum_dtype(c.dtype), {c.batch, c.groups, c.entries}, c.layout), false),
      target_q(place(c.target_dtype, {c.batch, c.target_heads, c.q_len, c.target_dim}, c.layout),
               false),
      target_k(place(c.target_dtype, {c.batch, c.kv_heads, c.entries, c.target_dim}, c.layout),
               false),
      lse(place(sum_dtype(c.target_dtype), {c.batch, c.target_heads, c.q_len}, c.layout), false),
      loss(place(sum_dtype(c.dtype), {c.batch, c.groups, c.q_len}, Layout::contiguous), true),
      stats(place(sum_dtype(c.dtype), {c.batch, c.groups, c.q_len, 2}, Layout::padded), true),
      dloss(place(sum_dtype(c.dtype), {c.batch, c.groups, c.q_len}, Layout::contiguous), false),
      dq(place(c.dtype, {c.batch, c.groups * c.heads, c.q_len, c.head_dim}, Layout::padded), true),
      dk(place(c.dtype, {c.batch, c.groups, c.entries, c.head_dim}, Layout::padded), true),
      dw(place(sum_dtype(c.dtype), {c.batch, c.groups * c.heads, c.q_len}, Layout::contiguous),
         true) {
  Random random(c.seed);
  for (PoisonedTensor* tensor : {&q, &k, &w, &target_q, &target_k, &dloss}) {
    tensor->fill([&](int64_t) { return 0.7 * random.normal(); });
  }
  k_scale.fill([&](int64_t) { return 0.5 + random.uniform(); });
  const Shape shape{c.batch, c.groups, c.q_len, c.entries};
  const auto pairs = std::make_shared<AllowedPairs>(parse(c.pattern), shape);
  allowed_ = [pairs](int64_t b, int64_t g, int64_t t, int64_t s) { return (*pairs)(b, g, t, s); };
  if (c.selected == 0) {
    plan_ = plan(parse(c.pattern), shape);
  } else {
    std::vector<uint8_t> is_listed(size_t(c.batch * c.groups * c.q_len * c.entries), 0);
    for (int64_t row = 0; row < c.batch * c.groups * c.q_len; ++row) {
      std::vector<int32_t> keys;
      for (int32_t s = 0; s < c.entries; ++s) {
        if ((*pairs)(row / c.q_len / c.groups, row / c.q_len % c.groups, row % c.q_len, s)) {
          keys.push_back(s);
        }
      }
      for (size_t i = keys.size(); i > 1; --i) {  // in any order
        std::swap(keys[i - 1], keys[size_t(random.below(int64_t(i)))]);
      }
      keys.resize(std::min(keys.size(), size_t(c.selected)));
      for (const int32_t key : keys) is_listed[size_t(row * c.entries + key)] = 1;
      keys.resize(size_t(c.selected), -1);
      selected_.insert(selected_.end(), keys.begin(), keys.end());
    }
    allowed_ = [is_listed, n = c](int64_t b, int64_t g, int64_t t, int64_t s) {
      return is_listed[size_t(((b * n.groups + g) * n.q_len + t) * n.entries + s)] != 0;
    };
  }
  // lse over what the query of a head lists, and other_weight beside it.
  const double scale = c.scale.value_or(1 / std::sqrt(double(c.target_dim)));
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.target_heads; ++h) {
      for (int64_t t = 0; t < c.q_len; ++t) {
        const int64_t query = (b * c.target_heads + h) * c.q_len + t;
        const int64_t kv_head = h / (c.target_heads / c.kv_heads);
        double sum = c.other_weight;
        for (int64_t s = 0; s < c.entries; ++s) {
          if (!allowed_(b, h / (c.target_heads / c.groups), t, s)) continue;
          const int64_t key = (b * c.kv_heads + kv_head) * c.entries + s;
          double score = 0;
          for (int64_t x = 0; x < c.target_dim; ++x) {
            score += target_q.get(query * c.target_dim + x) * target_k.get(key * c.target_dim + x);
          }
          score *= scale;
          sum += std::exp(c.softcap > 0 ? c.softcap * std::tanh(score / c.softcap) : score);
        }
        lse.set(query, std::log(sum));
      }
    }
  }
  for (PoisonedTensor* tensor :
       {&q, &k, &w, &k_scale, &target_q, &target_k, &lse, &dloss, &loss, &stats, &dq, &dk, &dw}) {
    tensor->seal();
  }
}

IndexerView LossProblem::indexer() const {
  return {q.view(), k.view(), c.has_w ? w.view() : TensorView(),
          c.has_scale ? k_scale.view() : TensorView()};
}
AttentionTarget LossProblem::target() const {
  return {target_q.view(), target_k.view(), lse.view(), c.scale, c.softcap};
}
Lists LossProblem::lists() const {
  if (plan_) return *plan_;
  return selected();
}
IndexView LossProblem::selected() const {
  return IndexView(selected_.data(), {c.batch, c.groups, c.q_len, c.selected});
}
EntryPredicate LossProblem::listed() const {
  return [this](int64_t b, int64_t g, int64_t t, int64_t s) {
    const bool counts = c.rows.empty() || std::ranges::find(c.rows, t) != c.rows.end();
    return counts && allowed_(b, g, t, s);
  };
}
IndexLossOptions LossProblem::options() const {
  IndexLossOptions options{.threads = c.threads};
  if (!c.rows.empty()) options.rows = IndexView(c.rows.data(), {1, 1, 1, int64_t(c.rows.size())});
  return options;
}
void LossProblem::forward() {
  index_loss_forward(indexer(), target(), lists(), loss.view(), stats.view(), options());
}
void LossProblem::backward() {
  index_loss_backward(dloss.view(), indexer(), target(), lists(), stats.view(),
                      {dq.view(), dk.view(), c.has_w ? dw.view() : TensorView()}, options());
}

LossTensors::LossTensors(LossProblem& p)
    : indexer(p.indexer()),
      target(p.target()),
      lists(p.lists()),
      loss(p.loss.view()),
      stats(p.stats.view()),
      dloss(p.dloss.view()),
      gradients{p.dq.view(), p.dk.view(), p.c.has_w ? p.dw.view() : TensorView()},
      options(p.options()) {
  if (!p.c.on_gpu) return;
  copies_.emplace();
  const auto integers_there = [&](std::vector<int32_t>& copy, IndexView view) {
    const auto* const here = static_cast<const int32_t*>(view.data);
    copy.assign(here, here + view.shape[0] * view.shape[1] * view.shape[2] * view.shape[3]);
    view.data = copies_->integers(copy);
    view.device = {Device::Kind::cuda, 0};
    return view;
  };
  indexer = {copies_->input(p.q), copies_->input(p.k),
             p.c.has_w ? copies_->input(p.w) : TensorView(),
             p.c.has_scale ? copies_->input(p.k_scale) : TensorView()};
  target.q = copies_->input(p.target_q);
  target.k = copies_->input(p.target_k);
  target.lse = copies_->input(p.lse);
  if (p.c.selected > 0) lists = integers_there(selected_, p.selected());
  loss = copies_->output(p.loss);
  stats = copies_->output(p.stats);
  dloss = copies_->input(p.dloss);
  gradients = {copies_->output(p.dq), copies_->output(p.dk),
               p.c.has_w ? copies_->output(p.dw) : TensorView()};
  if (options.rows.is_given()) options.rows = integers_there(rows_, options.rows);
}
void LossTensors::forward() const {
  index_loss_forward(indexer, target, lists, loss, stats, options);
}
void LossTensors::backward() const {
  index_loss_backward(dloss, indexer, target, lists, stats, gradients, options);
}
std::string LossTensors::finish() { return copies_ ? copies_->finish() : ""; }

std::string check_loss(const LossCase& c) {
  LossProblem p(c);
  LossTensors tensors(p);
  tensors.forward();
  const bool has_gradients = c.dtype != DType::e4m3;
  if (has_gradients) tensors.backward();
  if (const std::string wrong = tensors.finish(); !wrong.empty()) return wrong;
  const auto want = reference_index_loss(p.indexer(), p.target(), p.listed(), p.dloss.values());
  // Numbers are around 1; exp of scores that many terms enter is what costs digits.
  const auto compare = [&](const char* name, const PoisonedTensor& got,
                           const std::vector<double>& wanted, double share) -> std::string {
    double size = 1e-3;
    for (const double x : wanted) size = std::isfinite(x) ? std::max(size, std::abs(x)) : size;
    for (int64_t i = 0; i < got.num_elements(); ++i) {
      const double x = got.get(i), y = wanted[size_t(i)];
      if (x == y || std::abs(x - y) <= share * size) continue;
      return say(name, "[", i, "] is ", x, " instead of ", y);
    }
    return got.damage();
  };
  const double sums = c.dtype == DType::f64 && c.target_dtype == DType::f64 ? 1e-11 : 3e-5;
  const double stored = sums + 2 * rounding_unit(c.dtype);
  for (const std::string& found :
       {compare("loss", p.loss, want.loss, sums), compare("stats", p.stats, want.stats, sums),
        has_gradients ? compare("dq", p.dq, want.dq, stored) : "",
        has_gradients ? compare("dk", p.dk, want.dk, stored) : "",
        has_gradients && c.has_w ? compare("dw", p.dw, want.dw, sums) : ""}) {
    if (!found.empty()) return found;
  }
  return "";
}

}  // namespace keyhole::test
