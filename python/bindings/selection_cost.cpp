// python/bindings/selection_cost.cpp
// What choosing keys costs, as a dict of numbers and texts.
#include "keyhole/selection_cost.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "base/check.h"
#include "convert.h"
#include "module.h"

namespace keyhole::python {
namespace {

DType dtype_from(nb::handle name, const char* argument) {
  if (!nb::isinstance<nb::str>(name)) raise_type_error(argument, "a str", name);
  const std::string text = nb::cast<std::string>(name);
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64, DType::e4m3}) {
    if (text == to_string(dtype)) return dtype;
  }
  throw Error(ErrorKind::usage, say("explain_selection: ", argument, " is \"", text,
                                    "\"; accepted are bf16, f16, and e4m3 for index_dtype"));
}

nb::dict row_of(const SelectionStep& step) {
  nb::dict row;
  row["flops"] = step.flops;
  row["memory_bytes"] = step.memory_bytes;
  row["gathered_bytes"] = step.gathered_bytes;
  row["seconds"] = step.seconds;
  return row;
}

nb::dict row_of(const SelectionChange& change) {
  nb::dict row;
  row["what"] = change.what;
  row["speedup"] = change.speedup;
  row["wins_from"] = change.wins_from;
  return row;
}

nb::dict row_of(const SelectionReport& report) {
  nb::list changes;
  for (const SelectionChange& change : report.changes) changes.append(row_of(change));
  nb::dict row;
  row["pattern"] = report.pattern;
  row["is_causal"] = report.is_causal;
  row["all_pairs"] = report.all_pairs;
  row["visible_pairs"] = report.visible_pairs;
  row["chosen_pairs"] = report.chosen_pairs;
  row["indexer"] = row_of(report.indexer);
  row["chosen"] = row_of(report.chosen);
  row["dense"] = row_of(report.dense);
  row["is_dense_latent"] = report.is_dense_latent;
  row["choosing_seconds"] = report.choosing_seconds;
  row["speedup"] = report.speedup;
  row["wins_from"] = report.wins_from;
  row["changes"] = changes;
  row["text"] = report.text();
  row["json"] = report.json();
  return row;
}

// The integers in the order of SelectionCall.
nb::dict explain(nb::handle visible, nb::handle batch, nb::handle q_len, nb::handle k_len,
                 nb::handle k, nb::handle q_heads, nb::handle kv_heads, nb::handle head_dim,
                 nb::handle v_head_dim, nb::handle latent_dim, nb::handle rope_head_dim,
                 nb::handle dtype, nb::handle index_heads, nb::handle index_dim,
                 nb::handle index_dtype, nb::handle groups, nb::handle shared_by,
                 nb::handle flops_16bit, nb::handle flops_8bit, nb::handle memory,
                 nb::handle gathered) {
  if (!nb::isinstance<Plan>(visible)) raise_type_error("visible", "a _core.Plan", visible);
  const SelectionCall call{.batch = integer_from(batch, "batch"),
                           .q_len = integer_from(q_len, "q_len"),
                           .k_len = integer_from(k_len, "k_len"),
                           .k = integer_from(k, "top_k"),
                           .q_heads = integer_from(q_heads, "q_heads"),
                           .kv_heads = integer_from(kv_heads, "kv_heads"),
                           .head_dim = integer_from(head_dim, "head_dim"),
                           .v_head_dim = integer_from(v_head_dim, "v_head_dim"),
                           .latent_dim = integer_from(latent_dim, "latent_dim"),
                           .rope_head_dim = integer_from(rope_head_dim, "rope_head_dim"),
                           .dtype = dtype_from(dtype, "dtype"),
                           .index_heads = integer_from(index_heads, "index_heads"),
                           .index_dim = integer_from(index_dim, "index_dim"),
                           .index_dtype = dtype_from(index_dtype, "index_dtype"),
                           .groups = integer_from(groups, "groups"),
                           .shared_by = integer_from(shared_by, "shared_by"),
                           .visible = nb::cast<const Plan&>(visible)};
  GpuRates rates;
  const auto take = [](nb::handle given, const char* name, double& rate) {
    if (!given.is_none()) rate = number_from(given, name);
  };
  take(flops_16bit, "flops_16bit", rates.flops_16bit);
  take(flops_8bit, "flops_8bit", rates.flops_8bit);
  take(memory, "memory", rates.memory);
  take(gathered, "gathered", rates.gathered);
  SelectionReport report;
  {
    const nb::gil_scoped_release release;
    report = explain_selection(call, rates);
  }
  return row_of(report);
}

}  // namespace

void add_selection_cost(nb::module_& module) {
  using namespace nb::literals;
  module.def("explain_selection", &explain, "visible"_a, "batch"_a, "q_len"_a, "k_len"_a, "k"_a,
             "q_heads"_a, "kv_heads"_a, "head_dim"_a, "v_head_dim"_a, "latent_dim"_a,
             "rope_head_dim"_a, "dtype"_a, "index_heads"_a, "index_dim"_a, "index_dtype"_a,
             "groups"_a, "shared_by"_a, "flops_16bit"_a.none(), "flops_8bit"_a.none(),
             "memory"_a.none(), "gathered"_a.none());
}

}  // namespace keyhole::python
