# bench/peers/timing.py
# A call in, its times and its memory out: the same way for all attentions. `keyhole bench` has its own rules, cli/bench/timing.h.
import functools
import statistics
import time

import torch
from cases import OPERATIONS

CYCLES_PER_MS = 2_000_000  # of the fastest clock; a slower one waits longer
LONG_MS = 100  # calls that take longer are repeated LONG_REPEATS times
LONG_REPEATS = 3


class Timer:
    """Medians of a call: queued back to back, of single launches after a pause, in which the card cools and its clock
    rises, and in a loop that waits for each. On the CPU a call is timed once, by the clock."""

    def __init__(self, device, repeats=15, pause_s=0.05, has_cold_cache=False):
        self.device, self.repeats, self.pause_s = device, repeats, pause_s
        self.scratch = None
        if has_cold_cache and device == "cuda":
            second_level = torch.cuda.get_device_properties(0).L2_cache_size
            self.scratch = torch.empty(2 * second_level, device=device, dtype=torch.uint8)

    def times(self, call):
        """Fields of a record: the medians, the range of the queued ones, and the host's time for one launch."""
        if self.device == "cpu":
            ms = 1e3 * host_seconds(call)
            return {"ms": ms, "paused_ms": ms, "waited_ms": ms, "host_us": 1e3 * ms, "runs": 1}
        for _ in range(3):
            call()
        gpu_ms, host_ms = self.one(call)
        repeats = LONG_REPEATS if gpu_ms > LONG_MS else self.repeats
        queued = self.queued(call, repeats, host_ms)
        paused = [self.one(call, host_ms) for _ in range(repeats)]
        return {
            "ms": statistics.median(queued),
            "paused_ms": statistics.median(gpu for gpu, _ in paused),
            "waited_ms": 1e3 * statistics.median(self.waited(call) for _ in range(repeats)),
            "range_ms": [min(queued), max(queued)],
            "host_us": 1e3 * statistics.median(host for _, host in paused),
            "runs": repeats,
        }

    def queued(self, call, repeats, host_ms):
        """Without waiting, behind a hold: the GPU finds the next call when it is done with one."""
        torch.cuda.synchronize()
        hold(repeats * host_ms)
        marks = [self.marked(call) for _ in range(repeats)]
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in marks]

    def one(self, call, host_ms=None):
        """(GPU ms, host ms) of one launch; after a pause when the host's time is known, which the GPU is held for."""
        torch.cuda.synchronize()
        if host_ms is not None:
            time.sleep(self.pause_s)
            hold(host_ms)
        called = []
        begin, end = self.marked(lambda: called.append(host_seconds(call)))
        torch.cuda.synchronize()
        return begin.elapsed_time(end), 1e3 * called[0]

    def waited(self, call):
        """Seconds of the host's clock for a call and the wait for it, as in training that looks at its loss in every step:
        launching counts, and so does memory that is given back at each wait."""
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    def marked(self, call):
        if self.scratch is not None:
            self.scratch.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        return begin, end


def host_seconds(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def hold(host_ms):
    """The GPU waits twice as long as the host needs to launch what comes next, or launching would be measured."""
    torch.cuda._sleep(int(CYCLES_PER_MS * min(100, 1 + 2 * host_ms)))


def peak_bytes(call, held, device):
    """The most that PyTorch allocated during the call beyond what was there, workspaces included, and the tensors `held`
    for it."""
    if device == "cpu":
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    del result
    return torch.cuda.max_memory_allocated() - before + sum(x.numel() * x.element_size() for x in held)


def measure(problem, attention, timer, passes=OPERATIONS):
    """Times and peak memory of the forward pass as training runs it, and of the backward pass alone where it is asked for."""

    def forward():
        return attention(*problem.inputs)

    def gradients(out, keeps_graph=False):
        return torch.autograd.grad(out, problem.inputs, problem.gradient, retain_graph=keeps_graph)

    def named(operation, times):
        return {f"{operation}_{field}": value for field, value in times.items()}

    def memory(operation, call, held):
        try:
            return {f"{operation}_bytes": peak_bytes(call, held, problem.device)}
        except RuntimeError as error:
            return {f"why_no_{operation}_bytes": str(error).splitlines()[0]}

    record = named("forward", timer.times(forward)) | memory("forward", forward, problem.inputs)
    if "backward" not in passes:
        return record
    out = forward()
    if not out.requires_grad:
        return record | {"why_no_backward": "these kernels have no gradient"}
    record |= named("backward", timer.times(functools.partial(gradients, out, keeps_graph=True)))
    del out
    return record | memory("backward", lambda: gradients(forward()), (*problem.inputs, problem.gradient))


def profile(problem, attention, operation):
    """One call between the marks of a profiler, after one outside them; what dram.py takes for its mark goes before it."""
    out = attention(*problem.inputs)
    if operation == "backward":
        torch.autograd.grad(out, problem.inputs, problem.gradient, retain_graph=True)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    torch.cuda._sleep(1)
    if operation == "backward":
        torch.autograd.grad(out, problem.inputs, problem.gradient)
    else:
        attention(*problem.inputs)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


def measured_peaks():
    """What the machine does at best, in the same run: TFLOP/s of a bf16 product, TB/s of a copy (read and written)."""
    timer = Timer("cuda")
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    matmul_ms = timer.times(lambda: a @ b)["ms"]
    source = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    copy_ms = timer.times(lambda: target.copy_(source))["ms"]
    return {"matmul_tflops": 2 * 8192**3 / matmul_ms * 1e-9, "copy_tb_per_s": 2 * source.numel() / copy_ms * 1e-9}
