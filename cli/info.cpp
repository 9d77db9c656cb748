// cli/info.cpp
// keyhole info: what this program is, what it found on this machine, and the list of patterns.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>

#include "base/check.h"
#include "base/parallel.h"
#include "cli/bench/machine.h"
#include "cli/command_line.h"
#include "cli/options.h"
#include "cli/pixels.h"
#include "pattern/catalog.h"
#include "runtime/gpu.h"
#include "runtime/registry.h"
#include "runtime/select_registry.h"

namespace keyhole::cli {
namespace {

struct Feature {
  const char* name;
  bool is_there;
  const char* without;  // what is different when it is not
};

std::vector<Feature> features() {
#ifdef KEYHOLE_HAVE_HWY
  constexpr bool has_highway = true;
#else
  constexpr bool has_highway = false;
#endif
  return {{"Highway", has_highway, "the cpu kernels use what the compiler vectorises"},
          {"libpng", can_write_png(), "no show --png"},
          {"CUDA", has_cuda_kernels(), "no GPU kernels in this build"}};
}

std::vector<std::string> tiles_of(const KernelEntry& kernel) {
  std::vector<std::string> tiles;
  for (const TileShape& tile : kernel.tiles) tiles.push_back(to_string(tile));
  return tiles;
}

// What the kernels of a backend do not take, whatever their width and dtype; empty: nothing.
std::string left_to_the_next() {
  Table table({});
  std::string last;
  for (const KernelEntry& kernel : kernel_table()) {
    const std::string name = say(kernel.backend, ".", to_string(kernel.operation));
    const std::vector<std::string> objections = objections_of(kernel);
    if (name == last || objections.empty()) continue;
    last = name;
    table.add({name, fmt::format("{}", fmt::join(objections, "; "))});
  }
  return last.empty() ? "" : table.text();
}

std::string why_not_here(const SelectKernel& kernel) {
  return keyhole::why_not_here(kernel.device, kernel.min_compute_capability,
                               kernel.max_compute_capability);
}

int list_patterns(const Context& context) {
  if (context.json) {
    Json list = Json::array();
    for (const CatalogEntry& entry : catalog()) {
      list.push_back({{"name", entry.name},
                      {"call", signature_of(entry)},
                      {"definition", entry.definition},
                      {"meaning", entry.meaning},
                      {"example", entry.example},
                      {"example_q_len", entry.example_q_len},
                      {"example_k_len", entry.example_k_len},
                      {"complexity", entry.complexity},
                      {"reach", entry.reach}});
    }
    print_json(list);
    return kDone;
  }
  for (const CatalogEntry& entry : catalog()) {
    print("{}\n  q attends to k when  {}\n  {}\n\n", paint(Ink::bold, signature_of(entry)),
          entry.definition, entry.meaning);
  }
  print(
      "combine them with ~ (not), & (and), | (or), which bind in this order, and parentheses:\n"
      "  keyhole show \"causal & (window(2) | sinks(1))\" --len 8\n");
  return kDone;
}

int info_json(const bench::Machine& machine, const bench::Commit& commit) {
  Json json = {{"version", version()},
               {"commit", commit.id},
               {"dirty", commit.is_dirty},
               {"compiler", machine.compiler},
               {"cpu", machine.cpu},
               {"system", machine.system},
               {"backend", gpus().empty() ? "cpu" : "cuda"},
               {"gpus", Json::array()},
               {"why_no_gpu", why_no_gpu()},
               {"simd", machine.simd},
               {"threads", max_threads()}};
  for (const Gpu& gpu : gpus()) {
    json["gpus"].push_back({{"name", gpu.name},
                            {"compute_capability", gpu.compute_capability},
                            {"processors", gpu.num_processors},
                            {"memory_bytes", gpu.memory_bytes},
                            {"l2_cache_bytes", gpu.l2_cache_bytes},
                            {"shared_bytes", gpu.shared_bytes}});
  }
  for (const auto& [name, is_there, without] : features()) json["libraries"][name] = is_there;
  for (const Variable& variable : kVariables) {
    const char* value = std::getenv(variable.name);
    json["environment"][variable.name] = value ? Json(value) : Json();
  }
  json["kernels"] = Json::array();
  for (const KernelEntry& kernel : kernel_table()) {
    json["kernels"].push_back({{"name", kernel.name},
                               {"backend", kernel.backend},
                               {"operation", to_string(kernel.operation)},
                               {"dtype", to_string(kernel.dtype)},
                               {"max_head_dim", kernel.max_head_dim},
                               {"why_not_here", keyhole::why_not_here(kernel)},
                               {"objections", objections_of(kernel)},
                               {"tiles", tiles_of(kernel)}});
  }
  json["select_kernels"] = Json::array();
  for (const SelectKernel& kernel : select_table()) {
    json["select_kernels"].push_back({{"name", kernel.name},
                                      {"backend", kernel.backend},
                                      {"operation", to_string(kernel.operation)},
                                      {"dtype", to_string(kernel.dtype)},
                                      {"why_not_here", why_not_here(kernel)}});
  }
  print_json(json);
  return kDone;
}

int info(const Context& context) {
  const bench::Machine machine = bench::this_machine();
  const bench::Commit commit = bench::this_commit();
  if (context.json) return info_json(machine, commit);

  Table facts({});
  facts.add(
      {"version", say(version(), " (", commit.id, commit.is_dirty ? ", changed since" : "", ")")});
  facts.add({"compiler", machine.compiler});
  facts.add({"machine", say(machine.cpu, ", ", machine.system)});
  for (size_t i = 0; i < gpus().size(); ++i) {
    facts.add({say("gpu:", i), bench::describe(gpus()[i])});
  }
  facts.add({"simd", machine.simd});
  facts.add({"threads", std::to_string(max_threads())});
  for (const auto& [name, is_there, without] : features()) {
    facts.add({name, is_there ? "yes" : say("no: ", without)});
  }
  for (const Variable& variable : kVariables) {
    const char* value = std::getenv(variable.name);
    facts.add({variable.name, value ? value : say("not set (", variable.meaning, ")")});
  }
  write_out(facts.text());

  Table kernels({"kernel", "head_dim", "tiles (queries x keys)", "on this machine"});
  for (const KernelEntry& kernel : kernel_table()) {
    const std::string why_not = keyhole::why_not_here(kernel);
    kernels.add({kernel.name, say("up to ", kernel.max_head_dim),
                 fmt::format("{}", fmt::join(tiles_of(kernel), " ")),
                 why_not.empty() ? "yes" : "no: " + why_not},
                why_not.empty() ? Ink::plain : Ink::dim);
  }
  print(
      "\nbackend: {}\n\n{}",
      gpus().empty() ? say("cpu (", why_no_gpu(), ")") : "cuda, and cpu for tensors in host memory",
      kernels.text());
  if (const std::string left = left_to_the_next(); !left.empty()) {
    print("\nleft to the next backend of this table\n{}", left);
  }
  Table select({"kernel that selects keys", "on this machine"});
  for (const SelectKernel& kernel : select_table()) {
    const std::string why_not = why_not_here(kernel);
    select.add({kernel.name, why_not.empty() ? "yes" : "no: " + why_not},
               why_not.empty() ? Ink::plain : Ink::dim);
  }
  print("\n{}\n{} patterns: keyhole info --patterns\n", select.text(), catalog().size());
  return kDone;
}

}  // namespace

Runner add_info(CLI::App& app, Context& context) {
  auto wants_patterns = std::make_shared<bool>(false);
  add(app, {{"--patterns", wants_patterns.get(), "list the patterns with their definitions"},
            json_option(context)});
  app.footer(
      "examples:\n"
      "  keyhole info\n"
      "  keyhole info --patterns\n"
      "  keyhole info --json");
  return [wants_patterns, &context] {
    return *wants_patterns ? list_patterns(context) : info(context);
  };
}

}  // namespace keyhole::cli
