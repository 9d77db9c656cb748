// cli/options.cpp
// From what the user typed, or set in the environment, to a shape, a pattern, a device, ...
#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/check.h"
#include "pattern/did_you_mean.h"
#include "pattern/smallest_shape.h"
#include "runtime/gpu.h"
#include "runtime/list_facts.h"
#include "runtime/registry.h"

namespace keyhole::cli {
namespace {

// The number, and whether the whole text is one that fits.
std::pair<int64_t, std::errc> whole_number(std::string_view text) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  return {value, failure == std::errc{} && stop != end ? std::errc::invalid_argument : failure};
}

int64_t whole_number_of(const std::string& name, const std::string& text) {
  const auto [value, failure] = whole_number(text);
  KEYHOLE_CHECK(failure != std::errc::result_out_of_range, name, ": ", text,
                " does not fit 64 bits");
  KEYHOLE_CHECK(failure == std::errc{}, name, ": \"", text, "\" is not a whole number");
  return value;
}

double number_of(const std::string& name, const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  KEYHOLE_CHECK(failure == std::errc{} && stop == end, name, ": \"", text,
                "\" is not a number, or not one that fits 64 bits");
  return value;
}

// The dtype of that name among those accepted.
DType dtype_among(const std::vector<DType>& accepted, const std::string& text) {
  std::vector<std::string> names;
  for (const DType dtype : accepted) {
    if (text == to_string(dtype)) return dtype;
    names.push_back(to_string(dtype));
  }
  throw Error(ErrorKind::usage,
              fmt::format("unknown dtype \"{}\"; accepted are {} and {}", text,
                          fmt::join(names.begin(), names.end() - 1, ", "), names.back()));
}

Device best_device(std::optional<DType> dtype) {
  const auto table = kernel_table();
  for (size_t i = 0; i < gpus().size(); ++i) {
    const bool has_kernels = std::ranges::any_of(table, [&](const KernelEntry& kernel) {
      return kernel.device == Device::Kind::cuda && (!dtype || kernel.dtype == *dtype) &&
             kernel.min_compute_capability <= gpus()[i].compute_capability;
    });
    if (has_kernels) return {Device::Kind::cuda, int32_t(i)};
  }
  return {};
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool switch_of(const char* name) {
  const std::string value = variable(name);
  KEYHOLE_CHECK(value.empty() || value == "0" || value == "1", "the environment variable ", name,
                " is \"", value, "\"; accepted are 0 and 1");
  return value == "1";
}

void check_backend(const std::string& backend, const char* source) {
  std::vector<std::string> accepted = backends_of(kernel_table());
  accepted.insert(accepted.begin(), "auto");
  const std::string list = fmt::format("{}", fmt::join(accepted, ", "));
  KEYHOLE_CHECK(backend == "reference" || std::ranges::count(accepted, backend), source, " is \"",
                backend, "\"; accepted are ", list, " and reference");
}

}  // namespace

void add(CLI::App& app, const std::vector<Option>& options, const std::string& group) {
  for (const Option& option : options) {
    const std::string words = option.words, name = words.substr(0, words.find(' '));
    const std::string type = name.size() < words.size() ? words.substr(name.size() + 1) : "";
    const auto add_one = [&](auto* value) {
      using Value = std::remove_pointer_t<decltype(value)>;
      if constexpr (std::is_same_v<Value, bool>) {
        app.add_flag(name, *value, option.help);
      } else if constexpr (std::is_same_v<Value, int64_t> ||
                           std::is_same_v<Value, std::optional<int64_t>>) {
        const auto read = [=](const std::string& text) { *value = whole_number_of(name, text); };
        app.add_option_function<std::string>(name, read, option.help)->type_name(type);
      } else if constexpr (std::is_same_v<Value, double> ||
                           std::is_same_v<Value, std::optional<double>>) {
        const auto read = [=](const std::string& text) { *value = number_of(name, text); };
        app.add_option_function<std::string>(name, read, option.help)->type_name(type);
      } else {
        app.add_option(name, *value, option.help)->type_name(type);
      }
    };
    std::visit(add_one, option.value);
    if (!group.empty()) app.get_option(name)->group(group);
  }
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const std::vector<std::string_view> words(candidates.begin(), candidates.end());
  return std::string(did_you_mean(word, words));
}

std::string nearest_or_all(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string meant = nearest(word, candidates);
  return meant.empty() ? fmt::format("there are {}", fmt::join(candidates, ", "))
                       : say("did you mean \"", meant, "\"?");
}

void check_range(const std::string& name, int64_t value, int64_t least, int64_t most) {
  KEYHOLE_CHECK(value >= least && value <= most, name, " is ", value, "; accepted are ", least,
                " to ", most);
}

std::optional<int64_t> integer_from(std::string_view text) {
  const auto [value, failure] = whole_number(text);
  return failure == std::errc{} ? std::optional(value) : std::nullopt;
}

Pattern pattern_from(std::string_view verb, const std::string& text) {
  KEYHOLE_CHECK(
      !text.empty(), verb,
      " needs a pattern, such as \"causal & window(256)\"; `keyhole info --patterns` lists them");
  return parse(text, /*allow_files=*/true);
}

DType dtype_from(const std::string& text) {
  return dtype_among({DType::f16, DType::bf16, DType::f32, DType::f64}, text);
}

DType index_dtype_from(const std::string& text) {
  return dtype_among({DType::e4m3, DType::f16, DType::bf16, DType::f32, DType::f64}, text);
}

TileShape tile_from(const std::string& text) {
  if (text.empty() || text == "auto") return {};
  const size_t x = std::min(text.find('x'), text.size() - 1);
  const int64_t q = integer_from(text.substr(0, x)).value_or(0);
  const int64_t k = integer_from(text.substr(x + 1)).value_or(0);
  KEYHOLE_CHECK(q > 0 && k > 0 && q <= 4096 && k <= 4096, "--tile: \"", text,
                "\" is not a tile; write queries x keys, each 1 to 4096, such as 128x128");
  return {int32_t(q), int32_t(k)};
}

void ShapeOptions::add_to(CLI::App& app) {
  add(app, {{"--len N", &len, "queries and keys"},
            {"--q-len N", &q_len, "queries, where they differ from the keys"},
            {"--k-len N", &k_len, "keys"},
            {"--offset N", &offset, "position of query 0; default: k-len - q-len"},
            {"--heads N", &heads, "query heads; default: what the pattern needs"},
            {"--batch N", &batch, "batch entries; default: what the pattern needs"}});
}

Shape ShapeOptions::shape(std::string_view verb, const Pattern& pattern, int64_t longest) const {
  KEYHOLE_CHECK(len || (q_len && k_len), verb,
                is_given() ? ": --q-len and --k-len go together" : " needs a length",
                "; pass --len N, or --q-len N and --k-len N");
  KEYHOLE_CHECK(!(len && q_len && k_len), verb,
                ": --len, --q-len and --k-len were all given; "
                "--len N already stands for both, so leave one out");
  Shape shape = smallest_shape(pattern, 0, 0);
  shape.batch = batch.value_or(shape.batch), shape.heads = heads.value_or(shape.heads);
  shape.offset = offset;
  shape.q_len = q_len.value_or(len.value_or(0)), shape.k_len = k_len.value_or(len.value_or(0));
  constexpr int64_t kMostHeads = 1 << 16;
  const std::string to = say(verb, ": ");
  check_range(to + (q_len ? "--q-len" : "--len"), shape.q_len, 0, longest);
  check_range(to + (k_len ? "--k-len" : "--len"), shape.k_len, 0, longest);
  check_range(to + "--heads", shape.heads, 1, kMostHeads);
  check_range(to + "--batch", shape.batch, 1, kMostHeads);
  if (offset) check_range(to + "--offset", *offset, -kMostTokens, kMostTokens);
  return shape;
}

void NormalizerOption::add_to(CLI::App& app, double otherwise) {
  add(app, {{"--alpha A", &alpha,
             fmt::format("1: softmax; up to 2: alpha-entmax, where most keys get a weight of 0; "
                         "default: {}",
                         otherwise)},
            {"--top-k K", &top_k, "only the keys with the K largest scores; default: all"}});
}

Normalizer NormalizerOption::settle(const char* verb, double otherwise) const {
  const Normalizer given{.alpha = alpha.value_or(otherwise), .top_k = top_k.value_or(0)};
  KEYHOLE_CHECK(given.alpha >= 1 && given.alpha <= 2, verb, ": --alpha is ", given.alpha,
                "; accepted are numbers from 1 (softmax) to 2 (sparsemax), such as 1.5");
  KEYHOLE_CHECK(!top_k || *top_k >= 1, verb, ": --top-k is ", given.top_k,
                "; it must be at least 1; leave it out for all keys");
  return given;
}

void DeviceOption::add_to(CLI::App& app, const std::string& automatic) {
  add(app, {{"--device DEVICE", &text, "cpu, gpu or gpu:N; default: auto, " + automatic}});
}

Device DeviceOption::settle(std::string_view verb, std::optional<DType> dtype) const {
  if (text == "cpu") return {};
  if (is_auto()) return best_device(dtype);
  std::optional<int64_t> ordinal;
  if (text.starts_with("gpu:")) ordinal = integer_from(text.substr(4));
  if (text == "gpu") ordinal = 0;
  KEYHOLE_CHECK(ordinal && *ordinal >= 0 && *ordinal <= INT32_MAX, verb, ": --device is \"", text,
                "\"; accepted are auto, cpu, gpu and gpu:N, such as gpu:0");
  KEYHOLE_CHECK(!gpus().empty(), verb, ": --device is ", text,
                ", but there is no GPU to use: ", why_no_gpu(),
                has_cuda_kernels() ? "" : "; configure Keyhole with -DKEYHOLE_CUDA=ON",
                "; --device cpu runs without one");
  const int count = int(gpus().size());
  KEYHOLE_CHECK(*ordinal < count, verb, ": --device is ", text, ", but this machine has ",
                count == 1 ? "one GPU, gpu:0" : say(count, " GPUs, gpu:0 to gpu:", count - 1));
  return {Device::Kind::cuda, int32_t(*ordinal)};
}

std::string device_text(const Device& device) {
  return is_gpu(device) ? say("gpu:", device.ordinal) : "cpu";
}

Choice choice_for(Request request, const Lists& lists) {
  const FactsOf facts(lists);
  request.lists = &facts.get();
  return choose_call(kernel_table(), request);
}

void Environment::add_to(CLI::App& app, bool runs_kernels) {
  if (runs_kernels) {
    backend.clear();
    add(app, {{"--backend NAME", &backend,
               "auto, a backend of keyhole info, or reference; default: KEYHOLE_BACKEND, else "
               "auto"}});
  }
  add(app, {{"--verify", &verifies, "verify the plan once more; also KEYHOLE_VERIFY=1"},
            {"--log", &logs, "log kernels and plans to stderr; also KEYHOLE_LOG=1"}});
}

void Environment::settle() {
  verifies |= switch_of("KEYHOLE_VERIFY");
  logs |= switch_of("KEYHOLE_LOG");
  if (!backend.empty()) return check_backend(backend, "--backend");
  backend = variable("KEYHOLE_BACKEND");
  if (backend.empty()) backend = "auto";
  check_backend(backend, "the environment variable KEYHOLE_BACKEND");
}

}  // namespace keyhole::cli
