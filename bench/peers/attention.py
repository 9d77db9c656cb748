# bench/peers/attention.py
# The peers: attention as PyTorch has it, each made for one problem, checked, and timed as bench/gpu_kernels.cpp times ours.
import functools
import itertools
import math
import statistics
import time

import torch
from cases import TILE, count_tiles, pattern_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
# Of the size of a sampled row. Scores rounded to bf16 cost up to 1 %; one wrong key among n changes a row by sqrt(2 / n).
TOLERANCE = {"bf16": 2e-2, "f16": 4e-3, "f32": 1e-4}
CHECKED_ROWS = 32
LONGEST_BSR_ROW = 16384  # keys: bsr_softmax holds a row in the registers of one program


class Refused(Exception):
    """A peer cannot do this case; the text says why."""


class Problem:
    """Tensors of one case, its pattern, and how many pairs each tile of it keeps."""

    def __init__(self, case, device):
        self.case, self.device = case, device
        shape = (case.batch, case.heads, case.length, case.head_dim)

        def normal():
            return torch.randn(shape, device=device, dtype=DTYPES[case.dtype])

        self.inputs = tuple(normal().requires_grad_() for _ in "qkv")
        self.gradient = normal()
        self.pattern = pattern_of(case, device)
        self.counts = count_tiles(self.pattern, case.length, device)
        self.pairs = int(self.counts.sum(dtype=torch.int64))
        self.scale = case.head_dim**-0.5

    def is_plain(self):
        return self.case.pattern in ("dense", "causal")

    def allowed(self, rows):
        """[rows, keys]: which pairs of these queries attend."""
        keys = torch.arange(self.case.length, device=self.device)
        return self.pattern.allows(rows[:, None], keys[None])

    def scores_fit(self):
        """Says no before a mask is made whose scores could never be held."""
        case = self.case
        needed = case.batch * case.heads * case.length**2 * 4
        if self.device == "cuda" and needed > torch.cuda.get_device_properties(0).total_memory:
            raise Refused(f"one matrix of scores is {needed / 1e9:,.0f} GB")


def sdpa(backend):
    def make(problem):
        options = {"is_causal": problem.case.pattern == "causal"}
        if not problem.is_plain() and backend != SDPBackend.MATH:
            raise Refused("this backend of scaled_dot_product_attention takes no such pattern")
        if backend == SDPBackend.MATH:
            problem.scores_fit()
        if not problem.is_plain():
            options["attn_mask"] = problem.allowed(torch.arange(problem.case.length, device=problem.device))

        def attention(q, k, v):
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, **options)

        return attention

    return make


def naive(problem):
    problem.scores_fit()
    rows = torch.arange(problem.case.length, device=problem.device)
    masked = None if problem.case.pattern == "dense" else ~problem.allowed(rows)

    def attention(q, k, v):
        scores = q @ k.transpose(-1, -2) * problem.scale
        if masked is not None:
            scores = scores.masked_fill(masked, -math.inf)
        return torch.softmax(scores, -1) @ v

    return attention


def flex(problem):
    """The tiles are counted, not found by create_block_mask: the same lists, without a second compilation."""

    def listed(chosen):
        order = torch.argsort(chosen.to(torch.int8), dim=-1, descending=True, stable=True)
        return chosen.sum(-1, dtype=torch.int32)[None, None], order.to(torch.int32)[None, None].contiguous()

    allows = problem.pattern.allows

    def mask_mod(batch, head, q, k):
        return allows(q, k)

    is_full = problem.counts == TILE * TILE
    is_partial = (problem.counts > 0) & ~is_full
    block_mask = BlockMask.from_kv_blocks(*listed(is_partial), *listed(is_full), BLOCK_SIZE=TILE, mask_mod=mask_mod)
    # Every pattern is compiled anew; without the reset Dynamo gives up after eight.
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True) if problem.device == "cuda" else flex_attention
    return lambda q, k, v: compiled(q, k, v, block_mask=block_mask)


