// src/base/parallel.h
// Threads, behind one small interface. Work items must not depend on which thread runs them:
// results are then the same for any number of threads.
#pragma once

#include <cstdint>
#include <functional>

namespace keyhole {

int max_threads();  // what the machine (or OMP_NUM_THREADS) offers

// Calls body(item, thread) for every item of [0, count), on at most `threads` threads (0: all);
// thread is in [0, threads). Items start one by one, in order. The first exception of a body is
// rethrown here, after all threads have stopped.
void parallel_for(int64_t count, int threads,
                  const std::function<void(int64_t item, int thread)>& body);

}  // namespace keyhole
