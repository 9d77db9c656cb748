// src/runtime/dispatch.h
// From a plan and tensors to a kernel: the first entry of the table without an objection, the tile
// it should follow this plan with, and the launch.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/contract.h"
#include "keyhole/plan.h"

namespace keyhole {

std::string to_string(const Request& request);

// Every row of every tensor that is given begins at a multiple of 16 bytes.
bool rows_are_aligned(std::initializer_list<const TensorView*> tensors);

// Request::why_no_boxes of these tensors; those that are not given have nothing to say.
std::string why_no_boxes(std::initializer_list<const TensorView*> tensors);

// In words, why a kernel cannot serve a request; empty when it can.
std::string refusal(const KernelEntry& kernel, const Request& request);

// The first kernel without an objection; when all object, the objections are the error, each once
// for a backend; a backend that no kernel has is an Error(usage).
const KernelEntry& choose(std::span<const KernelEntry> kernels, const Request& request);

// What stands before that one in the table and is made for such tensors, but not for this call,
// each with its objection: "sm90.forward.bf16.d64: has no softcap".
std::vector<std::string> passed_over(std::span<const KernelEntry> kernels, const Request& request);

// The tile shape of `kernel` that makes this plan cheapest.
TileShape pick_tile(const KernelEntry& kernel, const Plan& plan);

// Compile (on first use) the lists for `tile`, put the view into the arguments and run.
void run_forward(const KernelEntry& kernel, const Plan& plan, TileShape tile, ForwardArgs args);
void run_backward(const KernelEntry& kernel, const Plan& plan, TileShape tile, BackwardArgs args);

// The same over a table of key lists, which nobody has looked at yet: on the host a bad entry is an
// Error(usage).
void run_forward(const KernelEntry& kernel, const GatherView& lists, ForwardArgs args);
void run_backward(const KernelEntry& kernel, const GatherView& lists, BackwardArgs args);

}  // namespace keyhole
