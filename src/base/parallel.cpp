// src/base/parallel.cpp
// parallel_for with OpenMP, or with a plain loop if there is none. The only file that uses OpenMP.
#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>
#endif

namespace keyhole {
namespace {

// Keeps the exception of the lowest item. Items start in order and every started item ends, so the
// result is the same for any number of threads.
class FirstFailure {
 public:
  bool happened() const { return happened_.load(std::memory_order_relaxed); }
  void record(int64_t item) {
    const std::lock_guard lock(mutex_);
    if (exception_ == nullptr || item < item_) {
      exception_ = std::current_exception();
      item_ = item;
    }
    happened_.store(true, std::memory_order_relaxed);
  }
  void rethrow_if_any() const {
    if (exception_ != nullptr) std::rethrow_exception(exception_);
  }

 private:
  std::atomic<bool> happened_ = false;
  std::mutex mutex_;
  std::exception_ptr exception_;
  int64_t item_ = 0;
};

#ifdef _OPENMP
// A child of fork() has none of its parent's threads, and OpenMP would wait for them forever.
std::atomic<bool> are_threads_lost = false;

void know_of_forks_from_now_on() {
  [[maybe_unused]] static const int is_known =
      pthread_atfork(nullptr, nullptr, [] { are_threads_lost = true; });
}
#endif

int usable_threads(int64_t count, int threads) {
#ifdef _OPENMP
  if (omp_in_parallel()) return 1;  // the outer loop has the threads already
  if (are_threads_lost) return 1;
  const int wanted = threads > 0 ? threads : max_threads();
  return int(std::min<int64_t>(wanted, count));
#else
  (void)count, (void)threads;
  return 1;  // whatever was requested
#endif
}

}  // namespace

int max_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

void parallel_for(int64_t count, int threads,
                  const std::function<void(int64_t item, int thread)>& body) {
  const int num_threads = usable_threads(count, threads);
  if (num_threads <= 1) {
    for (int64_t item = 0; item < count; ++item) body(item, 0);
    return;
  }
#ifdef _OPENMP
  know_of_forks_from_now_on();
  FirstFailure failure;
  std::atomic<int64_t> next = 0;  // schedule(dynamic, 1) does not guarantee the order; this does
#pragma omp parallel num_threads(num_threads)
  while (!failure.happened()) {
    const int64_t item = next.fetch_add(1, std::memory_order_relaxed);
    if (item >= count) break;
    try {
      body(item, omp_get_thread_num());
    } catch (...) {  // an exception may not leave a parallel region
      failure.record(item);
    }
  }
  failure.rethrow_if_any();
#endif
}

}  // namespace keyhole
