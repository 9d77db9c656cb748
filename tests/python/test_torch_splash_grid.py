# tests/python/test_torch_splash_grid.py
"""What SplashAttention promises: weights and gradients over a grid of alpha, k_keep, lengths and widths, on the CPU and
on a GPU; the example of the original; that later keys change nothing; memory."""

import itertools
import math

import keyhole
import pytest
import torch
from torch_reference import DEVICES, draw, needs_gpu

ALPHAS = [1.0, 1.25, 1.5, 2.0]
K_KEEPS = [None, 1, 8, 32, "all"]
HEAD_DIMS = [32, 64, 128]
# Rounding decides for a row whose last chosen key beats the next one by less than this. At alpha = 2, where gradients
# jump, it also does for a row that has a score so near its threshold.
UNDECIDED = 1e-5


class Definition:
    """Causal attention in fp64, a few rows at a time: out, and the gradients of what `dout` weighs."""

    def __init__(self, q, k, v, alpha, top_k):
        self.q, self.k, self.v = (x.detach().double() for x in (q, k, v))
        self.alpha, self.top_k = alpha, top_k
        self.lambdas = {}  # by the first row

    def chunks(self, at_once=1 << 25):
        rows = max(1, at_once // self.k.shape[-2])
        return [slice(first, first + rows) for first in range(0, self.q.shape[-2], rows)]

    def weights(self, rows):
        """(weights, slopes, whether rounding decides) of these rows."""
        last = torch.arange(self.q.shape[-2], device=self.q.device)[rows, None]
        visible = torch.arange(self.k.shape[-2], device=self.q.device) <= last
        scores = (self.q.shape[-1] ** -0.5 * self.q[..., rows, :] @ self.k.mT).masked_fill(~visible, -math.inf)
        undecided = torch.zeros(scores.shape[:-1], dtype=torch.bool, device=self.q.device)
        if self.top_k is not None and self.top_k < scores.shape[-1]:
            best, keys = scores.topk(self.top_k + 1)
            undecided |= best[..., -2] - best[..., -1] < UNDECIDED  # -inf - -inf is NaN: no comparison with it holds
            chosen = torch.zeros_like(visible.expand(scores.shape)).scatter_(-1, keys[..., :-1], True)
            scores = scores.masked_fill(~chosen, -math.inf)
        if self.alpha == 1:
            weights = scores.softmax(-1)
            return weights, weights, undecided
        power = 1 / (self.alpha - 1)
        if rows.start not in self.lambdas:
            self.lambdas[rows.start] = self.solved(scores, power)
        x = 1 + (scores - self.lambdas[rows.start]) / power
        if self.alpha == 2:
            undecided |= (x.abs() < UNDECIDED).any(-1)
        x = x.clamp(min=0)
        return x**power, torch.where(x > 0, x ** (power - 1), 0), undecided

    @staticmethod
    def solved(scores, power):
        """lambda, by bisection."""
        low = scores.amax(-1, keepdim=True)
        high = low + power + math.log(scores.shape[-1])
        for _ in range(45):
            middle = (low + high) / 2
            is_low = (1 + (scores - middle) / power).clamp(min=0).pow(power).sum(-1, keepdim=True) > 1
            low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
        return low

    def out(self):
        """(out, which rows rounding decides)."""
        parts = []
        for rows in self.chunks():
            weights, _, undecided = self.weights(rows)
            parts.append((weights @ self.v, undecided))
        return tuple(torch.cat(part, axis) for part, axis in zip(zip(*parts, strict=True), (-2, -1), strict=True))

    def gradients(self, dout):
        dout, scale = dout.double(), self.q.shape[-1] ** -0.5
        dq, dk, dv = [], torch.zeros_like(self.k), torch.zeros_like(self.v)
        for rows in self.chunks():
            weights, slopes, _ = self.weights(rows)
            dweights = dout[..., rows, :] @ self.v.mT
            delta = (slopes * dweights).sum(-1, keepdim=True) / slopes.sum(-1, keepdim=True)
            dscores = scale * slopes * (dweights - delta)
            dq.append(dscores @ self.k)
            dk += dscores.mT @ self.q[..., rows, :]
            dv += weights.mT @ dout[..., rows, :]
        return torch.cat(dq, -2), dk, dv


def expect_definition(alpha, k_keep, length, head_dim, device, dtype, heads=2):
    top_k = length if k_keep == "all" else k_keep
    inputs = [draw(1, heads, length, head_dim, device=device, dtype=dtype, seed=i).requires_grad_() for i in range(3)]
    definition = Definition(*inputs, alpha, top_k)
    want, undecided = definition.out()
    assert undecided.sum() <= 1 + 3e-3 * undecided.numel()  # else nothing is compared
    dout = draw(1, heads, length, head_dim, device=device, dtype=dtype, seed=3).masked_fill(undecided[..., None], 0)
    out = keyhole.nn.SplashAttention(head_dim, alpha=alpha, k_keep=top_k)(*inputs)
    grads = torch.autograd.grad(out, inputs, dout)
    # 16 bits: results are rounded to them, and weights too where rows are long.
    allowed = 1e-4 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    wanted = (want, *definition.gradients(dout))
    for name, got, expected in zip(("out", "dq", "dk", "dv"), (out, *grads), wanted, strict=True):
        error = (got.double() - expected).abs()
        if name == "out":
            error = error.masked_fill(undecided[..., None], 0)
        size = expected.abs().max()
        error = error.max() / (size if size > 1e-9 else 1)  # of one key alone, the score has no gradient
        assert error < allowed, f"{name} is off by {error:.1e} of its largest"


# Widths take turns: every alpha and k_keep meets each of them over the lengths.
GRID = list(enumerate(itertools.product(ALPHAS, K_KEEPS)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("length", [1, 63, 512])
@pytest.mark.parametrize(("number", "case"), GRID)
def test_grid(number, case, length, device):
    head_dim = HEAD_DIMS[(number + [1, 63, 512].index(length)) % 3]
    expect_definition(*case, length, head_dim, device, torch.float32)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("number", "case"), GRID)
def test_grid_of_4k(number, case, dtype):
    expect_definition(*case, 4096, HEAD_DIMS[number % 3], "cuda", dtype)


@needs_gpu
@pytest.mark.parametrize("case", [(1.25, None), (1.5, None), (1.5, 8), (1.5, 32), (2.0, None), (1.0, 8)])
def test_grid_of_32k(case):
    expect_definition(*case, 32768, 64, "cuda", torch.bfloat16, heads=1)


@pytest.mark.parametrize("device", DEVICES)
def test_the_example_of_the_original(device):
    attention = keyhole.nn.SplashAttention(head_dim=64, alpha=1.5, k_keep=8, sm_scale=0.125)
    batch_size, num_heads, seq_len, head_dim = 2, 8, 512, 64
    Q = torch.randn(batch_size, num_heads, seq_len, head_dim, device=device)  # noqa: N806
    K = torch.randn(batch_size, num_heads, seq_len, head_dim, device=device)  # noqa: N806
    V = torch.randn(batch_size, num_heads, seq_len, head_dim, device=device)  # noqa: N806
    Q_idx = torch.arange(seq_len, device=device).unsqueeze(0).unsqueeze(0).expand(batch_size, num_heads, -1)  # noqa: N806
    K_idx = torch.arange(seq_len, device=device).unsqueeze(0).unsqueeze(0).expand(batch_size, num_heads, -1)  # noqa: N806
    output = attention(Q, K, V, Q_idx, K_idx)
    assert torch.equal(output, attention(Q, K, V))
    assert torch.equal(output, keyhole.attention(Q, K, V, "causal", alpha=1.5, top_k=8))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("alpha", "k_keep"), [(1.25, None), (1.5, None), (1.5, 8), (2.0, None)])
def test_later_keys_change_no_earlier_row(alpha, k_keep, dtype, device):
    """384 is where a query tile ends on every backend: docs/numerics.md says what queries of one tile share."""
    splash = keyhole.nn.SplashAttention(64, alpha=alpha, k_keep=k_keep)
    q, k, v = (draw(1, 2, 600, 64, device=device, dtype=dtype, seed=i) for i in range(3))
    before = splash(q, k, v)
    k[:, :, 384:], v[:, :, 384:] = -k[:, :, 384:], 1000.0
    assert torch.equal(splash(q, k, v)[:, :, :384], before[:, :, :384])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
class TestLaws:
    """What holds without a reference: results that are equal but for rounding."""

    rules = pytest.mark.parametrize(
        "rule",
        [{"alpha": 1.25}, {"alpha": 1.5}, {"alpha": 1.5, "top_k": 8}, {"alpha": 2.0}, {"top_k": 8}],
        ids=str,
    )

    def inputs(self, dtype, device):
        return [draw(1, 2, 700, 64, device=device, dtype=dtype, seed=i) for i in range(3)]

    def expect_near(self, a, b, dtype, more=2e-5):
        unit = 0 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
        assert (a.double() - b.double()).abs().max() < more + unit

    @rules
    def test_a_shift_of_all_scores_moves_lambda_alone(self, rule, dtype, device):
        q, k, v = self.inputs(dtype, device)
        q[..., 0], k[..., 0] = 1, 0
        out, lse = keyhole.attention(q, k, v, "dense", return_lse=True, **rule)
        k[..., 0] = 32  # times head_dim ** -0.5: 4
        shifted, shifted_lse = keyhole.attention(q, k, v, "dense", return_lse=True, **rule)
        self.expect_near(shifted, out, dtype)
        assert ((shifted_lse - lse - 4).abs() < 4e-5 * (1 + lse.abs())).all()

    @rules
    def test_keys_may_come_in_any_order(self, rule, dtype, device):
        q, k, v = self.inputs(dtype, device)
        order = torch.randperm(700, generator=torch.Generator().manual_seed(1)).to(device)
        turned = keyhole.attention(q, k[:, :, order], v[:, :, order], "dense", **rule)
        self.expect_near(turned, keyhole.attention(q, k, v, "dense", **rule), dtype)

    @rules
    def test_a_plan_of_parts_is_one_list(self, rule, dtype, device):
        q, k, v = self.inputs(dtype, device)
        parts = "window(20) | dilated(9) | random(1, 16, 3)"
        whole = keyhole.from_dense(keyhole.parse(parts).mask(700, 700))
        self.expect_near(keyhole.attention(q, k, v, parts, **rule), keyhole.attention(q, k, v, whole, **rule), dtype)

    def test_a_top_k_above_the_support_changes_nothing(self, dtype, device):
        q, k, v = self.inputs(dtype, device)
        want = keyhole.attention(q, k, v, "causal", alpha=2.0)
        self.expect_near(keyhole.attention(q, k, v, "causal", alpha=2.0, top_k=60), want, dtype)

    @pytest.mark.parametrize("top_k", [None, 8])
    def test_alpha_tends_to_1(self, top_k, dtype, device):
        q, k, v = self.inputs(dtype, device)
        want = keyhole.attention(q, k, v, "causal", top_k=top_k)
        self.expect_near(keyhole.attention(q, k, v, "causal", alpha=1.001, top_k=top_k), want, dtype, more=0.01)


def key_lists(causal):
    """60 queries that list some groups of four keys, and the pairs that this means."""
    generator = torch.Generator().manual_seed(7)
    groups = torch.stack([torch.randperm(15, generator=generator)[:6] for _ in range(60)]).to(torch.int32)
    counts = torch.randint(0, 7, (60,), generator=generator, dtype=torch.int32)
    pairs = torch.zeros(60, 60, dtype=torch.bool)
    for query, (group, count) in enumerate(zip(groups, counts, strict=True)):
        for first in 4 * group[:count]:
            pairs[query, first : first + 4] = True
    options = {"keys_per_entry": 4, "causal": causal}
    return lambda device: keyhole.KeyLists(
        groups[None, None].to(device), counts=counts[None, None].to(device), **options
    ), pairs.tril() if causal else pairs


def tile_lists():
    """Of 32 x 32, the smallest tiles that a kernel of entmax on GPUs follows."""
    tiles = torch.tensor([[0, 2], [1, 0], [3, 1], [2, -1]], dtype=torch.int32)
    pairs = torch.zeros(128, 128, dtype=torch.bool)
    for row, listed in enumerate(tiles):
        for tile in listed[listed >= 0]:
            pairs[32 * row : 32 * row + 32, 32 * tile : 32 * tile + 32] = True
    return lambda device: keyhole.TileLists(tiles[None, None].to(device), tile=(32, 32)), pairs


LISTS = {"keys": key_lists(False), "keys up to the query": key_lists(True), "tiles": tile_lists()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rule", [{"alpha": 1.5}, {"alpha": 1.25}, {"alpha": 2.0, "top_k": 3}, {"top_k": 5}], ids=str)
@pytest.mark.parametrize("name", LISTS)
def test_lists_are_their_pairs(name, rule, dtype, device):
    make, pairs = LISTS[name]
    length = len(pairs)
    inputs = [draw(1, 2, length, 64, device=device, dtype=dtype, seed=i).requires_grad_() for i in range(3)]
    dout = draw(1, 2, length, 64, device=device, dtype=dtype, seed=3)
    results = []
    for lists in (make(device), keyhole.from_dense(pairs)):
        out = keyhole.attention(*inputs, lists, **rule)
        results.append((out, *torch.autograd.grad(out, inputs, dout)))
    for what, got, want in zip(("out", "dq", "dk", "dv"), *results, strict=True):
        allowed = (1e-4 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps) * want.abs().max()
        assert (got - want).abs().max() <= allowed, what


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("alpha", "k_keep"), [(1.25, None), (1.5, None), (1.5, 8), (1.0, 8)])
def test_what_is_kept_between_the_passes(alpha, k_keep, device):
    """At most 300 bytes a row besides q, k, v and the result, at any length."""
    splash = keyhole.nn.SplashAttention(64, alpha=alpha, k_keep=k_keep)
    for length in (512, 2048):
        inputs = [draw(1, 2, length, 64, device=device, seed=i).requires_grad_() for i in range(3)]
        sizes = {}

        def keep(tensor, sizes=sizes):
            sizes[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = splash(*inputs)
        for tensor in (*inputs, out):
            assert sizes.pop(tensor.data_ptr(), None) is not None
        per_row = sum(sizes.values()) / (2 * length)
        assert 4 <= per_row <= 300, f"{per_row:.0f} bytes a row"


@needs_gpu
@pytest.mark.parametrize(("alpha", "k_keep"), [(1.25, None), (1.5, None), (1.5, 8), (1.0, 8)])
def test_nothing_grows_with_the_square_of_the_length(alpha, k_keep):
    """What a step of training takes besides its tensors, workspaces included: they are memory of torch. The scores of
    32,768 tokens are 2 GiB in 16 bits."""
    splash = keyhole.nn.SplashAttention(64, alpha=alpha, k_keep=k_keep)
    inputs = [draw(1, 1, 32768, 64, device="cuda", dtype=torch.bfloat16, seed=i).requires_grad_() for i in range(3)]
    for _ in range(2):  # the first call loads code and compiles the plan
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        splash(*inputs).sum().backward()
        torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < 4096 * 32768


@pytest.mark.parametrize("device", DEVICES)
def test_second_derivatives_are_refused(device):
    q = draw(1, 1, 20, 16, device=device).requires_grad_()
    out = keyhole.attention(q, q, q, "causal", alpha=1.5)
    (gradient,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        gradient.sum().backward()
