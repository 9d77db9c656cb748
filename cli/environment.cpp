// cli/environment.cpp
#include "cli/environment.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/check.h"
#include "runtime/registry.h"

namespace keyhole::cli {
namespace {

std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool switch_of(const char* name) {
  const std::string value = value_of(name);
  KEYHOLE_CHECK(value.empty() || value == "0" || value == "1", "the environment variable ", name,
                " is \"", value, "\"; accepted are 0 and 1");
  return value == "1";
}

void check_backend(const std::string& backend, const char* source) {
  std::vector<std::string> accepted = backends_of(kernel_table());
  std::string list = "auto";
  for (const std::string& name : accepted) list += ", " + name;
  accepted.insert(accepted.end(), {"auto", "reference"});
  KEYHOLE_CHECK(std::find(accepted.begin(), accepted.end(), backend) != accepted.end(), source,
                " is \"", backend, "\"; accepted are ", list, " and reference");
}

}  // namespace

void Environment::add_to(CLI::App& app, bool runs_kernels) {
  if (runs_kernels) {
    backend.clear();
    app.add_option("--backend", backend,
                   "auto, a backend of keyhole info, or reference; default: KEYHOLE_BACKEND, else "
                   "auto")
        ->type_name("NAME");
  }
  app.add_flag("--verify", verifies, "verify the plan once more; also KEYHOLE_VERIFY=1");
  app.add_flag("--log", logs, "log kernels and plans to stderr; also KEYHOLE_LOG=1");
}

void Environment::settle() {
  verifies |= switch_of("KEYHOLE_VERIFY");
  logs |= switch_of("KEYHOLE_LOG");
  if (!backend.empty()) return check_backend(backend, "--backend");
  backend = value_of("KEYHOLE_BACKEND");
  if (backend.empty()) backend = "auto";
  check_backend(backend, "the environment variable KEYHOLE_BACKEND");
}

void Environment::write_log(const std::string& line) { fmt::print(stderr, "keyhole: {}\n", line); }

}  // namespace keyhole::cli
