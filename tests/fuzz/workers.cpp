// tests/fuzz/workers.cpp
// Worker processes over a little shared memory.
#include "fuzz/workers.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "base/check.h"

namespace keyhole::fuzz {
namespace {

using test::Failure;

constexpr unsigned kHangSeconds = 120;  // a case takes milliseconds; sanitizers make that a second
constexpr size_t kTextBytes = 2000;

struct WorkerSlot {
  std::atomic<uint64_t> seed;
  std::atomic<bool> is_busy;
  Totals totals;
};

struct Shared {
  std::atomic<int64_t> next;
  std::atomic<bool> stop;
  std::atomic<int> failures;
  uint64_t failed_seed;
  char kind[64], detail[kTextBytes];
};

void copy_text(char* to, size_t bytes, const std::string& text) {
  std::snprintf(to, bytes, "%s", text.c_str());
}

// Memory that parent and children see alike.
template <class T>
T* share(size_t count) {
  void* memory =
      mmap(nullptr, sizeof(T) * count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error(ErrorKind::internal, "fuzz: no shared memory");
  return new (memory) T[count]{};
}

void report(Shared& shared, uint64_t seed, const Failure& failure) {
  if (shared.failures.fetch_add(1) == 0) {
    shared.failed_seed = seed;
    copy_text(shared.kind, sizeof shared.kind, failure.kind);
    copy_text(shared.detail, sizeof shared.detail, failure.detail);
  }
  shared.stop = true;
}

void work(Shared& shared, WorkerSlot& slot, uint64_t first_seed, int64_t count, double seconds,
          const Job& job) {
  const auto start = std::chrono::steady_clock::now();
  while (!shared.stop) {
    if (seconds > 0 &&
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > seconds) {
      return;
    }
    const int64_t index = shared.next.fetch_add(1);
    if (index >= count) return;
    const uint64_t seed = first_seed + uint64_t(index);
    slot.seed = seed;
    slot.is_busy = true;
    alarm(kHangSeconds);
    if (const Failure failure = job(seed, slot.totals)) {
      ++slot.totals.failed;
      report(shared, seed, failure);
    }
    slot.is_busy = false;
    ++slot.totals.done;
  }
}

Failure death_of(int status) {
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (signal == SIGALRM) return {"hang", say("no answer within ", kHangSeconds, " seconds")};
  if (signal != 0) return {"crash", say("signal ", signal, " (", strsignal(signal), ")")};
  return {"crash", say("exit status ", WEXITSTATUS(status))};
}

}  // namespace

Outcome run_jobs(uint64_t first_seed, int64_t count, double seconds, int workers, const Job& job) {
  Shared& shared = *share<Shared>(1);
  WorkerSlot* slots = share<WorkerSlot>(size_t(workers));
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (int i = 0; i < workers; ++i) {
    const pid_t child = fork();
    if (child < 0) throw Error(ErrorKind::internal, "fuzz: cannot start a worker");
    if (child == 0) {
      work(shared, slots[i], first_seed, count, seconds, job);
      std::fflush(nullptr);
      _exit(0);
    }
    children.push_back(child);
  }
  Outcome outcome;
  for (size_t i = 0; i < children.size(); ++i) {
    int status = 0;
    waitpid(children[i], &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      report(shared, slots[i].seed, death_of(status));
      ++outcome.totals.done, ++outcome.totals.failed;  // it did not come to count it
    }
    const Totals& totals = slots[i].totals;
    outcome.totals.done += totals.done;
    outcome.totals.failed += totals.failed;
    outcome.totals.skipped.add(totals.skipped);
    outcome.totals.refused.add(totals.refused);
    outcome.totals.combinations += totals.combinations;
    outcome.totals.kernel_runs += totals.kernel_runs;
    outcome.totals.pairs += totals.pairs;
    outcome.totals.worst = std::max(outcome.totals.worst, totals.worst);
  }
  if (shared.failures > 0) {
    outcome.failed_seed = shared.failed_seed;
    outcome.failure = {shared.kind, shared.detail};
  }
  munmap(&shared, sizeof(Shared));
  munmap(slots, sizeof(WorkerSlot) * size_t(workers));
  return outcome;
}

Failure run_isolated(const std::function<Failure()>& job) {
  const Outcome outcome = run_jobs(0, 1, 0, 1, [&](uint64_t, Totals&) { return job(); });
  return outcome.failure;
}

}  // namespace keyhole::fuzz
