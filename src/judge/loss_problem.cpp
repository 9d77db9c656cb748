// src/judge/loss_problem.cpp
#include "judge/loss_problem.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace keyhole::judge {
namespace {

DType sum_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace

std::string to_text(const LossCase& c) {
  return say("batch ", c.batch, ", groups ", c.groups, ", heads ", c.heads, " of ", c.head_dim,
             ", target ", c.target_heads, ":", c.kv_heads, " of ", c.target_dim, ", q_len ",
             c.q_len, ", entries ", c.entries, " of ", c.keys_per_entry, ", keys ", c.k_len(), ", ",
             to_string(c.dtype), ", target ", to_string(c.target_dtype), c.has_w ? ", w" : "",
             c.has_scale ? ", k_scale" : "", ", ", c.pattern.text(),
             c.offset ? say(", offset ", *c.offset) : "", ", selected ", c.selected, ", rows ",
             c.rows.size(), ", softcap ", c.softcap, ", other weight ", c.other_weight, ", layout ",
             int(c.layout), ", threads ", c.threads,
             c.device.kind == Device::Kind::cuda ? ", on a GPU" : "", ", seed ", c.seed);
}

LossProblem::LossProblem(const LossCase& of)
    : c(of),
      q(place(c.dtype, {c.batch, c.groups * c.heads, c.q_len, c.head_dim}, c.layout), false),
      k(place(c.dtype, {c.batch, c.groups, c.entries, c.head_dim}, c.layout), false),
      w(place(sum_dtype(c.dtype), {c.batch, c.groups * c.heads, c.q_len}, c.layout), false),
      k_scale(place(sum_dtype(c.dtype), {c.batch, c.groups, c.entries}, c.layout), false),
      target_q(place(c.target_dtype, {c.batch, c.target_heads, c.q_len, c.target_dim}, c.layout),
               false),
      target_k(place(c.target_dtype, {c.batch, c.kv_heads, c.k_len(), c.target_dim}, c.layout),
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
  draw_lists(random);
  spoil_what_is_not_listed();
  compute_lse();
  for (PoisonedTensor* tensor :
       {&q, &k, &w, &k_scale, &target_q, &target_k, &lse, &dloss, &loss, &stats, &dq, &dk, &dw}) {
    tensor->seal();
  }
}

bool LossProblem::is_listed(int64_t b, int64_t g, int64_t t, int64_t key) const {
  return is_listed_[size_t(((b * c.groups + g) * c.q_len + t) * c.k_len() + key)] != 0;
}

void LossProblem::draw_lists(Random& random) {
  const int64_t k_len = c.k_len();
  const Shape shape{c.batch, c.groups, c.q_len, k_len, c.offset};
  is_listed_.resize(size_t(c.batch * c.groups * c.q_len * k_len));
  if (c.selected == 0) plan_ = plan(c.pattern, shape);
  std::vector<HeadPattern> patterns;
  for (int64_t i = 0; i < c.batch * c.groups; ++i) {
    patterns.push_back(c.pattern.for_head(shape, i / c.groups, i % c.groups));
  }
  for (int64_t row = 0; row < c.batch * c.groups * c.q_len; ++row) {
    const HeadPattern& pattern = patterns[size_t(row / c.q_len)];
    uint8_t* const is_listed = is_listed_.data() + row * k_len;
    std::vector<int32_t> entries;
    for (int64_t key = 0; key < k_len; ++key) {
      if (!pattern.allows(row % c.q_len, key)) continue;
      const auto entry = int32_t(key / c.keys_per_entry);
      if (entries.empty() || entries.back() != entry) entries.push_back(entry);
      if (c.selected == 0) is_listed[key] = 1;
    }
    if (c.selected == 0) continue;
    for (size_t i = entries.size(); i > 1; --i) {  // in any order
      std::swap(entries[i - 1], entries[size_t(random.below(int64_t(i)))]);
    }
    entries.resize(std::min(entries.size(), size_t(c.selected)));
    for (const int32_t entry : entries) {
      const int64_t begin = entry * c.keys_per_entry;
      for (int64_t key = begin; key < std::min(begin + c.keys_per_entry, k_len); ++key) {
        is_listed[key] = !clips() || key <= row % c.q_len + k_len - c.q_len;
      }
    }
    entries.resize(size_t(c.selected), -1);
    selected_.insert(selected_.end(), entries.begin(), entries.end());
  }
}

// Entries of several keys end at the query that they are listed for.
bool LossProblem::clips() const { return c.keys_per_entry > 1; }

// A key of the attention serves several groups: it is spoiled where none of its batch entry lists
// it.
void LossProblem::spoil_what_is_not_listed() {
  const auto spoil = [&](PoisonedTensor& keys, int64_t heads, int64_t length, int64_t dim,
                         int64_t b, int64_t at) {
    for (int64_t i = 0; i < heads * dim; ++i) {
      keys.set(((b * heads + i / dim) * length + at) * dim + i % dim, NAN);
    }
  };
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t entry = 0; entry < c.entries; ++entry) {
      bool entry_is_seen = false;
      const int64_t begin = entry * c.keys_per_entry;
      for (int64_t key = begin; key < std::min(begin + c.keys_per_entry, c.k_len()); ++key) {
        bool is_seen = false;
        for (int64_t row = 0; row < c.groups * c.q_len && !is_seen; ++row) {
          is_seen = is_listed(b, row / c.q_len, row % c.q_len, key);
        }
        if (!is_seen) spoil(target_k, c.kv_heads, c.k_len(), c.target_dim, b, key);
        entry_is_seen = entry_is_seen || is_seen;
      }
      if (!entry_is_seen) spoil(k, c.groups, c.entries, c.head_dim, b, entry);
    }
  }
}

