// python/bindings/module.h
// The parts of the extension, one file each; module.cpp puts them together.
#pragma once

#include <nanobind/nanobind.h>

namespace keyhole::python {

void add_patterns(nanobind::module_& module);
void add_plans(nanobind::module_& module);
void add_tile_lists(nanobind::module_& module);
void add_ops(nanobind::module_& module);
void add_selection(nanobind::module_& module);
void add_selection_cost(nanobind::module_& module);
void add_torch_tensors(nanobind::module_& module);
void add_torch_memory(nanobind::module_& module);
void add_plain_call(nanobind::module_& module);
void add_pictures(nanobind::module_& module);
void add_command_line(nanobind::module_& module);

}  // namespace keyhole::python
