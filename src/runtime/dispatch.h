// src/runtime/dispatch.h
// From a request and lists to what will run: the cheapest kernel without an objection, its tile,
// and how it adds up gradients.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/contract.h"
#include "keyhole/lists.h"
#include "keyhole/workspace.h"

namespace keyhole {

std::string to_string(const Request& request);

// The plainest call of that kind on this device: softmax, aligned rows, any backend.
Request request_for(const Device& device, Operation operation, DType dtype, int64_t head_dim,
                    int64_t v_head_dim);

// Whether every row of every given tensor is 16-byte aligned.
bool rows_are_aligned(std::initializer_list<const TensorView*> tensors);

// Request::why_no_tma of these tensors; those that are not given are skipped.
std::string why_no_tma(std::initializer_list<const TensorView*> tensors);
// Request::why_not_latent.
std::string why_not_latent(const TensorView& k, const TensorView& v, const Lists& lists);

// Request::key_lists. Those of a plan are compiled, if they are not yet.
KeyListSizes key_list_sizes(const GatherView& view, int64_t heads_per_kv);
KeyListSizes key_list_sizes(const TensorView& q, const TensorView& k, const Lists& lists);

// Why a kernel cannot serve a request, as text; empty when it can.
std::string refusal(const KernelEntry& kernel, const Request& request);

// The same for a kernel that is compiled for such tensors: its objection to this call.
std::string objection_to(const KernelEntry& kernel, const Request& request);

// What will run. The same value is used by the call, its workspace, `keyhole info`, explain() and
// records.
struct Choice {
  const KernelEntry* kernel = nullptr;
  TileShape tile;             // the tile of its tile lists
  BackwardSchedule schedule;  // of a backward pass
  bool follows_tiles = true, follows_key_lists = false;
  int64_t workspace_bytes = 0;  // set only on request
};
// "sm90.backward.bf16.d128, tiles 64x128, dq atomic, dk and dv in order"
std::string to_string(const Choice& choice);

// The choice: the first kernel without an objection of each backend; of these the lowest rank; of
// these the lowest cost for the lists (request.lists), ties to the first. If all kernels object,
// the objections are the error, each once per backend. An unknown backend is an Error(usage).
Choice choose_call(std::span<const KernelEntry> kernels, const Request& request);
const KernelEntry& choose(std::span<const KernelEntry> kernels, const Request& request);

// The kernels before the chosen one that are compiled for such tensors but refuse this call, each
// with its objection: "sm80.backward.bf16.d64: adds up dq in no fixed order".
std::vector<std::string> passed_over(std::span<const KernelEntry> kernels, const Request& request);

// The tile shape of `kernel` with the lowest cost for these lists.
TileShape pick_tile(const KernelEntry& kernel, const ListFacts& lists);
TileShape pick_tile(const KernelEntry& kernel, const Plan& plan);

// How a kernel adds up the gradients of such a call.
BackwardSchedule schedule_of(const KernelEntry& kernel, const Request& request,
                             const TileShape& tile);
BackwardSchedule schedule_of(const KernelEntry& kernel, const Lists& lists, const TileShape& tile,
                             const BackwardArgs& args, bool deterministic);

// Make the view of the lists with tiles of `tile`, put it into the arguments, and run. On a GPU
// `allocate` provides the workspace, where the arguments have none.
void run_forward(const KernelEntry& kernel, const Lists& lists, TileShape tile, ForwardArgs args,
                 const AllocateWorkspace& allocate = {});
void run_backward(const KernelEntry& kernel, const Lists& lists, TileShape tile, BackwardArgs args,
                  const AllocateWorkspace& allocate = {});

// Scratch memory of such a call; 0 on the cpu. Tensors need no memory.
int64_t forward_workspace(const KernelEntry& kernel, const Lists& lists, TileShape tile,
                          const ForwardArgs& args);
int64_t backward_workspace(const KernelEntry& kernel, const Lists& lists, TileShape tile,
                           const BackwardArgs& args);

}  // namespace keyhole
