// bench/gpu_kernels.cpp
// keyhole_gpu_kernels CASES: times the GPU kernels on the cases of a file
// (bench/cases/gpu_kernels.txt), forward and backward, with CUDA events: 3 calls to warm up, then
// the median of 15, queued back to back. Prints a line a case;
// --json FILE gets the same as records. No check: the tests do that. --profile runs one call
// between the marks of a profiler instead; --indices gives key lists as an index tensor.
// bench/peers/compare.py times the same cases alike, through the Python package and beside
// PyTorch's attention.
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <fnmatch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "bench/case_pattern.h"
#include "cli/gpu/event.h"
#include "kernels/device/check_cuda.h"
#include "keyhole/attention.h"
#include "plan/plan_state.h"
#include "runtime/gpu.h"
#include "runtime/gpu_memory.h"

namespace keyhole {
namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};

struct Case {
  std::string name, pattern;
  int64_t batch = 0, heads = 0, kv_heads = 0, q_len = 0, k_len = 0, head_dim = 0;
  DType dtype = DType::bf16;

  // The head of bench/cases/gpu_kernels.txt says what names tell.
  bool has_nan() const { return name.ends_with("-nan"); }
  std::string title() const { return has_nan() ? pattern + ", one NaN" : pattern; }
};

struct Options {
  std::string cases, only = "*", backend = "auto", json, profile;
  std::string indices;  // "int32", "int64"; empty: plans are followed as plans
};

DType dtype_named(const std::string& name) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    if (name == to_string(dtype)) return dtype;
  }
  throw Error(ErrorKind::usage, say("dtype is \"", name, "\"; expected bf16, f16 or f32"));
}

// "16" or, where keys have another number than queries, "16:1".
std::istream& read_both(std::istream& words, int64_t& queries, int64_t& keys) {
  words >> queries;
  keys = queries;
  if (words.peek() == ':') words.ignore() >> keys;
  return words;
}

Case parse_case(const std::string& line, const std::string& where) {
  Case c;
  std::string dtype;
  std::istringstream words(line);
  words >> c.name >> c.batch;
  read_both(words, c.heads, c.kv_heads);
  read_both(words, c.q_len, c.k_len);
  words >> c.head_dim >> dtype >> std::ws;
  std::getline(words, c.pattern);
  const int64_t least = std::min({c.batch, c.heads, c.kv_heads, c.q_len, c.k_len, c.head_dim});
  KEYHOLE_CHECK(
      !c.pattern.empty() && least > 0, where, " is \"", line,
      "\"; expected name, batch, heads[:kv_heads], len[:k_len], head_dim, dtype, pattern");
  c.dtype = dtype_named(dtype);
  return c;
}

// Those whose name matches one of the comma-separated `only`; * stands for anything.
std::vector<Case> read_cases(const std::string& path, const std::string& only) {
  std::ifstream file(path);
  KEYHOLE_CHECK(file.good(), "cannot read the case file \"", path, "\"");
  std::vector<Case> cases;
  int line_number = 0;
  for (std::string line; std::getline(file, line);) {
    ++line_number;
    if (line.empty() || line[0] == '#') continue;
    const Case c = parse_case(line, say(path, ", line ", line_number));
    std::istringstream wanted(only);
    for (std::string word; std::getline(wanted, word, ',');) {
      if (fnmatch(word.c_str(), c.name.c_str(), 0) != 0) continue;
      cases.push_back(c);
      break;
    }
  }
  KEYHOLE_CHECK(!cases.empty(), "no case of ", path, " is named \"", only,
                "\"; names are its first column, and * stands for anything");
  return cases;
}