def warm_up_flex():
    """The first compilation of a process is the slow one: done before anything is timed."""
    q = torch.randn(1, 1, TILE, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    out = torch.compile(flex_attention, dynamic=False, fullgraph=True)(q, q, q)
    torch.autograd.grad(out.sum(), q)


def bsr(problem):
    """Scores, softmax and product by the block-sparse kernels that torch.sparse ships; partial tiles by a bias of -inf."""
    from torch.sparse import _triton_ops

    if problem.case.pattern == "dense":
        raise Refused("nothing is sparse here")
    if _triton_ops.sampled_addmm is None:
        raise Refused("the block-sparse kernels of torch.sparse need Triton and a GPU")
    kept = problem.counts > 0
    longest = int(kept.sum(-1).max()) * TILE
    if longest > LONGEST_BSR_ROW:
        raise Refused(f"a row holds {longest:,} keys; bsr_softmax wants it in the registers of one program")
    q_tiles, k_tiles = kept.nonzero(as_tuple=True)
    score_bytes = problem.case.batch * problem.case.heads * len(q_tiles) * TILE * TILE * 2
    if problem.device == "cuda" and 6 * score_bytes > torch.cuda.get_device_properties(0).total_memory:
        raise Refused(f"the kept tiles are {score_bytes / 1e9:,.0f} GB, and are held several times")
    at = torch.arange(TILE, device=problem.device)
    dtype = DTYPES[problem.case.dtype]
    bias = torch.empty(len(q_tiles), TILE, TILE, device=problem.device, dtype=dtype)
    for begin in range(0, len(q_tiles), 1024):
        rows = q_tiles[begin : begin + 1024, None, None] * TILE + at[:, None]
        columns = k_tiles[begin : begin + 1024, None, None] * TILE + at
        allowed = problem.pattern.allows(rows, columns)
        bias[begin : begin + 1024] = torch.where(allowed, 0.0, -math.inf)
    begins = torch.nn.functional.pad(kept.sum(-1).cumsum(0), (1, 0))
    tiles = torch.sparse_bsr_tensor(begins, k_tiles, bias, size=(problem.case.length,) * 2)

    def attention(q, k, v):
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        with torch.no_grad():
            scores = _triton_ops.sampled_addmm(tiles, q, k.transpose(-1, -2), alpha=problem.scale)
            weights = _triton_ops.bsr_softmax(scores, max_row_nnz=longest)
            return _triton_ops.bsr_dense_mm(weights, v).view(problem.inputs[0].shape)

    return attention


PEERS = {
    "fa2": sdpa(SDPBackend.FLASH_ATTENTION),
    "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
    "math": sdpa(SDPBackend.MATH),
    "flex": flex,
    "sparse": bsr,
    "naive": naive,
}


def sampled_rows(length, device):
    edges = [0, 1, TILE - 1, TILE, length // 2 - 1, length // 2, length - TILE, length - 1]
    drawn = torch.randint(length, (CHECKED_ROWS - len(edges),), generator=torch.Generator().manual_seed(1))
    return torch.tensor(sorted({*edges, *drawn.tolist()}), device=device)


def expected_rows(problem, rows):
    """out and dq of some queries by the definition, in fp32, each with the size that an error is held against."""
    q, k, v = (x.detach().float() for x in problem.inputs)
    d_out = problem.gradient[:, :, rows].float()
    scores = (q[:, :, rows] @ k.transpose(-1, -2) * problem.scale).masked_fill(~problem.allowed(rows), -math.inf)
    weights = torch.softmax(scores, -1)
    out = weights @ v
    d_weights, delta = d_out @ v.transpose(-1, -2), (d_out * out).sum(-1, keepdim=True)
    dq = weights * (d_weights - delta) @ k * problem.scale
    # The terms of the difference count, not what is left of them: nothing is left in a row that attends to one key.
    dq_size = (weights * (d_weights.abs() + delta.abs())).norm(dim=-1) * problem.scale * problem.case.head_dim**0.5
    return (out, out.norm(dim=-1)), (dq, dq_size)


def check(problem, attention):
    """Raises Refused when a sampled row of the output or of dq is not that of the pattern."""
    rows = sampled_rows(problem.case.length, problem.device)
    expected_out, expected_dq = expected_rows(problem, rows)

    def compare(name, got, want, size):
        error = ((got[:, :, rows].float() - want).norm(dim=-1) / size).max().item()
        if not error <= TOLERANCE[problem.case.dtype]:
            raise Refused(f"{name} is wrong by {error:.2g} of its size: another mask, or a wrong result")

    out = attention(*problem.inputs)
    compare("out", out.detach(), *expected_out)
    if out.requires_grad:
        compare("dq", torch.autograd.grad(out, problem.inputs[0], problem.gradient)[0], *expected_dq)


def median_ms(call, device):
    """Warmed up by 3 calls, then queued back to back; short calls behind a pause, or queueing them would be measured."""
    if device == "cpu":
        begin = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - begin)

    def mark():
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    for _ in range(3):
        call()
    before = mark()
    call()
    after = mark()
    after.synchronize()
    first_ms = before.elapsed_time(after)
    if first_ms < 2:
        torch.cuda._sleep(40_000_000)  # cycles: about 20 ms
    marks = [mark()]
    for _ in range(3 if first_ms > 100 else 15):
        call()
        marks.append(mark())
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in itertools.pairwise(marks))


def peak_bytes(call, held, device):
    """The most that was allocated during the call beyond what was there, and the tensors `held` for it."""
    if device == "cpu":
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    del result
    return torch.cuda.max_memory_allocated() - before + sum(x.numel() * x.element_size() for x in held)


def measure(problem, attention):
    """Times and peak memory of the forward pass as training runs it, and of the backward pass alone."""

    def forward():
        return attention(*problem.inputs)

    def gradients(out, keeps_graph=False):
        return torch.autograd.grad(out, problem.inputs, problem.gradient, retain_graph=keeps_graph)

    record = {"forward_ms": median_ms(forward, problem.device)}
    record["forward_bytes"] = peak_bytes(forward, problem.inputs, problem.device)
    out = forward()
    if not out.requires_grad:
        return record | {"why_no_backward": "these kernels have no gradient"}
    record["backward_ms"] = median_ms(functools.partial(gradients, out, keeps_graph=True), problem.device)
    del out
    held = (*problem.inputs, problem.gradient)
    record["backward_bytes"] = peak_bytes(lambda: gradients(forward()), held, problem.device)
    return record


def profile(problem, attention, operation):
    """One call between the marks of a profiler, after one outside them."""
    attention(*problem.inputs)
    out = None
    if operation == "backward":
        out = attention(*problem.inputs)
        torch.autograd.grad(out, problem.inputs, problem.gradient, retain_graph=True)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    if out is None:
        attention(*problem.inputs)
    else:
        torch.autograd.grad(out, problem.inputs, problem.gradient)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


def measured_peaks():
    """What the machine does at best, in the same run: TFLOP/s of a bf16 product, TB/s of a copy (read and written)."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    matmul_ms = median_ms(lambda: a @ b, "cuda")
    source = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    copy_ms = median_ms(lambda: target.copy_(source), "cuda")
    return {"matmul_tflops": 2 * 8192**3 / matmul_ms * 1e-9, "copy_tb_per_s": 2 * source.numel() / copy_ms * 1e-9}
