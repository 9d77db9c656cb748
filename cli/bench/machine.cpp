// cli/bench/machine.cpp
// Takes nothing, gives a description of this machine and of the build.
#include "cli/bench/machine.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/parallel.h"
#include "cli/bench/commit.h"  // made by cli/CMakeLists.txt in each build
#include "kernels/cpu/entries.h"
#include "runtime/gpu.h"

namespace keyhole::bench {
namespace {

// "6.1" of "6.1.0-18-amd64": the rest names a distribution's build.
std::string major_and_minor(const std::string& release) {
  const size_t dot = release.find('.');
  return release.substr(
      0, dot == std::string::npos ? dot : release.find_first_not_of("0123456789", dot + 1));
}

std::string compiler_name() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
  return fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
  return "unknown";
#endif
}

}  // namespace

std::string proc_field(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

Machine this_machine(const Device& device) {
  utsname names{};
  uname(&names);
  std::string cpu = proc_field("/proc/cpuinfo", "model name");
  if (cpu.empty()) cpu = fmt::format("unnamed {} processor", names.machine);
  const double pages = double(sysconf(_SC_PHYS_PAGES)), page_bytes = double(sysconf(_SC_PAGE_SIZE));
  return {.cpu = cpu,
          .arch = names.machine,
          .simd = cpu::simd_target(),
          .system = fmt::format("{} {}", names.sysname, major_and_minor(names.release)),
          .compiler = compiler_name(),
          .cores = max_threads(),
          .memory_gib = pages * page_bytes / double(1 << 30),
          .gpu = device.kind == Device::Kind::cuda ? describe(gpu(device)) : ""};
}

nlohmann::json to_json(const Machine& machine) {
  nlohmann::json json = {{"cpu", machine.cpu},
                         {"arch", machine.arch},
                         {"simd", machine.simd},
                         {"system", machine.system},
                         {"compiler", machine.compiler},
                         {"cores", machine.cores},
                         {"memory_gib", double(int(machine.memory_gib * 10)) / 10}};
  if (!machine.gpu.empty()) json["gpu"] = machine.gpu;
  return json;
}

std::string describe(const Machine& machine) {
  return fmt::format("{}{}, {} core{}, {}, {}", machine.gpu.empty() ? "" : machine.gpu + ", ",
                     machine.cpu, machine.cores, machine.cores == 1 ? "" : "s", machine.simd,
                     machine.compiler);
}

std::string describe(const Gpu& gpu) {
  return fmt::format("{} (sm_{}, {} SMs, {} GiB)", gpu.name, gpu.compute_capability,
                     gpu.num_processors, gpu.memory_bytes >> 30);
}

Commit this_commit() { return {KEYHOLE_COMMIT, KEYHOLE_COMMIT_IS_DIRTY != 0}; }

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace keyhole::bench