// Over what the query of a head lists, and other_weight beside it.
void LossProblem::compute_lse() {
  const double scale = c.scale.value_or(1 / std::sqrt(double(c.target_dim)));
  const std::vector<double> queries = target_q.values(), keys = target_k.values();
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.target_heads; ++h) {
      for (int64_t t = 0; t < c.q_len; ++t) {
        const int64_t query = (b * c.target_heads + h) * c.q_len + t;
        const int64_t kv_head = h / (c.target_heads / c.kv_heads);
        double sum = c.other_weight;
        for (int64_t s = 0; s < c.k_len(); ++s) {
          if (!is_listed(b, h / (c.target_heads / c.groups), t, s)) continue;
          const int64_t key = (b * c.kv_heads + kv_head) * c.k_len() + s;
          const double score =
              scale * std::inner_product(queries.begin() + query * c.target_dim,
                                         queries.begin() + (query + 1) * c.target_dim,
                                         keys.begin() + key * c.target_dim, 0.0);
          sum += std::exp(c.softcap > 0 ? c.softcap * std::tanh(score / c.softcap) : score);
        }
        lse.set(query, std::log(sum));
      }
    }
  }
}

IndexerView LossProblem::indexer() const {
  return {q.view(), k.view(), c.has_w ? w.view() : TensorView(),
          c.has_scale ? k_scale.view() : TensorView()};
}
AttentionTarget LossProblem::target() const {
  return {target_q.view(), target_k.view(), lse.view(), c.scale, c.softcap, c.keys_per_entry};
}
Lists LossProblem::lists() const {
  if (plan_) return *plan_;
  return selected();
}
KeyListView LossProblem::selected() const {
  return {.indices = IndexView(selected_.data(), {c.batch, c.groups, c.q_len, c.selected}),
          .keys_per_entry = c.keys_per_entry,
          .causal = clips()};
}
EntryPredicate LossProblem::listed() const {
  return [this](int64_t b, int64_t g, int64_t t, int64_t key) {
    const bool counts = c.rows.empty() || std::ranges::find(c.rows, t) != c.rows.end();
    return counts && is_listed(b, g, t, key);
  };
}
IndexLossOptions LossProblem::options() const {
  IndexLossOptions options{.threads = c.threads};
  if (!c.rows.empty()) options.rows = IndexView(c.rows.data(), {1, 1, 1, int64_t(c.rows.size())});
  return options;
}
std::string LossProblem::damage_of_inputs() const {
  for (const PoisonedTensor* tensor : {&q, &k, &w, &k_scale, &target_q, &target_k, &lse, &dloss}) {
    if (!tensor->damage().empty()) return tensor->damage();
  }
  return "";
}
void LossProblem::forward() {
  index_loss_forward(indexer(), target(), lists(), loss.view(), stats.view(), options());
}
void LossProblem::backward() {
  index_loss_backward(dloss.view(), indexer(), target(), lists(), stats.view(),
                      {dq.view(), dk.view(), c.has_w ? dw.view() : TensorView()}, options());
}

// Inputs come back as well: a write to them shows.
LossTensors::LossTensors(LossProblem& p)
    : lists(p.lists()), options(p.options()), copies_(p.c.device) {
  const auto integers_there = [&](std::vector<int32_t>& copy, IndexView view) {
    const auto* const here = static_cast<const int32_t*>(view.data);
    copy.assign(here, here + view.shape[0] * view.shape[1] * view.shape[2] * view.shape[3]);
    view.data = copies_.integers(copy);
    view.device = p.c.device;
    return view;
  };
  indexer = {copies_.output(p.q), copies_.output(p.k),
             p.c.has_w ? copies_.output(p.w) : TensorView(),
             p.c.has_scale ? copies_.output(p.k_scale) : TensorView()};
  target = p.target();
  target.q = copies_.output(p.target_q);
  target.k = copies_.output(p.target_k);
  target.lse = copies_.output(p.lse);
  if (p.c.selected > 0) {
    KeyListView there = p.selected();
    there.indices = integers_there(selected_, there.indices);
    lists = there;
  }
  loss = copies_.output(p.loss);
  stats = copies_.output(p.stats);
  dloss = copies_.output(p.dloss);
  gradients = {copies_.output(p.dq), copies_.output(p.dk),
               p.c.has_w ? copies_.output(p.dw) : TensorView()};
  if (options.rows.is_given()) options.rows = integers_there(rows_, options.rows);
}
void LossTensors::forward() const {
  index_loss_forward(indexer, target, lists, loss, stats, options);
}
void LossTensors::backward() const {
  index_loss_backward(dloss, indexer, target, lists, stats, gradients, options);
}

}  // namespace keyhole::judge