// Normal numbers in the dtype, one megabyte of them repeated: the values matter to the power drawn,
// not their period.
GpuMemory random_memory(int64_t elements, DType dtype, uint64_t seed) {
  const int64_t bytes = elements * bytes_of(dtype);
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<unsigned char> piece(size_t(std::min<int64_t>(bytes, int64_t{1} << 20)));
  for (size_t i = 0; i + size_t(bytes_of(dtype)) <= piece.size(); i += size_t(bytes_of(dtype))) {
    const float x = normal(engine);
    const uint16_t half = dtype == DType::bf16 ? to_bf16(x).bits : to_f16(x).bits;
    if (dtype == DType::f32) {
      std::memcpy(&piece[i], &x, 4);
    } else {
      std::memcpy(&piece[i], &half, 2);
    }
  }
  GpuMemory memory(kGpu, bytes);
  const auto piece_bytes = int64_t(piece.size());
  memory.copy_from_host(piece.data(), piece_bytes);
  auto* const begin = static_cast<char*>(memory.data());
  for (int64_t at = piece_bytes; at < bytes; at += piece_bytes) {
    check_cuda(cudaMemcpyAsync(begin + at, begin, size_t(std::min(bytes - at, piece_bytes)),
                               cudaMemcpyDeviceToDevice),
               "filling a tensor");
  }
  return memory;
}

struct Tensor {
  GpuMemory memory;
  TensorView view;
  Tensor(std::initializer_list<int64_t> shape, DType dtype, uint64_t seed)
      : view(nullptr, dtype, shape) {
    memory = random_memory(view.num_elements(), dtype, seed);
    view.data = memory.data();
    view.device = kGpu;
  }
  // All bits of the first number are ones, which is NaN in every dtype.
  void begin_with_nan() {
    check_cuda(cudaMemset(view.data, 0xff, size_t(bytes_of(view.dtype))), "filling a tensor");
  }
};

// The lists of a plan of key lists as an index tensor that all heads of all batch entries share.
struct Indices {
  GpuMemory memory;
  IndexView view;

  Indices(const Case& c, const Plan& plan, bool is_wide) {
    const std::vector<KeyLists>& parts = plan.state().gathers();
    KEYHOLE_CHECK(parts.size() == 1 && plan.explain().parts.size() == 1, c.name, " (", c.pattern,
                  ") is not a plan of key lists alone; --indices is for those");
    const KeyLists& lists = parts[0];
    const int64_t count = *std::ranges::max_element(lists.list_count);
    std::vector<int64_t> keys(size_t(c.q_len * count), -1);
    for (int64_t query = 0; query < c.q_len; ++query) {
      std::copy_n(lists.keys.begin() + lists.list_begin[size_t(query)],
                  lists.list_count[size_t(query)], keys.begin() + query * count);
    }
    const std::vector<int32_t> narrow_keys(keys.begin(), keys.end());
    view = is_wide ? IndexView(keys.data(), {1, 1, c.q_len, count})
                   : IndexView(narrow_keys.data(), {1, 1, c.q_len, count});
    memory = GpuMemory(kGpu, int64_t(keys.size()) * (is_wide ? 8 : 4));
    memory.copy_from_host(view.data, memory.bytes());
    synchronize(kGpu);
    view.data = memory.data();
    view.device = kGpu;
    view.shape[0] = c.batch;
    view.strides[0] = 0;
  }
};

// A case on the GPU: its plan, its tensors, and the calls to time.
class Subject {
 public:
  Subject(const Case& c, const Options& options)
      : plan_(plan(case_pattern(c.pattern, c.q_len, c.k_len), c.q_len, c.k_len)),
        q_({c.batch, c.heads, c.q_len, c.head_dim}, c.dtype, 1),
        k_({c.batch, c.kv_heads, c.k_len, c.head_dim}, c.dtype, 2),
        v_({c.batch, c.kv_heads, c.k_len, c.head_dim}, c.dtype, 3),
        out_({c.batch, c.heads, c.q_len, c.head_dim}, c.dtype, 4),
        lse_({c.batch, c.heads, c.q_len}, DType::f32, 5),
        dout_({c.batch, c.heads, c.q_len, c.head_dim}, c.dtype, 6),
        dq_({c.batch, c.heads, c.q_len, c.head_dim}, c.dtype, 7),
        dk_({c.batch, c.kv_heads, c.k_len, c.head_dim}, c.dtype, 8),
        dv_({c.batch, c.kv_heads, c.k_len, c.head_dim}, c.dtype, 9) {
    options_.backend = options.backend;
    if (c.has_nan()) v_.begin_with_nan();
    if (!options.indices.empty()) indices_.emplace(c, plan_, options.indices == "int64");
  }

