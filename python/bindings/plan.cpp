// python/bindings/plan.cpp
// _core.Plan: the compiled plan that keyhole.Plan holds.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <span>

#include "base/check.h"
#include "base/int_math.h"
#include "convert.h"
#include "keyhole/attention.h"
#include "module.h"
#include "plan/plan_file.h"
#include "plan/plan_state.h"

namespace keyhole::python {
namespace {

Plan make_plan(const Pattern& pattern, nb::handle q_len, nb::handle k_len, nb::handle batch,
               nb::handle heads, nb::handle offset) {
  const Shape shape{integer_from(batch, "batch"), integer_from(heads, "heads"),
                    integer_from(q_len, "q_len"), integer_from(k_len, "k_len"),
                    optional_integer_from(offset, "offset")};
  const nb::gil_scoped_release release;
  return plan(pattern, shape);
}

nb::tuple usual_tile(const Plan& plan) {
  const TileShape tile = plan.state().usual_tile();
  return nb::make_tuple(tile.q, tile.k);
}

// (q_len, k_len, batch, heads, offset)
nb::tuple shape_of(const Plan& plan) {
  const Shape& shape = plan.shape();
  return nb::make_tuple(shape.q_len, shape.k_len, shape.batch, shape.heads, shape.q_offset());
}

nb::dict part_row(const PartReport& part) {
  nb::dict row;
  row["form"] = part.form;
  row["stride"] = part.stride;
  row["pairs"] = part.pairs;
  row["groups"] = part.groups;
  row["heads"] = part.heads;
  row["tiles"] = part.tiles;
  row["full_tiles"] = part.full_tiles;
  row["partial_tiles"] = part.partial_tiles;
  row["grid_tiles"] = part.grid_tiles;
  row["runs"] = part.runs;
  row["bitmaps"] = part.bitmaps;
  row["bitmap_bytes"] = part.bitmap_bytes;
  row["lists"] = part.lists;
  row["keys"] = part.keys;
  row["visited_pairs"] = part.visited_pairs;
  return row;
}

// (forward, backward): the kernel that would run on contiguous tensors of the plan's shape, or the
// reason why none would.
nb::tuple runs(const Plan& plan, nb::handle head_dim, nb::handle element_bytes, nb::handle device) {
  const int64_t dim = integer_from(head_dim, "head_dim");
  const int64_t bytes = integer_from(element_bytes, "element_bytes");
  const int64_t ordinal = integer_from(device, "device");
  if (bytes != 2 && bytes != 4 && bytes != 8) {
    const std::string none = say("no kernel reads elements of ", bytes, " bytes");
    return nb::make_tuple(none, none);
  }
  const DType dtype = bytes == 2 ? DType::bf16 : bytes == 4 ? DType::f32 : DType::f64;
  const Shape& shape = plan.shape();
  TensorView q(nullptr, dtype, {shape.batch, shape.heads, shape.q_len, dim});
  TensorView v(nullptr, dtype, {shape.batch, shape.heads, shape.k_len, dim});
  if (ordinal >= 0) q.device = v.device = {Device::Kind::cuda, narrow(ordinal, "explain: gpu")};
  std::string texts[2];
  {
    const nb::gil_scoped_release release;
    const auto text_of = [&](auto kernel_for) -> std::string {
      try {
        return kernel_for(q, v, plan, AttentionOptions{});
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::unsupported) throw;
        return error.what();
      }
    };
    texts[0] = text_of(kernel_for_forward);
    texts[1] = text_of(kernel_for_backward);
  }
  return nb::make_tuple(texts[0], texts[1]);
}

nb::dict explain(const Plan& plan, nb::handle tile_q, nb::handle tile_k, nb::handle head_dim,
                 nb::handle element_bytes) {
  const TileShape tile{narrow(integer_from(tile_q, "tile"), "tile"),
                       narrow(integer_from(tile_k, "tile"), "tile")};
  const int64_t dim = integer_from(head_dim, "head_dim");
  const int64_t bytes = integer_from(element_bytes, "element_bytes");
  PlanReport report;
  {
    const nb::gil_scoped_release release;
    report = plan.explain(tile, dim, bytes);
  }
  nb::list parts;
  for (const PartReport& part : report.parts) parts.append(part_row(part));
  nb::dict row;
  row["pattern"] = report.pattern;
  row["tile"] = nb::make_tuple(report.tile.q, report.tile.k);
  row["parts"] = parts;
  row["pairs"] = report.pairs;
  row["all_pairs"] = report.all_pairs;
  row["visited_pairs"] = report.visited_pairs;
  row["waste"] = report.waste;
  row["flops_forward"] = report.flops_forward;
  row["flops_backward"] = report.flops_backward;
  row["flops_per_token"] = report.flops_per_token;
  row["dense_flops_forward"] = report.dense_flops_forward;
  row["bytes_moved"] = report.bytes_moved;
  row["predicted_speedup"] = report.predicted_speedup;
  row["compile_ms"] = report.compile_ms;
  row["plan_bytes"] = report.plan_bytes;
  row["draws_pair_by_pair"] = report.draws_pair_by_pair;
  row["text"] = report.text();
  row["json"] = report.json();
  return row;
}

Plan from_bytes(const nb::bytes& bytes) {
  const std::span all(static_cast<const std::byte*>(bytes.data()), bytes.size());
  const nb::gil_scoped_release release;
  return load_plan(all, "in memory");
}

nb::bytes to_bytes(const Plan& plan) {
  std::vector<std::byte> bytes;
  {
    const nb::gil_scoped_release release;
    bytes = plan_file_bytes(plan);
  }
  return nb::bytes(bytes.data(), bytes.size());
}

}  // namespace

void add_plans(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Plan>(module, "Plan", "A C++ plan; keyhole.Plan holds one.")
      .def("pattern_text", &Plan::pattern_text)
      .def("shape", &shape_of)
      .def("usual_tile", &usual_tile, "Rows and columns of the default tile of explain().")
      .def("explain", &explain)
      .def("runs", &runs)
      .def("verify", &Plan::verify, nb::call_guard<nb::gil_scoped_release>())
      .def("save", &Plan::save, nb::call_guard<nb::gil_scoped_release>())
      .def("to_bytes", &to_bytes, "The bytes that save() writes.");
  module.def("make_plan", &make_plan, "pattern"_a, "q_len"_a, "k_len"_a, "batch"_a, "heads"_a,
             "offset"_a.none());
  module.def("load_plan", &Plan::load, nb::call_guard<nb::gil_scoped_release>());
  module.def("plan_from_bytes", &from_bytes, "The plan of the bytes from to_bytes().");
}

}  // namespace keyhole::python
