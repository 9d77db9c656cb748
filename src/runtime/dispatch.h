// src/runtime/dispatch.h
// From a request and lists to what will run: the cheapest kernel without an objection, the tile it
// follows the lists with, and how it adds up.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/contract.h"
#include "keyhole/lists.h"

namespace keyhole {

std::string to_string(const Request& request);

// Every row of every tensor that is given begins at a multiple of 16 bytes.
bool rows_are_aligned(std::initializer_list<const TensorView*> tensors);

// Request::why_no_tma of these tensors; those that are not given have nothing to say.
std::string why_no_tma(std::initializer_list<const TensorView*> tensors);

// In words, why a kernel cannot serve a request; empty when it can.
std::string refusal(const KernelEntry& kernel, const Request& request);

// The same of a kernel that is made for such tensors: what it objects to in this call.
std::string objection_to(const KernelEntry& kernel, const Request& request);

// What will run. The same value for a call, its workspace, `keyhole info`, explain() and records.
struct Choice {
  const KernelEntry* kernel = nullptr;
  TileShape tile;             // that lists of tiles are followed with
  BackwardSchedule schedule;  // of a backward pass
  bool follows_tiles = true, follows_key_lists = false;
  int64_t workspace_bytes = 0;  // where somebody has asked for it
};
// "sm90.backward.bf16.d128, tiles 64x128, dq atomic, dk and dv in order"
std::string to_string(const Choice& choice);

// Of each backend the first kernel without an objection; of those the ones of the lowest rank; of
// those the one that follows the lists (request.lists) cheapest, the first of equals. When all
// object, the objections are the error, each once for a backend; a backend that no kernel has is an
// Error(usage).
Choice choose_call(std::span<const KernelEntry> kernels, const Request& request);
const KernelEntry& choose(std::span<const KernelEntry> kernels, const Request& request);

// What stands before that one in the table and is made for such tensors, but not for this call,
// each with its objection: "sm90.backward.bf16.d64: adds up dq in no fixed order".
std::vector<std::string> passed_over(std::span<const KernelEntry> kernels, const Request& request);

// The tile shape of `kernel` that makes these lists cheapest.
TileShape pick_tile(const KernelEntry& kernel, const ListFacts& lists);
TileShape pick_tile(const KernelEntry& kernel, const Plan& plan);

// How a kernel adds up the gradients of such a call.
BackwardSchedule schedule_of(const KernelEntry& kernel, const Request& request,
                             const TileShape& tile);
BackwardSchedule schedule_of(const KernelEntry& kernel, const Lists& lists, const TileShape& tile,
                             const BackwardArgs& args, bool deterministic);

// Make the view of the lists in tiles of `tile`, put it into the arguments and run.
void run_forward(const KernelEntry& kernel, const Lists& lists, TileShape tile, ForwardArgs args);
void run_backward(const KernelEntry& kernel, const Lists& lists, TileShape tile, BackwardArgs args);

// Scratch memory of such a call; 0 on the cpu. Tensors need no memory.
int64_t forward_workspace(const KernelEntry& kernel, const Lists& lists, TileShape tile,
                          const ForwardArgs& args);
int64_t backward_workspace(const KernelEntry& kernel, const Lists& lists, TileShape tile,
                           const BackwardArgs& args);

}  // namespace keyhole
