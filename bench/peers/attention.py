# bench/peers/attention.py
# Attention as Keyhole and PyTorch have it: each made for one problem, called with its q, k and v.
import importlib
import math
import re
import time

import torch
from cases import has_nan
from patterns import TILE, count_tiles, pattern_of, repeated_in
from torch._functorch import config as functorch_config
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}

# The gradient of one forward pass is taken again and again, which compiled code allows when it keeps what it saved.
functorch_config.donated_buffer = False


class Refused(Exception):
    """This attention does not take the case; the text says why."""


class Wrong(Refused):
    """It took the case, and its result is not that of the pattern."""


class Problem:
    """Tensors of one case, its pattern, and how many pairs each tile of it keeps."""

    def __init__(self, case, device):
        self.case, self.device = case, device
        shape = (case.batch, case.heads, case.length, case.head_dim)
        torch.manual_seed(1)

        def normal():
            return torch.randn(shape, device=device, dtype=DTYPES[case.dtype])

        q, k, v = (normal() for _ in "qkv")
        if has_nan(case):
            v[0, 0, 0, 0] = math.nan
        self.inputs = tuple(x.requires_grad_() for x in (q, k, v))
        self.gradient = normal()
        self.pattern = pattern_of(case, device)
        self.counts = count_tiles(self.pattern, case.length, device)
        self.pairs = int(self.counts.sum(dtype=torch.int64))
        self.scale = case.head_dim**-0.5
        self.notes = {}  # by name: what making it has told besides, as fields of its record

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


def import_keyhole():
    """The Python package, or the way to it."""
    try:
        return importlib.import_module("keyhole")
    except ImportError as error:
        raise Refused(
            f"the Python package keyhole cannot be imported ({error}): install it by `pip install .` in the repository "
            "(without a network: `pip install --no-build-isolation .`), or leave keyhole out of --who"
        ) from error


def keyhole(name, **options):
    """The plan is made before, once for all layers and steps, as a user would; with the first call it is timed apart."""

    def make(problem):
        package, case = import_keyhole(), problem.case
        package.plan_cache.clear()
        pattern = pattern_for_keyhole(package, case)
        begin = time.perf_counter()
        plan = package.plan(pattern, case.length)
        with torch.no_grad():
            package.attention(*problem.inputs, plan, **options)
        if problem.device == "cuda":
            torch.cuda.synchronize()
        plan_ms = 1e3 * (time.perf_counter() - begin)
        kernel = kernel_of(package, problem, plan, options.get("backend", "auto"))
        report = plan.explain(tile=tile_in(kernel))
        problem.notes[name] = {
            "kernel": kernel,
            "pairs": report.pairs,
            "visited_pairs": report.visited_pairs,
            "plan_ms": plan_ms,
        }
        return lambda q, k, v: package.attention(q, k, v, plan, **options)

    return make


def pattern_for_keyhole(package, case):
    """Its text; what is repeated, which is no word of Keyhole's, is one large bitmap in all places."""
    if not (repeated := repeated_in(case.pattern)):
        return case.pattern
    rows, columns, text = repeated
    down, across = (-(-case.length // period) for period in (rows, columns))
    offsets = range(0, (down + 1) * across, across)
    pairs = package.parse(text).mask(rows, columns, offset=0)
    return package.bitmaps(rows, columns, [*offsets], [*range(across)] * down, [0] * down * across, pairs)


def kernel_of(package, problem, plan, backend):
    """The name of the forward kernel, as `keyhole bench` records it."""
    q, _, v = problem.inputs
    return package._core.kernel_for_forward(q, v, plan.core, None, None, 0.0, backend)


def tile_in(kernel):
    """(queries, keys), of "..., tiles 128x64"."""
    return tuple(map(int, re.search(r"tiles (\d+)x(\d+)", kernel).groups()))


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
            try:
                with sdpa_kernel(backend):
                    return scaled_dot_product_attention(q, k, v, **options)
            except RuntimeError as error:
                if "No available kernel" in str(error):  # PyTorch's words for a case that the backend does not take
                    raise Refused(str(error)) from error
                raise

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
    allows = problem.pattern.allows

    def mask_mod(batch, head, q, k):
        return allows(q, k)

    def listed(chosen):
        order = torch.argsort(chosen.to(torch.int8), dim=-1, descending=True, stable=True)
        return chosen.sum(-1, dtype=torch.int32)[None, None], order.to(torch.int32)[None, None].contiguous()

    is_full = problem.counts == TILE * TILE
    is_partial = (problem.counts > 0) & ~is_full
    block_mask = BlockMask.from_kv_blocks(*listed(is_partial), *listed(is_full), BLOCK_SIZE=TILE, mask_mod=mask_mod)
    # Every pattern is compiled anew; without the reset Dynamo gives up after eight.
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True) if problem.device == "cuda" else flex_attention
    return lambda q, k, v: compiled(q, k, v, block_mask=block_mask)


def warm_up_keyhole(device):
    """What the first call of a process loads is not part of a plan's time."""
    q = torch.zeros(1, 1, TILE, 64, device=device, dtype=torch.bfloat16)
    import_keyhole().attention(q, q, q, "causal")


def warm_up_flex():
    """The first compilation of a process is the slow one: done before anything is timed."""
    q = torch.randn(1, 1, TILE, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    out = torch.compile(flex_attention, dynamic=False, fullgraph=True)(q, q, q)
    torch.autograd.grad(out.sum(), q)


# By name, in the order of checking: the first is what the others are compared with.
ATTENTIONS = {
    "keyhole": keyhole("keyhole"),
    "deterministic": keyhole("deterministic", deterministic=True),
    "sm80": keyhole("sm80", backend="sm80"),
    "fa2": sdpa(SDPBackend.FLASH_ATTENTION),
    "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
    "math": sdpa(SDPBackend.MATH),
    "flex": flex,
    "naive": naive,
}
