#!/usr/bin/env python3
# bench/peers/splash.py [--cases NAME,...] [--json FILE]    on a GPU; --device cpu --len 512 tries the script
# Times entmax and top-K attention beside softmax and AdaSplash (PyPI: adasplash), in one process on one GPU: bf16, causal, a
# batch of 16 heads, queued, forward as training runs it. Each bar of the project with its verdict; rows of the results are
# checked against the definition before anything is timed. Status 1: a result is wrong.
import argparse
import json
import sys
from typing import NamedTuple

import keyhole
import torch
from agreement import sampled_rows
from attention import DTYPES
from cases import OPERATIONS
from timing import Timer

HEADS = 16


class Case(NamedTuple):
    name: str
    bars: tuple = (None, None)  # ms forward and backward, or (a case before this one, how many times its time)
    alpha: float = 1.5
    top_k: int | None = None
    length: int = 8192
    head_dim: int = 64
    dtype: str = "bf16"
    scores: str = "normal"  # or sharp: q x 4; recency: they grow by 0.05 a key; adversarial: in every second 128 keys alone
    pattern: str = "causal"
    options: dict = {}


CASES = [
    Case("softmax", alpha=1.0),
    Case("alpha 1.5", (0.40, 0.60)),
    Case("adasplash"),
    Case("alpha 1.5 in order", (None, ("alpha 1.5", 1.1)), options={"deterministic": True}),
    Case("alpha 1.5 sharp", (("alpha 1.5", 1), ("alpha 1.5", 1)), scores="sharp"),
    Case("alpha 1.5 recency", (("alpha 1.5", 1), ("alpha 1.5", 1)), scores="recency"),
    Case("alpha 1.5 adversarial", (("alpha 1.5", 3), ("alpha 1.5", 3)), scores="adversarial"),
    Case("alpha 1.5 top 8", (0.36, 0.35), top_k=8),
    Case("alpha 1.25", (0.85, 1.1), alpha=1.25),
    Case("alpha 2", alpha=2.0),
    Case("alpha 1.5 d128", (1.8 * 0.40, 1.8 * 0.60), head_dim=128),
    Case("alpha 1.5 top 8 d128", (1.8 * 0.36, 1.8 * 0.35), top_k=8, head_dim=128),
    Case("alpha 1.25 d128", (1.8 * 0.85, 1.8 * 1.1), alpha=1.25, head_dim=128),
    Case("alpha 1.5 sm80", (0.60, 0.60), options={"backend": "sm80"}),
    Case("softmax 32k", alpha=1.0, length=32768),
    Case("alpha 1.5 32k", (3.4, 3.0), length=32768),
    Case("alpha 1.5 d128 32k", (1.8 * 3.4, 1.8 * 3.0), length=32768, head_dim=128),
    Case("softmax fp32", alpha=1.0, dtype="f32"),
    Case("alpha 1.5 fp32", (("softmax fp32", 1), ("softmax fp32", 0.5)), dtype="f32"),
    Case("alpha 1.5 window 4095", pattern="causal & window(4095)"),
    Case("alpha 1.5 window 1023", pattern="causal & window(1023)"),
    Case("adasplash 32k", length=32768),  # it tunes its kernels for minutes
]


