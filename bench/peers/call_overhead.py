#!/usr/bin/env python3
# bench/peers/call_overhead.py
# What one Python call of keyhole.attention costs the CPU, with tensors so small that nothing else counts.
"""Times single calls with tiny tensors until they return, which on a GPU is when the kernel is queued.

  nothing      memory for the result and no more
  torch        torch.nn.functional.scaled_dot_product_attention, causal
  plan         keyhole.attention with a plan, without gradients
  pattern      keyhole.attention with a pattern, whose plan is looked up in the cache
  text         the same with a text, which is parsed every time
  _core        the binding alone, with its arguments ready
  gradient     keyhole.attention with a plan and inputs that require gradients
  backward     the backward pass of it
  op           torch.ops.keyhole.attention_forward, which compiled graphs call
  op gradient  the same with inputs that require gradients

example:
  bench/peers/call_overhead.py --device cuda --json out/call_overhead.json"""

import argparse
import json
import pathlib
import platform
import statistics
import time

import keyhole
import torch
from keyhole import _core
from keyhole.torch_attention import ops
from keyhole.torch_attention.tensors import place_of

BAR_US = 15.0  # plan, on the GPU
UNTIMED_CALLS = 10  # before each run


def times_us(calls, device, num_runs, num_calls):
    """Name -> (wall clock, CPU) per call, medians over the runs. The GPU's queue is empty before each run, and never full.
    A run of one is followed by a run of the next, so that minutes in which the machine is slow are those of all; the
    first calls of a kind, which find the caches full of what the others left, are not timed. On a machine that others
    use too, the second is the one to trust."""
    times = {what: ([], []) for what in calls}
    for call in calls.values():
        for _ in range(num_calls):
            call()
    for _ in range(num_runs):
        for what, call in calls.items():
            for _ in range(UNTIMED_CALLS):
                call()
            if device == "cuda":
                torch.cuda.synchronize()
            begin, cpu_begin = time.perf_counter(), time.process_time()
            for _ in range(num_calls):
                call()
            wall, cpu = times[what]
            wall.append((time.perf_counter() - begin) / num_calls * 1e6)
            cpu.append((time.process_time() - cpu_begin) / num_calls * 1e6)
    return {what: (statistics.median(wall), statistics.median(cpu)) for what, (wall, cpu) in times.items()}


def calls_of(device):
    """Name -> what is timed: 2 heads, 16 tokens, head_dim 64, bf16 on the GPU and fp32 on the CPU."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = torch.randn(3, 1, 2, 16, 64, device=device, dtype=dtype)
    leaf = q.clone().requires_grad_()
    pattern = keyhole.causal() & keyhole.window(7)
    plan = keyhole.plan(pattern, 16)
    options = ([pattern.tensor()], [], None, None, 0.0, 1.0, 0, False, "auto")
    out = torch.empty_like(q)
    ready = (q, k, v, plan.core, out, None, None, None, None, 0.0, 1.0, 0, "auto", *place_of(q))
    loss = keyhole.attention(leaf, k, v, plan)
    gradient = torch.ones_like(loss)
    return {
        "nothing": lambda: q.new_empty(q.shape),
        "torch": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        "plan": lambda: keyhole.attention(q, k, v, plan),
        "pattern": lambda: keyhole.attention(q, k, v, pattern),
        "text": lambda: keyhole.attention(q, k, v, "causal & window(7)"),
        "_core": lambda: _core.forward(*ready),
        "gradient": lambda: keyhole.attention(leaf, k, v, plan),
        "backward": lambda: torch.autograd.grad(loss, leaf, gradient, retain_graph=True),
        "op": lambda: ops.attention_forward(q, k, v, *options),
        "op gradient": lambda: ops.attention_forward(leaf, k, v, *options),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="both that are there, unless given")
    parser.add_argument("--runs", type=int, default=31, help="the median is over these (%(default)s)")
    parser.add_argument("--calls", type=int, default=100, help="in each run (%(default)s)")
    parser.add_argument("--json", help="where to write the figures too")
    arguments = parser.parse_args()
    devices = [arguments.device] if arguments.device else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    torch.set_num_threads(1)  # on the CPU the call computes too: two heads of 16 tokens, not worth a second thread
    records = []
    for device in devices:
        name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
        print(f"{device}: {name}, torch {torch.__version__}, keyhole {keyhole.__version__}")
        print(f"median of {arguments.runs} runs of {arguments.calls} calls each, after {UNTIMED_CALLS} that are not timed")
        times = times_us(calls_of(device), device, arguments.runs, arguments.calls)
        for what, (us, cpu_us) in times.items():
            note = "" if (device, what) != ("cuda", "plan") else f"   bar {BAR_US:.0f}: {'met' if us <= BAR_US else 'MISSED'}"
            print(f"  {what:<12}{us:8.2f} us, CPU {cpu_us:8.2f}{note}", flush=True)
            records.append({"device": device, "machine": name, "torch": torch.__version__, "call": what, "us": us, "cpu_us": cpu_us})
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
