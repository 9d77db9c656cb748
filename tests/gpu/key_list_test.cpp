// tests/gpu/key_list_test.cpp
// Lists of keys as a selection on the device leaves them, and no compiled plan has them: padded
// with -1 to equal room, shared by neighbouring queries, with keys named twice. Every kernel of the
// table against sums in fp64.
#include <algorithm>
#include <cmath>

#include "base/int_math.h"
#include "gpu/gpu_problem.h"
#include "runtime/dispatch.h"

namespace keyhole::test {
namespace {

using GpuKeyLists = GpuTest;

template <class T>
GpuMemory on_gpu(const std::vector<T>& values) {
  GpuMemory memory(kGpu, int64_t(values.size() * sizeof(T)));
  memory.copy_from_host(values.data(), int64_t(values.size() * sizeof(T)));
  return memory;
}

// Two groups of lists, of at most kRoom keys each in kRoom places; some heads have none.
class KeyListsOnGpu {
 public:
  static constexpr int64_t kRoom = 150;

  // heads_alike: neighbouring heads have the same lists.
  KeyListsOnGpu(const ProblemSizes& sizes, int32_t rows_per_list, int32_t heads_alike,
                uint64_t seed) {
    Random random(seed);
    for (int64_t head = 0; head < sizes.heads; ++head) {
      const int64_t place = head / heads_alike;
      group_of_.push_back(place == 7 || (heads_alike > 1 && place == 3) ? -1
                          : place % 3 == 2                              ? 1
                                                                        : 0);
    }
    lists_ = ceil_div(sizes.q_len, rows_per_list);
    rows_per_list_ = rows_per_list;
    std::vector<int64_t> begin, t_begin;
    std::vector<int32_t> count, t_count, t_lists;
    for (int64_t list = 0; list < 2 * lists_; ++list) {
      begin.push_back(list * kRoom);
      count.push_back(int32_t(kRoom));
      std::vector<int32_t> keys(
          size_t(random.below(3) == 0 ? random.below(20) : random.below(kRoom + 1)));
      for (int32_t& key : keys) key = int32_t(random.below(sizes.k_len));
      std::sort(keys.begin(), keys.end());
      keys.resize(size_t(kRoom), -1);
      keys_.insert(keys_.end(), keys.begin(), keys.end());
    }
    for (int32_t group = 0; group < 2; ++group) {
      for (int32_t key = 0; key < sizes.k_len; ++key) {
        t_begin.push_back(int64_t(t_lists.size()));
        for (int32_t list = 0; list < lists_; ++list) {
          const auto keys = keys_of_group(group, list * rows_per_list);
          t_lists.insert(t_lists.end(), size_t(std::count(keys.begin(), keys.end(), key)), list);
        }
        t_count.push_back(int32_t(int64_t(t_lists.size()) - t_begin.back()));
      }
    }
    memory_.push_back(on_gpu(group_of_));
    memory_.push_back(on_gpu(begin));
    memory_.push_back(on_gpu(count));
    memory_.push_back(on_gpu(keys_));
    memory_.push_back(on_gpu(t_begin));
    memory_.push_back(on_gpu(t_count));
    memory_.push_back(on_gpu(t_lists));
    synchronize(kGpu);
    view_ = {
        .q_len = sizes.q_len,
        .k_len = sizes.k_len,
        .groups = 2,
        .rows_per_list = rows_per_list,
        .lists = lists_,
        .group_of = static_cast<const int32_t*>(memory_[0].data()),
        .list_begin = static_cast<const int64_t*>(memory_[1].data()),
        .list_count = static_cast<const int32_t*>(memory_[2].data()),
        .keys = static_cast<const int32_t*>(memory_[3].data()),
        .t_list_begin = static_cast<const int64_t*>(memory_[4].data()),
        .t_list_count = static_cast<const int32_t*>(memory_[5].data()),
        .t_lists = static_cast<const int32_t*>(memory_[6].data()),
        .planned = {
            .longest = int32_t(kRoom), .mean = int32_t(kRoom) / 2, .heads_alike = heads_alike}};
  }