def inputs_of(case, device):
    torch.manual_seed(1)
    shape = (1, HEADS, case.length, case.head_dim)
    q, k, v, dout = (torch.randn(shape, device=device) for _ in range(4))
    if case.scores == "sharp":
        q *= 4
    if case.scores in ("recency", "adversarial"):  # two columns of q . k: what a bias rounds to, and the rest
        at = torch.arange(case.length, device=device)
        bias = 0.05 * at * (at // 128 % 2 if case.scores == "adversarial" else 1)
        q[..., :2] = case.head_dim**0.5
        k[..., 0] = bias.to(DTYPES[case.dtype])
        k[..., 1] = bias - k[..., 0]
    return *(x.to(DTYPES[case.dtype]).requires_grad_() for x in (q, k, v)), dout.to(DTYPES[case.dtype])


def call_of(case):
    if case.name.startswith("adasplash"):
        import adasplash

        return lambda q, k, v: adasplash.adasplash(q, k, v, alpha=case.alpha, is_causal=True)
    plan = keyhole.plan(case.pattern, case.length)
    return lambda q, k, v: keyhole.attention(q, k, v, plan, alpha=case.alpha, top_k=case.top_k, **case.options)


def expected_rows(case, q, k, v, rows):
    """out of some queries by the definition, in fp64."""
    scores = case.head_dim**-0.5 * q[0, :, rows].double() @ k[0].double().mT
    distance = rows[:, None] - torch.arange(case.length, device=q.device)
    left = int(case.pattern.partition("window(")[2].rstrip(")") or case.length)
    scores = scores.masked_fill((distance < 0) | (distance > left), -torch.inf)
    if case.top_k:
        scores = scores.masked_fill(scores < scores.topk(case.top_k).values[..., -1:], -torch.inf)
    if case.alpha == 1:
        return scores.softmax(-1) @ v[0].double()
    bend = case.alpha - 1
    low = scores.amax(-1, keepdim=True)
    high = low + 1 / bend + 12
    for _ in range(60):
        middle = (low + high) / 2
        is_low = (1 + bend * (scores - middle)).clamp(min=0).pow(1 / bend).sum(-1, keepdim=True) > 1
        low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
    return (1 + bend * (scores - low)).clamp(min=0).pow(1 / bend) @ v[0].double()


def measure(case, timer):
    *inputs, dout = inputs_of(case, timer.device)
    call = call_of(case)
    out = call(*inputs)
    rows = sampled_rows(case.length, timer.device)
    error = (out[0, :, rows].double() - expected_rows(case, *(x.detach() for x in inputs), rows)).abs().max().item()
    # AdaSplash stops its search early; what is wrong is off by a value.
    if not error < (0.05 if case.dtype == "bf16" else 1e-4):
        raise ValueError(f"out is wrong by {error:.1e}")
    forward = timer.times(lambda: call(*inputs))
    backward = timer.times(lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True))
    return {"case": case.name, "forward_ms": forward["ms"], "backward_ms": backward["ms"], "error": error}


def line_of(case, record, known):
    """Times, bars and verdicts; a bar that is so many times another case's time needs that case."""
    line = f"{case.name:22}"
    for operation, bar in zip(OPERATIONS, case.bars):
        time = record[f"{operation}_ms"]
        if isinstance(bar, tuple):
            bar = bar[1] * known[bar[0]][f"{operation}_ms"] if bar[0] in known else None
        line += f"{time:10.3f}" + (" " * 16 if bar is None else f"{bar:8.3f} {'met' if time <= bar else 'MISSED':7}")
    return f"{line}   error {record['error']:.1e}"


def main():
    parser = argparse.ArgumentParser(description="Entmax and top-K attention beside softmax and AdaSplash.")
    parser.add_argument("--cases", help="comma-separated names; default: all")
    parser.add_argument("--json", help="where the records go, one a line")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--len", type=int, help="instead of the lengths of the cases")
    arguments = parser.parse_args()
    names = arguments.cases.split(",") if arguments.cases else [case.name for case in CASES]
    place = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"
    print(f"{place}, torch {torch.__version__}, keyhole {keyhole.__version__}; {HEADS} heads; ms, queued, medians; bars")
    print(f"{'case':22}   forward     bar            backward     bar")
    timer, known, status = Timer(arguments.device, pause_s=0), {}, 0
    for case in [case for case in CASES if case.name in names]:
        case = case._replace(length=arguments.len or case.length)
        try:
            known[case.name] = measure(case, timer)
            print(line_of(case, known[case.name], known), flush=True)
        except (ImportError, NotImplementedError) as error:
            print(f"{case.name:22} not run: {str(error).splitlines()[0]}", flush=True)
        except ValueError as error:
            print(f"{case.name:22} WRONG: {error}", flush=True)
            status = 1
        torch.cuda.empty_cache()
        if arguments.json:
            with open(arguments.json, "w") as file:
                file.writelines(json.dumps(record) + "\n" for record in known.values())
    return status


if __name__ == "__main__":
    sys.exit(main())
