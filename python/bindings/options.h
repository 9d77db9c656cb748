// python/bindings/options.h
// The options of a call that are not tensors.
#pragma once

#include <nanobind/nanobind.h>

#include "keyhole/attention.h"

namespace keyhole::python {

// scale: a number or None; softcap: a number; backend: a str. Other options keep their defaults.
AttentionOptions options_from(nanobind::handle scale, nanobind::handle softcap,
                              nanobind::handle backend);

// The name of a backend; "auto" builds no string.
void set_backend(std::string& backend, nanobind::handle name);

// alpha: a number; top_k: an int, 0 for all keys.
Normalizer normalizer_from(nanobind::handle alpha, nanobind::handle top_k);

// A stream as torch passes it: the pointer as an int.
void* stream_from(nanobind::handle stream);

// Clamps the number to what an int holds: no machine has more threads than the limit.
int threads_from(nanobind::handle threads);

}  // namespace keyhole::python