  PlanReport report() const { return plan_.explain(); }  // of one head
  std::string kernel() const { return kernel_for_forward(q_.view, v_.view, plan_, options_); }

  // What a call needs on the GPU: the tensors it reads and writes, and its workspace. The tensors
  // of the backward pass are there from the start, but a forward pass alone has no use for them.
  int64_t forward_bytes() const {
    return 2 * (q_.memory.bytes() + k_.memory.bytes()) + lse_.memory.bytes() + workspace_.bytes();
  }
  int64_t backward_bytes() const {
    return 4 * (q_.memory.bytes() + k_.memory.bytes()) + lse_.memory.bytes() + workspace_.bytes();
  }

  void prepare_forward() {
    bring_workspace(forward_workspace_bytes(q_.view, k_.view, v_.view, lists(), out_.view,
                                            lse_.view, options_));
  }
  void prepare_backward(bool is_deterministic) {
    options_.deterministic = is_deterministic;
    bring_workspace(backward_workspace_bytes(dout_.view, q_.view, k_.view, v_.view, out_.view,
                                             lse_.view, lists(), gradients(), options_));
  }
  void forward() const {
    attention_forward(q_.view, k_.view, v_.view, lists(), out_.view, lse_.view, options_);
  }
  void backward() const {
    attention_backward(dout_.view, q_.view, k_.view, v_.view, out_.view, lse_.view, lists(),
                       gradients(), options_);
  }

 private:
  Lists lists() const { return indices_ ? Lists(indices_->view) : Lists(plan_); }
  Gradients gradients() const { return {dq_.view, dk_.view, dv_.view, {}}; }
  void bring_workspace(int64_t bytes) {
    workspace_ = GpuMemory();
    if (bytes > 0) workspace_ = GpuMemory(kGpu, bytes);
    options_.workspace = {workspace_.data(), workspace_.bytes()};
  }

  Plan plan_;
  Tensor q_, k_, v_, out_, lse_, dout_, dq_, dk_, dv_;
  std::optional<Indices> indices_;
  GpuMemory workspace_;
  AttentionOptions options_;
};

