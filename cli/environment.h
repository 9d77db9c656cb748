// cli/environment.h
// The environment variables of keyhole, each of them also an option. A value that is not understood
// is an error that names the variable; it is never ignored.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace CLI {
class App;
}

namespace keyhole::cli {

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
    if (logs) write_log(fmt::format(format, std::forward<T>(parts)...));
  }

 private:
  static void write_log(const std::string& line);
};

}  // namespace keyhole::cli
