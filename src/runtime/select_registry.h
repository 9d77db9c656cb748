// src/runtime/select_registry.h
// All kernels that select keys, of all backends, best first; and which of them runs a call.
#pragma once

#include <span>
#include <string>

#include "kernels/select_contract.h"

namespace keyhole {

std::span<const SelectKernel> select_table();

std::string to_string(const SelectRequest& request);  // "top_k, f32, k 2048, on auto"

// Why a kernel cannot serve a request, as text; empty when it can.
std::string refusal(const SelectKernel& kernel, const SelectRequest& request);

// The first kernel without an objection; null: none.
const SelectKernel* find_select(std::span<const SelectKernel> kernels,
                                const SelectRequest& request);
// The same; if all object, the objections are the error. An unknown backend is an Error(usage).
const SelectKernel& choose_select(std::span<const SelectKernel> kernels,
                                  const SelectRequest& request);

}  // namespace keyhole