void hold_the_stream(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

// The calls are queued without waiting, so that the GPU finds the next one when it is done with
// one. Short calls are queued behind a pause, or the time to queue them would be measured. Both as
// in bench/peers/timing.py.
double median_ms(auto call) {
  using bench::Event;
  for (int i = 0; i < 3; ++i) call();
  const Event before, after;
  before.record();
  call();
  after.record();
  const float first_ms = after.ms_since(before);
  const int runs = first_ms > 100 ? 3 : 15;
  if (first_ms < 2) check_cuda(cudaLaunchHostFunc(nullptr, hold_the_stream, nullptr), "timing");
  std::vector<Event> marks(size_t(runs) + 1);
  marks[0].record();
  for (int i = 1; i <= runs; ++i) {
    call();
    marks[size_t(i)].record();
  }
  std::vector<float> times;
  for (int i = 1; i <= runs; ++i) times.push_back(marks[size_t(i)].ms_since(marks[size_t(i) - 1]));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void show(const std::string& text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

// A plan of key lists reads a row of k and one of v for every key, at once for all query heads that
// share them: that rate decides, not the products. 0: the plan has tiles.
double gathered_bytes(const Case& c, const PlanReport& report) {
  const bool is_gathered =
      !report.parts.empty() && std::ranges::all_of(report.parts, [](const PartReport& part) {
        return part.form == "gather";
      });
  const double row_bytes = double(c.head_dim * bytes_of(c.dtype));
  return is_gathered ? double(report.pairs) * double(c.batch * c.kv_heads) * 2 * row_bytes : 0;
}

nlohmann::json time_case(const Case& c, const Options& options) {
  Subject subject(c, options);
  const PlanReport report = subject.report();
  const double flops = 4.0 * double(report.pairs) * double(c.batch * c.heads * c.head_dim);
  const double gathered = gathered_bytes(c, report);
  const auto shown = [&](const char* what, double ms, double work) {
    show(fmt::format("  {} {:9.3f} ms {:6.1f} TF", what, ms, work / ms * 1e-9));
    if (gathered > 0) show(fmt::format(" {:5.2f} TB/s gathered", gathered / ms * 1e-9));
  };
  show(fmt::format("{:36} {}x{}x{:<6} d{:<3} {:4} {:38}", c.title(), c.batch, c.heads, c.q_len,
                   c.head_dim, to_string(c.dtype), subject.kernel()));
  nlohmann::json record = {
      {"case", c.name}, {"who", "keyhole"}, {"kernel", subject.kernel()}, {"pairs", report.pairs}};
  if (gathered > 0) record["gathered_bytes"] = gathered;
  if (!options.indices.empty()) record["indices"] = options.indices;
  subject.prepare_forward();
  record["forward_ms"] = median_ms([&] { subject.forward(); });
  record["forward_bytes"] = subject.forward_bytes();
  shown("fwd", record["forward_ms"], flops);
  for (const bool is_deterministic : {false, true}) {
    const std::string name = is_deterministic ? "deterministic" : "backward";
    subject.prepare_backward(is_deterministic);
    record[name + "_ms"] = median_ms([&] { subject.backward(); });
    record[name + "_bytes"] = subject.backward_bytes();
    shown(is_deterministic ? "det" : "bwd", record[name + "_ms"], 2.5 * flops);
  }
  show("\n");
  return record;
}

// One call between the marks, after one outside them that uploads the plan.
void profile_case(const Case& c, const Options& options) {
  Subject subject(c, options);
  subject.prepare_forward();
  subject.forward();
  const bool is_forward = options.profile == "forward";
  if (!is_forward) {
    subject.prepare_backward(options.profile == "deterministic");
    subject.backward();
  }
  synchronize(kGpu);
  check_cuda(cudaProfilerStart(), "profiling");
  is_forward ? subject.forward() : subject.backward();
  synchronize(kGpu);
  check_cuda(cudaProfilerStop(), "profiling");
}

int run(const Options& options) {
  const std::vector<Case> cases = read_cases(options.cases, options.only);
  if (gpus().empty()) {
    fmt::print("keyhole_gpu_kernels: nothing was timed: {}\n", why_no_gpu());
    return 0;
  }
  fmt::print("{}\n", gpu(kGpu).name);
  std::ofstream records;
  if (!options.json.empty()) {
    records.open(options.json);
    KEYHOLE_CHECK(records.good(), "cannot write \"", options.json, "\"");
  }
  int status = 0;
  for (const Case& c : cases) {
    nlohmann::json record;
    try {
      if (options.profile.empty()) {
        record = time_case(c, options);
      } else {
        profile_case(c, options);
      }
    } catch (const Error& error) {
      status = 1;
      show(fmt::format("\n{}: {}\n", c.name, error.what()));
      record = {{"case", c.name}, {"who", "keyhole"}, {"why_not", error.what()}};
    }
    if (records.is_open() && !record.is_null()) records << record.dump() << std::endl;
  }
  return status;
}

}  // namespace
}  // namespace keyhole

int main(int count, char** words) {
  keyhole::Options options;
  CLI::App app("Times the GPU kernels, forward and backward.", "keyhole_gpu_kernels");
  app.add_option("cases", options.cases, "case file, such as bench/cases/gpu_kernels.txt")
      ->required();
  app.add_option("--only", options.only, "names of cases, comma-separated; * stands for anything");
  app.add_option("--backend", options.backend, "auto, simple, sm80 or sm90");
  app.add_option("--indices", options.indices,
                 "give the lists of a plan of key lists as an index tensor: int32 or int64")
      ->check(CLI::IsMember({"int32", "int64"}));
  app.add_option("--json", options.json, "write a record a case, as JSON lines");
  app.add_option("--profile", options.profile,
                 "one call a case between the marks of a profiler, not timed")
      ->check(CLI::IsMember({"forward", "backward", "deterministic"}));
  try {
    app.parse(count, words);
    return keyhole::run(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
}
