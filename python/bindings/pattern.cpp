// python/bindings/pattern.cpp
// _core.Pattern. Patterns are made by their name in the catalog, so a new leaf needs no binding.
#include "keyhole/pattern.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "base/check.h"
#include "base/int_math.h"
#include "convert.h"
#include "module.h"
#include "pattern/did_you_mean.h"
#include "pattern/made_for.h"
#include "pattern/node.h"
#include "pattern/smallest_shape.h"

namespace keyhole::python {
namespace {

Pattern make(std::string_view name, nb::handle arguments) {
  const CatalogEntry* entry = find_in_catalog(name);
  KEYHOLE_CHECK(entry != nullptr, "no pattern is called \"", name, "\"");
  std::vector<Value> values = values_from(*entry, arguments);
  return entry->make(values);
}

// Whether the text describes the pattern completely. Patterns from long arrays print a hash
// instead.
bool reads_back(const Pattern& pattern, const std::string& text) {
  try {
    const Pattern again = parse(text);
    return again == pattern && again.text() == text;
  } catch (const Error&) {
    return false;
  }
}

Shape shape_for(const Pattern& pattern, nb::handle q_len, nb::handle k_len, nb::handle offset) {
  const int64_t queries = integer_from(q_len, "q_len"), keys = integer_from(k_len, "k_len");
  Shape shape = smallest_shape(pattern, queries, keys);
  shape.offset = optional_integer_from(offset, "offset");
  return shape;
}

// One byte per pair, [q_len][k_len]. Drawn in bands of rows, as the planner draws tiles: patterns
// that can draw whole rows need no evaluation pair by pair.
nb::object mask(const Pattern& pattern, nb::handle q_len, nb::handle k_len, nb::handle offset,
                nb::handle batch, nb::handle head) {
  constexpr int64_t kRows = 64, kColumns = 1 << 16;
  const int64_t batch_index = integer_from(batch, "batch"), head_index = integer_from(head, "head");
  Shape shape = shape_for(pattern, q_len, k_len, offset);
  // The mask of head 3 needs a shape with four heads, even if the pattern needs fewer.
  shape.batch = std::max(shape.batch, batch_index + 1);
  shape.heads = std::max(shape.heads, head_index + 1);
  const NodePtr node = pattern.for_head(shape, batch_index, head_index).node();
  const int64_t pairs = checked_mul(shape.q_len, shape.k_len, "mask: pairs");
  nb::object bytes = nb::steal(PyByteArray_FromStringAndSize(nullptr, Py_ssize_t(pairs)));
  if (!bytes.is_valid()) throw nb::python_error();
  char* out = PyByteArray_AsString(bytes.ptr());
  const nb::gil_scoped_release release;
  for (int64_t q = 0; q < shape.q_len; q += kRows) {
    for (int64_t k = 0; k < shape.k_len; k += kColumns) {
      const int64_t rows = std::min(kRows, shape.q_len - q);
      const int64_t columns = std::min(kColumns, shape.k_len - k);
      const Position first = q + shape.q_offset();
      BitRows bits{int32_t(rows), int32_t(columns)};
      node->draw({{first, first + rows}, {k, k + columns}}, bits);
      for (int64_t r = 0; r < rows; ++r) {
        char* row = out + (q + r) * shape.k_len + k;
        for (int64_t c = 0; c < columns; ++c) row[c] = get_bit(bits.row(int32_t(r)), c);
      }
    }
  }
  return bytes;
}

nb::dict described(const Parameter& parameter) {
  constexpr const char* kKinds[] = {"integer", "integers", "array", "rows", "pattern", "patterns"};
  nb::dict row;
  row["name"] = parameter.name;
  row["kind"] = kKinds[size_t(parameter.kind)];
  row["is_optional"] = parameter.is_optional;
  row["may_be_unbounded"] = parameter.may_be_unbounded;
  return row;
}

nb::list catalog_rows() {
  nb::list rows;
  for (const CatalogEntry& entry : catalog()) {
    nb::list parameters;
    for (const Parameter& parameter : entry.parameters) parameters.append(described(parameter));
    nb::dict row;
    row["name"] = entry.name;
    row["signature"] = signature_of(entry);
    row["parameters"] = parameters;
    row["definition"] = entry.definition;
    row["meaning"] = entry.meaning;
    row["example"] = entry.example;
    row["example_q_len"] = entry.example_q_len;
    row["example_k_len"] = entry.example_k_len;
    row["complexity"] = entry.complexity;
    row["reach"] = entry.reach;
    row["is_composition"] = entry.is_composition;
    rows.append(row);
  }
  return rows;
}

}  // namespace

void add_patterns(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Pattern>(module, "Pattern", "A C++ pattern; keyhole.Pattern holds one.")
      .def("text", &Pattern::text)
      .def("reads_back", [](const Pattern& self) { return reads_back(self, self.text()); })
      .def("conjunction", [](const Pattern& a, const Pattern& b) { return a & b; })
      .def("disjunction", [](const Pattern& a, const Pattern& b) { return a | b; })
      .def("negation", [](const Pattern& a) { return ~a; })
      .def("mask", &mask, "q_len"_a, "k_len"_a, "offset"_a.none(), "batch"_a, "head"_a)
      .def(
          "smallest_shape",
          [](const Pattern& self) {
            const Shape shape = smallest_shape(self, 0, 0);
            return nb::make_tuple(shape.batch, shape.heads);
          },
          "(batch, heads): the smallest for which the pattern is valid.")
      .def(
          "own_lengths",
          [](const Pattern& self) -> nb::object {
            const auto lengths = own_lengths(self);
            return lengths ? nb::make_tuple(lengths->q_len, lengths->k_len)
                           : nb::object(nb::none());
          },
          "(q_len, k_len) of the arrays that it was made from, or None.")
      .def(
          "depends_on_heads",
          [](const Pattern& self, nb::handle q_len, nb::handle k_len) {
            const int64_t queries = integer_from(q_len, "q_len");
            return self.depends_on_heads(queries, integer_from(k_len, "k_len"));
          },
          "Whether heads or batch entries of these lengths may see different pairs.")
      .def("picture",
           [](const Pattern& self, nb::handle q_len, nb::handle k_len) {
             const int64_t queries = integer_from(q_len, "q_len"),
                           keys = integer_from(k_len, "k_len");
             return picture(self, queries, keys);
           })
      .def("count_pairs", [](const Pattern& self, nb::handle q_len, nb::handle k_len) {
        const int64_t queries = integer_from(q_len, "q_len"), keys = integer_from(k_len, "k_len");
        const nb::gil_scoped_release release;
        return count_pairs(self, queries, keys);
      });
  module.def("parse", [](std::string_view text) { return parse(text); });
  module.def("make", &make, "Makes a pattern of the catalog from its name and arguments.");
  module.def(
      "made_for",
      [](std::string_view made_by, nb::handle q_len, nb::handle k_len, nb::handle batch,
         nb::handle heads, const Pattern& pattern) {
        const MaskSizes sizes{integer_from(q_len, "q_len"), integer_from(k_len, "k_len"),
                              integer_from(batch, "batch"), integer_from(heads, "heads")};
        return made_for(std::string(made_by), sizes, pattern);
      },
      "The pattern of an imported mask, restricted to the sizes of that mask.");
  module.def("catalog", &catalog_rows, "All patterns of the catalog, as dicts.");
  module.def("sample_texts", &sample_texts,
             "Texts for tests: every example of the catalog, and combinations.");
}

}  // namespace keyhole::python
