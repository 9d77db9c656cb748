// cli/run.cpp
// keyhole run: q, k and v from .npy files, attention over them, out and lse as .npy files.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "base/check.h"
#include "base/dtype.h"
#include "base/files.h"
#include "base/npy.h"
#include "cli/bench/timing.h"  // now_s
#include "cli/command_line.h"
#include "cli/files.h"
#include "cli/options.h"
#include "judge/device_copies.h"
#include "reference/attention.h"
#include "runtime/gpu.h"
#include "runtime/registry.h"

namespace keyhole::cli {
namespace {

struct RunOptions {
  std::string q, k, v, sink, out, lse;
  std::string pattern, plan;
  std::string layout = "bhsd", dtype;
  Environment environment;
  DeviceOption device;
  NormalizerOption normalizer;
  std::optional<double> scale;
  std::optional<int64_t> offset;
  double softcap = 0;
  int64_t threads = 0;
};

// True when a result goes to standard output.
bool check_options(const RunOptions& options, const Context& context) {
  for (const auto& [name, value] : {std::pair{"--q", &options.q},
                                    {"--k", &options.k},
                                    {"--v", &options.v},
                                    {"--out", &options.out}}) {
    KEYHOLE_CHECK(!value->empty(), "run needs ", name, " FILE; see keyhole run --help");
  }
  KEYHOLE_CHECK(!options.pattern.empty() || !options.plan.empty(),
                "run needs --pattern PATTERN or --plan FILE");
  KEYHOLE_CHECK(options.pattern.empty() || options.plan.empty(),
                "run: --pattern and --plan were both given; a plan file already has its pattern, "
                "so leave one out");
  KEYHOLE_CHECK(!(options.offset && !options.plan.empty()),
                "run: --offset and --plan were both given; a plan file already has its offset, so "
                "leave one out");
  KEYHOLE_CHECK(options.layout == "bhsd" || options.layout == "bshd", "run: --layout is \"",
                options.layout, "\"; accepted are bhsd and bshd");
  if (!options.dtype.empty()) dtype_from(options.dtype);
  KEYHOLE_CHECK(
      options.environment.backend != "reference" || options.plan.empty(),
      "run: the reference backend evaluates the pattern for every pair and takes no plan; pass "
      "--pattern");
  KEYHOLE_CHECK(options.threads >= 0 && options.threads <= 4096, "run: --threads is ",
                options.threads, "; accepted are 0 (all) to 4096");
  return check_outputs({{"--out", options.out}, {"--lse", options.lse}},
                       {{"--q", options.q},
                        {"--k", options.k},
                        {"--v", options.v},
                        {"--sink", options.sink},
                        {"--plan", options.plan}},
                       context);
}

// The reference and the cpu backend read host memory, every other backend that of a GPU.
Device device_for(const RunOptions& options, DType dtype) {
  const std::string& backend = options.environment.backend;
  const Device device = options.device.settle("run", dtype);
  if (backend == "auto") return device;
  if (backend == "cpu" || backend == "reference") {
    KEYHOLE_CHECK(options.device.is_auto() || !is_gpu(device), "run: the backend is ", backend,
                  ", which runs on the CPU, but --device is ", options.device.text,
                  "; leave one of them out");
    return {};
  }
  KEYHOLE_CHECK(!gpus().empty(), "run: the backend is ", backend,
                ", which runs on a GPU, and there is none to use: ", why_no_gpu(),
                "; --backend cpu runs without one");
  KEYHOLE_CHECK(is_gpu(device), "run: the backend is ", backend,
                ", which runs on a GPU; pass --device gpu, or leave the backend out");
  return device;
}

double ms_since(double begin_s) { return 1e3 * (bench::now_s() - begin_s); }

// An array of two to four dimensions as [batch, heads, length, dim].
struct FileTensor {
  NpyArray array;
  TensorView view;  // into array.data
};

DType dtype_of(const NpyArray& array, const std::string& option, const std::string& wanted) {
  if (array.dtype == "<u2") {
    KEYHOLE_CHECK(
        wanted == "bf16", option,
        " holds <u2, unsigned 16-bit integers; if they are bf16 numbers, pass --dtype bf16");
    return DType::bf16;
  }
  const std::map<std::string, DType> known = {
      {"<f4", DType::f32}, {"<f8", DType::f64}, {"<f2", DType::f16}};
  const auto dtype = known.find(array.dtype);
  KEYHOLE_CHECK(dtype != known.end(), option, " holds ", array.dtype,
                "; accepted are <f4, <f8, <f2, and <u2 for bf16");
  KEYHOLE_CHECK(wanted.empty() || wanted == to_string(dtype->second), option, " holds ",
                to_string(dtype->second), " but --dtype is ", wanted,
                "; leave --dtype out, or convert the file");
  return dtype->second;
}

// Ranks 2 and 3 are rank 4 without the leading dimensions. In memory, bshd has length before heads.
TensorView view_of(const NpyArray& array, DType dtype, const std::string& option, bool is_bshd) {
  const size_t rank = array.shape.size();
  KEYHOLE_CHECK(rank >= 2 && rank <= 4, option, " has ", rank,
                " dimensions; accepted are 2 [length, dim], 3 ",
                is_bshd ? "[length, heads, dim]" : "[heads, length, dim]", " and 4 ",
                is_bshd ? "[batch, length, heads, dim]" : "[batch, heads, length, dim]");
  int64_t shape[4] = {1, 1, 1, 1};
  std::copy(array.shape.begin(), array.shape.end(), shape + (4 - rank));
  if (rank == 2 || !is_bshd)
    return TensorView(array.data.data(), dtype, {shape[0], shape[1], shape[2], shape[3]});
  const int64_t row = shape[3], token = shape[2] * row, entry = shape[1] * token;
  return TensorView(array.data.data(), dtype, {shape[0], shape[2], shape[1], shape[3]},
                    {entry, row, token, 1});
}

// `option` names the file in errors; `dtype` is what the user says it holds, or empty. With
// is_bshd, length comes before heads in the file.
FileTensor read_tensor(const std::string& path, const std::string& option, const std::string& dtype,
                       bool is_bshd) {
  FileTensor tensor;
  tensor.array = read_npy(path);
  tensor.view = view_of(tensor.array, dtype_of(tensor.array, option, dtype), option, is_bshd);
  return tensor;
}

// One logit per head, as f32 whatever float the file holds.
std::vector<float> read_sink(const std::string& path) {
  const NpyArray array = read_npy(path);
  KEYHOLE_CHECK(array.shape.size() == 1, "--sink has ", array.shape.size(),
                " dimensions; expected 1: [heads]");
  KEYHOLE_CHECK(array.dtype == "<f4" || array.dtype == "<f8", "--sink holds ", array.dtype,
                "; accepted are <f4 and <f8");
  std::vector<float> sink(size_t(array.shape[0]));
  for (size_t i = 0; i < sink.size(); ++i) {
    if (array.dtype == "<f4") {
      std::memcpy(&sink[i], array.data.data() + 4 * i, 4);
    } else {
      double wide;
      std::memcpy(&wide, array.data.data() + 8 * i, 8);
      sink[i] = float(wide);
    }
  }
  return sink;
}

// The same rank, order and dtype as the file of q, with another last dimension; not yet filled.
FileTensor like(const FileTensor& q, int64_t last, bool is_bshd) {
  FileTensor made;
  made.array.dtype = q.array.dtype;
  made.array.shape = q.array.shape;
  made.array.shape.back() = last;
  int64_t count = 1;
  for (const int64_t size : made.array.shape) count *= size;
  made.array.data.resize(size_t(count * bytes_of(q.view.dtype)));
  made.view = view_of(made.array, q.view.dtype, "--out", is_bshd);
  return made;
}

// Values in logical order, rounded to the tensor's dtype; of lse too, which has no dim.
void store(const std::vector<double>& values, const TensorView& to) {
  with_storage(to.dtype, [&](auto storage) {
    using Storage = decltype(storage);
    auto value = values.begin();
    const auto& [batch, heads, length, dim] = to.shape;
    for (int64_t row = 0; row < batch * heads * length; ++row) {
      const int64_t entry = row / length / heads, head = row / length % heads;
      auto* at = static_cast<Storage*>(to.data) + entry * to.strides[0] + head * to.strides[1] +
                 row % length * to.strides[2];
      for (int64_t x = 0; x < (to.rank == 3 ? 1 : dim); ++x) {
        *at++ = Traits<Storage>::from(typename Traits<Storage>::Compute(*value++));
      }
    }
  });
}

// Everything about one call that the report needs afterwards.
struct Call {
  FileTensor q, k, v, out, lse;
  std::string kernel;
  Device device;
  double plan_ms = 0, run_ms = 0;
};

Call read_inputs(const RunOptions& options) {
  const bool is_bshd = options.layout == "bshd";
  Call call;
  call.q = read_tensor(options.q, "--q", options.dtype, is_bshd);
  call.k = read_tensor(options.k, "--k", options.dtype, is_bshd);
  call.v = read_tensor(options.v, "--v", options.dtype, is_bshd);
  call.out = like(call.q, call.v.view.shape[3], is_bshd);
  // lse has no order of its own: [batch, heads, length], without the dimensions q does not have.
  const bool is_wide = call.q.view.dtype == DType::f64;
  const auto& [batch, heads, length, dim] = call.q.view.shape;
  const std::vector<int64_t> lse_shape = {batch, heads, length};
  call.lse.array.dtype = is_wide ? "<f8" : "<f4";
  call.lse.array.shape.assign(lse_shape.end() - ptrdiff_t(call.q.array.shape.size() - 1),
                              lse_shape.end());
  call.lse.array.data.resize(size_t(batch * heads * length * (is_wide ? 8 : 4)));
  call.lse.view = TensorView(call.lse.array.data.data(), is_wide ? DType::f64 : DType::f32,
                             {batch, heads, length});
  return call;
}

// The faster kernels that do not take this call, and why.
void log_passed_over(const Environment& environment, const AttentionOptions& attention,
                     const TensorView& q, const TensorView& k, const TensorView& v,
                     const TensorView& out) {
  Request request = request_for(q.device, Operation::forward, q.dtype, q.shape[3], v.shape[3]);
  request.backend = attention.backend;
  request.normalizer = attention.normalizer;
  request.has_softcap = attention.softcap > 0;
  request.is_aligned = rows_are_aligned({&q, &k, &v, &out});
  request.why_no_tma = why_no_tma({&q, &k, &v});
  for (const std::string& kernel : passed_over(kernel_table(), request)) {
    environment.log("not {}", kernel);
  }
}

void report(const Plan& plan, const RunOptions& options, const Context& context, const Call& call) {
  if (context.json) {
    Json json = {{"pattern", plan.pattern_text()},
                 {"kernel", call.kernel},
                 {"device", device_text(call.device)},
                 {"dtype", to_string(call.q.view.dtype)},
                 {"out", options.out},
                 {"out_shape", call.out.array.shape},
                 {"plan_ms", call.plan_ms},
                 {"run_ms", call.run_ms}};
    if (!options.lse.empty()) json["lse"] = options.lse, json["lse_shape"] = call.lse.array.shape;
    return print_json(json);
  }
  print("pattern   {}\nkernel    {}\ntime      {:.2f} ms, and {:.2f} ms for the plan\n",
        plan.pattern_text(), call.kernel, call.run_ms, call.plan_ms);
  print("out       {}, {}\n", options.out, to_string(call.out.view));
  if (!options.lse.empty()) print("lse       {}, {}\n", options.lse, to_string(call.lse.view));
}

int run(const RunOptions& options, const Context& context) {
  const bool is_to_stdout = check_options(options, context);
  Call call = read_inputs(options);
  call.device = device_for(options, call.q.view.dtype);
  AttentionOptions attention;
  attention.normalizer = options.normalizer.settle("run");
  attention.scale = options.scale, attention.softcap = options.softcap;
  attention.backend = options.environment.backend, attention.threads = int(options.threads);
  std::vector<float> sink;
  if (!options.sink.empty()) {
    sink = read_sink(options.sink);
    attention.sink = TensorView(sink.data(), DType::f32, {int64_t(sink.size())});
  }
  const int64_t* q_shape = call.q.view.shape;
  const Shape shape{q_shape[0], q_shape[1], q_shape[2], call.k.view.shape[2], options.offset};

  const double start = bench::now_s();
  const Plan made = options.plan.empty() ? plan(pattern_from("run", options.pattern), shape)
                                         : Plan::load(options.plan);
  if (options.environment.verifies) made.verify();
  call.plan_ms = ms_since(start);
  if (attention.backend == "reference") {
    call.kernel = "reference";
    const double begin = bench::now_s();
    const ReferenceOutput exact =
        reference_forward(pattern_from("run", options.pattern), call.q.view, call.k.view,
                          call.v.view, attention, options.offset);
    store(exact.out, call.out.view), store(exact.lse, call.lse.view);
    call.run_ms = ms_since(begin);
  } else {
    const Device& device = call.device;
    judge::DeviceCopies copies(device);
    const TensorView q = copies.input(call.q.array.data, call.q.view);
    const TensorView k = copies.input(call.k.array.data, call.k.view);
    const TensorView v = copies.input(call.v.array.data, call.v.view);
    const TensorView out = copies.output(call.out.array.data, call.out.view);
    const TensorView lse = copies.output(call.lse.array.data, call.lse.view);
    attention.sink = copies.input(std::as_bytes(std::span(sink)), attention.sink);
    if (is_gpu(device)) synchronize(device);
    const double begin = bench::now_s();
    attention_forward(q, k, v, made, out, lse, attention);
    if (is_gpu(device)) synchronize(device);
    call.run_ms = ms_since(begin);
    copies.finish();
    log_passed_over(options.environment, attention, q, k, v, out);
    call.kernel = kernel_for_forward(q, v, made, attention);
    if (is_gpu(device)) {
      call.kernel += fmt::format(" on {}, {}", device_text(device), gpu(device).name);
    }
  }
  options.environment.log("{} on {}: {:.2f} ms", call.kernel, to_string(call.q.view), call.run_ms);

  const auto write = [](const std::string& path, const NpyArray& array) {
    write_file(path, npy_file(array.dtype, array.shape, array.data));
  };
  {
    std::optional<HoldSignals> hold;  // both files or none, as far as an interrupt goes
    if (is_replaceable(options.out) && is_replaceable(options.lse)) hold.emplace();
    if (!options.lse.empty()) write(options.lse, call.lse.array);
    write(options.out, call.out.array);
  }
  if (!is_to_stdout) report(made, options, context, call);
  return kDone;
}

}  // namespace

Runner add_run(CLI::App& app, Context& context) {
  auto options = std::make_shared<RunOptions>();
  add(app, {{"--q FILE", &options->q,
             "queries: [length, dim], [heads, length, dim] or with a batch before"},
            {"--k FILE", &options->k, "keys, of as many or fewer heads"},
            {"--v FILE", &options->v, "values"},
            {"--out FILE", &options->out,
             "where the result goes, like q but with the last dimension of v; - for stdout"},
            {"--lse FILE", &options->lse,
             "where log-sum-exp of each query goes; for entmax its threshold, lambda"},
            {"--pattern PATTERN", &options->pattern, "what attends to what"},
            {"--plan FILE", &options->plan, "a plan saved by keyhole plan --save, instead"},
            {"--offset N", &options->offset, "position of query 0; default: k-len - q-len"},
            {"--scale X", &options->scale, "multiplies q . k; default: dim ** -0.5"},
            {"--softcap C", &options->softcap, "a score s becomes c tanh(s / c)"}});
  options->normalizer.add_to(app);
  add(app,
      {{"--sink FILE", &options->sink, "one more logit per head: [heads]"},
       {"--layout ORDER", &options->layout, "bhsd (heads before length, the default) or bshd"},
       {"--dtype DTYPE", &options->dtype, "bf16: the <u2 words of the files are bf16 numbers"}});
  options->device.add_to(app, "a GPU when there is one");
  options->environment.add_to(app, /*runs_kernels=*/true);
  add(app,
      {{"--threads N", &options->threads, "at most so many; default: all"}, json_option(context)});
  app.footer(
      "examples:\n"
      "  keyhole run --q q.npy --k k.npy --v v.npy --pattern \"causal & window(256)\" --out "
      "out.npy\n"
      "  keyhole run --q q.npy --k k.npy --v v.npy --plan my.plan --out out.npy --lse lse.npy\n"
      "  keyhole run --q q.npy --k k.npy --v v.npy --pattern causal --device gpu --out out.npy\n"
      "  keyhole run --q q.npy --k k.npy --v v.npy --pattern causal --alpha 1.5 --top-k 8 --out "
      "out.npy");
  return [options, &context] {
    options->environment.settle();
    return run(*options, context);
  };
}

}  // namespace keyhole::cli