  PlanView view() const { return {{}, {&view_, 1}}; }
  KeyListSizes sizes(int64_t heads_per_kv) const { return key_list_sizes(view_, heads_per_kv); }
  std::vector<int32_t> keys(int64_t head, int64_t query) const {
    const int32_t group = group_of_[size_t(head)];
    return group < 0 ? std::vector<int32_t>{} : keys_of_group(group, query);
  }

 private:
  std::vector<int32_t> keys_of_group(int32_t group, int64_t query) const {
    const auto first = keys_.begin() + (group * lists_ + query / rows_per_list_) * kRoom;
    return {first, std::find(first, first + kRoom, -1)};
  }

  int64_t lists_ = 0, rows_per_list_ = 1;
  std::vector<int32_t> group_of_, keys_;
  std::vector<GpuMemory> memory_;
  GatherView view_ = {};
};

// What the definition gives for the numbers of a problem.
struct Expected {
  std::vector<float> out, lse, dq, dk, dv;

  Expected(const ProblemSizes& s, const GpuProblem& problem, const KeyListsOnGpu& lists)
      : out(size_t(s.heads * s.q_len * s.head_dim)),
        lse(size_t(s.heads * s.q_len), -INFINITY),
        dq(out.size()),
        dk(size_t(s.kv_heads * s.k_len * s.head_dim)),
        dv(dk.size()) {
    const auto q = problem.q.read(), k = problem.k.read(), v = problem.v.read();
    const auto dout = problem.dout.read();
    const size_t dim = size_t(s.head_dim);
    const double scale = 1 / std::sqrt(double(dim));
    std::vector<double> dk_sum(dk.size()), dv_sum(dv.size());
    for (int64_t head = 0; head < s.heads; ++head) {
      for (int64_t query = 0; query < s.q_len; ++query) {
        const size_t row = size_t(head * s.q_len + query), at = row * dim;
        const size_t kv_head = size_t(head / (s.heads / s.kv_heads) * s.k_len) * dim;
        const std::vector<int32_t> keys = lists.keys(head, query);
        const auto dot = [&](const float* a, const float* b) {
          double sum = 0;
          for (size_t x = 0; x < dim; ++x) sum += double(a[x]) * double(b[x]);
          return sum;
        };
        std::vector<double> score, dp;
        double total = 0, delta = 0;
        for (const int32_t key : keys) {
          const size_t from = kv_head + size_t(key) * dim;
          score.push_back(scale * dot(&q[at], &k[from]));
          dp.push_back(dot(&dout[at], &v[from]));
          total += std::exp(score.back());
        }
        if (keys.empty()) continue;
        lse[row] = float(std::log(total));
        for (size_t i = 0; i < keys.size(); ++i) delta += std::exp(score[i]) / total * dp[i];
        std::vector<double> out_sum(dim), dq_sum(dim);
        for (size_t i = 0; i < keys.size(); ++i) {
          const size_t from = kv_head + size_t(keys[i]) * dim;
          const double p = std::exp(score[i]) / total, ds = scale * p * (dp[i] - delta);
          for (size_t x = 0; x < dim; ++x) {
            out_sum[x] += p * double(v[from + x]);
            dq_sum[x] += ds * double(k[from + x]);
            dk_sum[from + x] += ds * double(q[at + x]);
            dv_sum[from + x] += p * double(dout[at + x]);
          }
        }
        std::copy(out_sum.begin(), out_sum.end(), out.begin() + std::ptrdiff_t(at));
        std::copy(dq_sum.begin(), dq_sum.end(), dq.begin() + std::ptrdiff_t(at));
      }
    }
    std::copy(dk_sum.begin(), dk_sum.end(), dk.begin());
    std::copy(dv_sum.begin(), dv_sum.end(), dv.begin());
  }
};

void expect_near(const KernelEntry& kernel, const char* name, const GpuTensor& got,
                 const std::vector<float>& want) {
  const double share = kernel.dtype == DType::bf16  ? 0.03
                       : kernel.dtype == DType::f16 ? 0.004
                                                    : 2e-4;
  const std::vector<float> numbers = got.read();
  ASSERT_EQ(numbers.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (numbers[i] == want[i]) continue;  // -inf is not near -inf
    ASSERT_NEAR(numbers[i], want[i], share * (1 + std::abs(want[i])))
        << kernel.name << " " << name << "[" << i << "]";
  }
}

// A kernel with the launch and the workspace that it asks for.
template <class Args>
void call(const KernelEntry& kernel, Args args, const KeyListsOnGpu& lists) {
  args.plan = lists.view();
  args.launch.num_processors = gpu(kGpu).num_processors;
  args.launch.shared_bytes = gpu(kGpu).shared_bytes;
  args.launch.l2_cache_bytes = gpu(kGpu).l2_cache_bytes;
  int64_t bytes = 0;
  if constexpr (std::is_same_v<Args, ForwardArgs>) {
    if (kernel.forward_workspace != nullptr) bytes = kernel.forward_workspace(args);
  } else {
    if (kernel.backward_workspace != nullptr) bytes = kernel.backward_workspace(args);
  }
  const GpuMemory workspace(kGpu, bytes);
  workspace.fill(0xff);
  args.launch.workspace = workspace.data(), args.launch.workspace_bytes = bytes;
  if constexpr (std::is_same_v<Args, ForwardArgs>) {
    kernel.forward(args);
  } else {
    kernel.backward(args);
  }
  synchronize(kGpu);
}

// Whether a pass went by spans.
bool check(const KernelEntry& kernel, int64_t heads, int32_t rows_per_list, int32_t heads_alike) {
  ProblemSizes sizes = sizes_for(kernel, 0);
  sizes.heads = heads, sizes.q_len = 23, sizes.k_len = 190, sizes.has_sink = false;
  const GpuProblem problem(sizes, uint64_t(heads));
  const KeyListsOnGpu lists(sizes, rows_per_list, heads_alike, uint64_t(heads + rows_per_list));
  const Expected want(sizes, problem, lists);
  problem.spoil(kernel.operation);
  if (kernel.operation == Operation::forward) {
    call(kernel, forward_args(problem, {}), lists);
    expect_near(kernel, "lse", problem.lse, want.lse);
    expect_near(kernel, "out", problem.out, want.out);
    return false;
  }
  problem.out.write(want.out);
  problem.lse.write(want.lse);
  bool goes_by_spans = false;
  for (const bool is_deterministic : {true, false}) {
    BackwardArgs args = backward_args(problem, {});
    Request request;
    request.deterministic = is_deterministic;
    request.shares_kv_heads = args.q.shape[1] != args.k.shape[1];
    if (is_deterministic) request.key_lists = lists.sizes(sizes.heads / sizes.kv_heads);
    args.schedule = schedule_of(kernel, request, kernel.tiles.front());
    goes_by_spans = goes_by_spans || args.schedule.key_lists == KeyListOrder::by_span;
    call(kernel, args, lists);
    expect_near(kernel, "dq", problem.dq, want.dq);
    expect_near(kernel, "dk", problem.dk, want.dk);
    expect_near(kernel, "dv", problem.dv, want.dv);
  }
  return goes_by_spans;
}

TEST_F(GpuKeyLists, PaddedSharedAndWithKeysNamedTwice) {
  int by_spans = 0;
  for (const Operation operation : {Operation::forward, Operation::backward}) {
    for (const KernelEntry* kernel : gpu_kernels(operation)) {
      if (kernel->weights == Weights::sparse) continue;  // entmax_test.cpp
      for (const int64_t heads : {1, 3, 16, 20}) {
        for (const int32_t rows_per_list : {1, 4}) {
          for (const int32_t heads_alike : {1, 4}) {
            SCOPED_TRACE(kernel->name + ", " + std::to_string(heads) + " heads, " +
                         std::to_string(heads_alike) + " alike, " + std::to_string(rows_per_list) +
                         " queries a list");
            by_spans += check(*kernel, heads, rows_per_list, heads_alike) ? 1 : 0;
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
  EXPECT_GT(by_spans, 0);  // of them with several lists for the heads of a kv head
}

}  // namespace
}  // namespace keyhole::test
