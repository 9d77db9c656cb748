// cli/bench/machine.h
// What a record must say of the place it was taken on: machine, build, commit, time. And what its
// processor can do at most.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "keyhole/tensor.h"

namespace keyhole {
struct Gpu;  // runtime/gpu.h
}

namespace keyhole::bench {

struct Machine {
  std::string cpu;       // "Intel(R) Xeon(R) ...", as the system calls it
  std::string arch;      // "x86_64"
  std::string simd;      // what the cpu kernels use here
  std::string system;    // "Linux 6.1"
  std::string compiler;  // "g++ 12.2.0"
  int cores = 0;         // that this process may use
  double memory_gib = 0;
  std::string gpu;  // "NVIDIA H200 (sm_90, 132 SMs, 139 GiB)" where one computes, else empty
};

Machine this_machine(const Device& device = {});  // device: what computes
nlohmann::json to_json(const Machine& machine);
std::string describe(const Machine& machine);  // one line
std::string describe(const Gpu& gpu);

// The machine's peak for fp32 in GFLOP/s, measured now: fused multiply-adds on independent
// registers, on `threads` threads at once (0: all), with the widest instructions that are there. A
// share of peak means nothing when the two were not taken in the same run.
double measure_peak_gflops(int threads, bool is_cpu_time = false);

struct Commit {
  std::string id;         // "unknown" outside a git checkout
  bool is_dirty = false;  // files differed from the commit when this program was built
};

Commit this_commit();
// The value after the colon of the first line of a /proc file that begins with `key`.
std::string proc_field(const char* path, const std::string& key);
std::string utc_now();  // "2026-01-31T12:00:00Z"

}  // namespace keyhole::bench
