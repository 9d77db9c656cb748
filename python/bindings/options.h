// python/bindings/options.h
// The options of a call that are not tensors.
#pragma once

#include <nanobind/nanobind.h>

#include "keyhole/attention.h"

namespace keyhole::python {

// scale, a number or None; softcap, a number; backend, a str. The rest is not given.
AttentionOptions options_from(nanobind::handle scale, nanobind::handle softcap,
                              nanobind::handle backend);

// The current stream as torch gives it: the pointer as an int.
void* stream_from(nanobind::handle stream);

// More threads than any machine has are as good as all it has.
int threads_from(nanobind::handle threads);

}  // namespace keyhole::python
