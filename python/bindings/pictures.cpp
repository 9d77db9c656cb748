// python/bindings/pictures.cpp
// Patterns as text, SVG and web pages, drawn by the same code as for the command line.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "convert.h"
#include "module.h"
#include "render/html.h"
#include "render/svg.h"
#include "render/text.h"

namespace keyhole::python {
namespace {

// (q_len, k_len, batch, heads, offset), as Plan.shape() gives it.
Shape shape_from(nb::tuple shape) {
  if (shape.size() != 5) raise_type_error("shape", "five ints", shape);
  return {.batch = integer_from(shape[2], "batch"),
          .heads = integer_from(shape[3], "heads"),
          .q_len = integer_from(shape[0], "q_len"),
          .k_len = integer_from(shape[1], "k_len"),
          .offset = optional_integer_from(shape[4], "offset")};
}

// The caption names the offset only if it is not the default.
Picture picture_of(const Pattern& pattern, Shape shape, int64_t batch, int64_t head,
                   int64_t most_cells) {
  if (shape.offset == shape.k_len - shape.q_len) shape.offset.reset();
  return look(pattern, shape, batch, head, most_cells);
}

std::string text(const Pattern& pattern, nb::tuple shape, int64_t batch, int64_t head) {
  const Shape given = shape_from(shape);
  const nb::gil_scoped_release release;
  return picture_text(picture_of(pattern, given, batch, head, kTextCells));
}

std::string svg(const Pattern& pattern, nb::tuple shape, int64_t batch, int64_t head) {
  const Shape given = shape_from(shape);
  const nb::gil_scoped_release release;
  return picture_svg(picture_of(pattern, given, batch, head, kSvgCells));
}

std::string html(const Pattern& pattern, nb::tuple shape, int64_t batch, int64_t head,
                 const std::string& explain) {
  const Shape given = shape_from(shape);
  const nb::gil_scoped_release release;
  return picture_html(pattern, picture_of(pattern, given, batch, head, html_cells(given)), explain);
}

}  // namespace

void add_pictures(nb::module_& module) {
  using namespace nb::literals;
  module.def("picture_text", &text, "pattern"_a, "shape"_a, "batch"_a, "head"_a);
  module.def("picture_svg", &svg, "pattern"_a, "shape"_a, "batch"_a, "head"_a);
  module.def("picture_html", &html, "pattern"_a, "shape"_a, "batch"_a, "head"_a, "explain"_a);
}

}  // namespace keyhole::python
