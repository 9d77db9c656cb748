// cli/options.h
// How verbs declare their options, as rows of a table; and the options that several of them share.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cli/common.h"
#include "keyhole/lists.h"
#include "runtime/dispatch.h"

namespace CLI {
class App;
}

namespace keyhole::cli {

// One option: "--save FILE" is its name and what help calls its value. A bool is a flag.
// Numbers refuse everything else, numbers that do not fit included (CLI11 would take the nearest
// that does). A group is a section of the help.
struct Option {
  const char* words;
  std::variant<bool*, int64_t*, std::optional<int64_t>*, double*, std::optional<double>*,
               std::string*>
      value;
  std::string help;
};
void add(CLI::App& app, const std::vector<Option>& options, const std::string& group = "");
inline Option json_option(Context& context) {
  return {"--json", &context.json, "print JSON instead of text"};
}

// The candidate that a misspelt word most likely meant; empty when none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);
// The same as a question, or all candidates: the second half of an error.
std::string nearest_or_all(std::string_view word, const std::vector<std::string>& candidates);

// Throws Error(usage) for a value out of range. name: "plan: --head-dim".
void check_range(const std::string& name, int64_t value, int64_t least, int64_t most);
std::optional<int64_t> integer_from(std::string_view text);  // nothing where it is none
// Throws Error(usage) with an example when the text is empty. Reads files for mask(file=...).
Pattern pattern_from(std::string_view verb, const std::string& text);
DType dtype_from(const std::string& text);
DType index_dtype_from(const std::string& text);  // or e4m3, which only an indexer may be
TileShape tile_from(const std::string& text);     // "128x128", or "auto": {0, 0}

struct ShapeOptions {
  std::optional<int64_t> len, q_len, k_len, offset, heads, batch;

  void add_to(CLI::App& app);
  bool is_given() const { return len || q_len || k_len; }
  // Heads and batch entries that were not given are as many as the pattern needs. Throws
  // Error(usage) when lengths are missing or absurd. Products of lengths up to kMostTokens fit 64
  // bits with room to spare.
  static constexpr int64_t kMostTokens = int64_t{1} << 40;
  Shape shape(std::string_view verb, const Pattern& pattern, int64_t longest = kMostTokens) const;
};

// --alpha and --top-k: how the scores of a query become its weights.
struct NormalizerOption {
  std::optional<double> alpha;
  std::optional<int64_t> top_k;

  // otherwise: the alpha of a call that does not say.
  void add_to(CLI::App& app, double otherwise = 1);
  // Throws Error(usage), with the name of the verb, for values out of range.
  Normalizer settle(const char* verb, double otherwise = 1) const;
};

// Where tensors lie and what computes.
struct DeviceOption {
  std::string text = "auto";

  // `automatic` says what happens when the option is not given.
  void add_to(CLI::App& app, const std::string& automatic);
  bool is_auto() const { return text == "auto"; }
  // The device asked for, or Error(usage) with the reason why it is not to be had. auto: the first
  // GPU when it has kernels (for this dtype), else the CPU.
  Device settle(std::string_view verb, std::optional<DType> dtype = {}) const;
};
inline bool is_gpu(const Device& device) { return device.kind == Device::Kind::cuda; }
std::string device_text(const Device& device);  // "cpu", "gpu:0"

// What runs for a request on these lists: kernel, tile, schedule.
Choice choice_for(Request request, const Lists& lists);

// The environment variables of keyhole, each of them also an option. A value that is not understood
// is an error that names the variable; it is never ignored.
struct Variable {
  const char* name;
  const char* meaning;
};
inline constexpr Variable kVariables[] = {
    {"KEYHOLE_BACKEND", "auto, cpu, ... or reference: which kernels run; like --backend"},
    {"KEYHOLE_VERIFY", "1: plans are verified once more before they are used; like --verify"},
    {"KEYHOLE_LOG", "1: log kernels and plans to stderr; like --log"},
};

struct Environment {
  std::string backend = "auto";
  bool verifies = false, logs = false;

  // Adds --verify and --log, and --backend where kernels run.
  void add_to(CLI::App& app, bool runs_kernels);
  // After parsing: the variables stand in for options that were not given.
  void settle();
  template <class... T>
  void log(fmt::format_string<T...> format, T&&... parts) const {
    if (logs) fmt::print(stderr, "keyhole: {}\n", fmt::format(format, std::forward<T>(parts)...));
  }
};

}  // namespace keyhole::cli
