// cli/bench/index_loss.cpp
#include "cli/bench/index_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "runtime/select_registry.h"
#include "select/requests.h"

namespace keyhole::bench {
namespace {

double number_at(const TensorView& tensor, int64_t place) {
  return with_index_storage(tensor.dtype, [&](auto storage) -> double {
    return double(to_f32(static_cast<const decltype(storage)*>(tensor.data)[place]));
  });
}

// Empty, or where got(i) differs from the definition by more than a share of the largest number.
template <class Got>
std::string difference(const char* name, const std::vector<double>& want, double share, Got got) {
  double size = 1e-9;
  for (const double x : want) size = std::max(size, std::abs(x));
  for (size_t i = 0; i < want.size(); ++i) {
    const double x = got(int64_t(i));
    if (!(std::abs(x - want[i]) <= share * size)) {
      return fmt::format("{}[{}] is {} instead of {}", name, i, x, want[i]);
    }
  }
  return "";
}

}  // namespace

IndexLoss::IndexLoss(const Session& session, const SelectSizes& sizes, const Target& target)
    : sizes_(sizes), target_(target) {
  options_.backend = session.options().backend;
  options_.threads = session.threads();
  const DType dtype = target.attention.q.dtype;
  const auto tensor = [&](DType type, std::initializer_list<int64_t> shape) {
    return Tensor(type, shape, session.device());
  };
  const int64_t heads = sizes.heads, queries = sizes.queries, dim = sizes.head_dim;
  q_ = tensor(dtype, {1, heads, queries, dim}), dq_ = tensor(dtype, {1, heads, queries, dim});
  k_ = tensor(dtype, {1, 1, sizes.entries, dim}), dk_ = tensor(dtype, {1, 1, sizes.entries, dim});
  w_ = tensor(DType::f32, {1, heads, queries}), dw_ = tensor(DType::f32, {1, heads, queries});
  loss_ = tensor(DType::f32, {1, 1, queries}), dloss_ = tensor(DType::f32, {1, 1, queries});
  stats_ = tensor(DType::f32, {1, 1, queries, 2});
  row_ = tensor(DType::f32, {1, 1, 1, 1});
  q_.fill_normal(11), k_.fill_normal(12), w_.fill_normal(13), dloss_.fill_normal(14);
  auto* const weights = static_cast<float*>(w_.host().data);  // scores around 1, as in training
  for (int64_t i = 0; i < heads * queries; ++i) weights[i] /= float(dim * heads);
  w_.send();
}

std::string IndexLoss::kernel(SelectOperation operation) const {
  const SelectRequest request =
      request_of(operation, indexer(), target_.attention, options_.backend);
  return choose_select(select_table(), request).name;
}

double IndexLoss::products() const {
  const int64_t target_heads = target_.attention.q.shape[1];
  return target_.pairs *
         double(sizes_.heads * sizes_.head_dim + target_heads * target_.attention.q.shape[3]);
}

SelectStep IndexLoss::loss() {
  const auto run = [this] {
    index_loss_forward(indexer(), target_.attention, target_.lists, loss_, stats_, options_);
  };
  return {kernel(SelectOperation::loss), 2 * products(), run, [this] { return check_loss(); }};
}

// The products of both once more, and those of dq and dk.
SelectStep IndexLoss::gradients() {
  const auto run = [this] {
    index_loss_backward(dloss_, indexer(), target_.attention, target_.lists, stats_,
                        {dq_, dk_, dw_}, options_);
  };
  const double more = 2 * target_.pairs * double(sizes_.heads * sizes_.head_dim);
  return {kernel(SelectOperation::gradients), 2 * (products() + more), run,
          [this] { return check_gradients(); }};
}

ReferenceIndexLoss IndexLoss::reference(int64_t query) const {
  const AttentionTarget& target = target_.on_host;
  const auto* const list =
      static_cast<const int32_t*>(target_.lists_on_host.data) + query * sizes_.k;
  const std::vector<int32_t> listed(list, std::find(list, list + sizes_.k, -1));
  const AttentionTarget of_query = {part_of(target.q, 2, query, 1), target.k,
                                    part_of(target.lse, 2, query, 1), target.scale};
  return reference_index_loss(
      {part_of(q_.host(), 2, query, 1), k_.host(), part_of(w_.host(), 2, query, 1), {}}, of_query,
      [&](int64_t, int64_t, int64_t, int64_t key) {
        return std::binary_search(listed.begin(), listed.end(), int32_t(key));
      },
      {number_at(dloss_.host(), query)});
}

std::string IndexLoss::check_loss() {
  loss_.bring_back();
  for (const int64_t query : {int64_t{0}, sizes_.queries - 1}) {
    const double want = reference(query).loss[0], got = number_at(loss_.host(), query);
    if (!(std::abs(got - want) <= 1e-3 * std::max(1.0, want))) {
      return fmt::format("the loss of query {} is {} instead of {}", query, got, want);
    }
  }
  return "";
}

// Of one query, which alone has gradients then.
std::string IndexLoss::check_gradients() {
  const int64_t query = sizes_.queries - 1;
  const ReferenceIndexLoss want = reference(query);
  *static_cast<int32_t*>(row_.host().data) = int32_t(query);
  row_.send();
  IndexLossOptions options = options_;
  options.rows = IndexView(static_cast<const int32_t*>(row_.view().data), {1, 1, 1, 1});
  options.rows.device = row_.view().device;
  for (Tensor* gradient : {&dq_, &dk_, &dw_}) gradient->fill_nan();
  index_loss_backward(dloss_, indexer(), target_.attention, target_.lists, stats_, {dq_, dk_, dw_},
                      options);
  for (Tensor* gradient : {&dq_, &dk_, &dw_}) gradient->bring_back();
  const double share = 1e-3 + 4 * rounding_unit(dq_.view().dtype);
  const int64_t dim = sizes_.head_dim, queries = sizes_.queries;
  std::string found =
      difference("dk", want.dk, share, [&](int64_t i) { return number_at(dk_.host(), i); });
  if (found.empty()) {
    found = difference("dq", want.dq, share, [&](int64_t i) {
      return number_at(dq_.host(), (i / dim * queries + query) * dim + i % dim);
    });
  }
  if (found.empty()) {
    found = difference("dw", want.dw, share,
                       [&](int64_t head) { return number_at(dw_.host(), head * queries + query); });
  }
  return found;
}

}  // namespace keyhole::bench
