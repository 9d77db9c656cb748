// cli/bench/verb.h
// The tables `keyhole bench` can make: for each the options it offers and the function that makes
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "cli/bench/session.h"
#include "cli/device.h"
#include "cli/normalizer_option.h"

namespace CLI {
class App;
}

namespace keyhole::bench {

// All options of all tables; each table's subcommand offers its own.
struct Options {
  SessionOptions session;
  cli::DeviceOption device;
  std::string len, dtype;  // dtype not given: f32 on the CPU, bf16 on a GPU
  std::string case_names, case_file, pattern;
  std::optional<int64_t> heads, kv_heads, head_dim;
  int64_t window = 64, sinks = 16, block = 16, channels = 384;
  int64_t max_len = 131072;
  std::optional<int64_t> queries, entries, best, q_heads;  // of a selection
  std::string index_dtype;
  cli::NormalizerOption normalizer;
};

struct BenchTable {
  const char* name;
  const char* summary;
  void (*offer)(CLI::App& app, Options& options);
  void (*run)(Session& session, const Options& options);
};

std::span<const BenchTable> bench_tables();

}  // namespace keyhole::bench
