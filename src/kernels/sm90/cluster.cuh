// src/kernels/sm90/cluster.cuh
// Two CTAs of a cluster: the shared memory and the barriers of the other one.
#pragma once

#include <cstdint>

#include "kernels/device/ptx.cuh"

namespace keyhole::sm90 {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Where CTA `rank` has what is at `smem` in this one.
__device__ __forceinline__ uint32_t address_in(uint32_t smem, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(smem), "r"(rank));
  return there;
}

// All threads of both CTAs meet. What either has written to shared memory is visible afterwards.
__device__ __forceinline__ void meet_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// The addresses below are results of address_in.

// Starts to store 16 bytes. They count towards the phase of a barrier in the same CTA.
__device__ __forceinline__ void store_there(uint32_t there, uint32_t barrier, const uint4& words) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
      "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
      "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w), "r"(barrier)
      : "memory");
}

// One arrival for a whole warp; all lanes must call. It orders nothing: a release would wait until
// all that the warp has added to global memory has arrived there. Products that a thread has
// awaited have read their operands anyway.
__device__ __forceinline__ void arrive_there_as_warp(uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];\n"
      "}" ::"r"(barrier)
      : "memory");
}

}  // namespace keyhole::sm90
