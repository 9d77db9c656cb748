"""Keys chosen from data, on torch tensors: the definition, gradients, registered ops, compiled graphs, CUDA graphs."""

from __future__ import annotations

import keyhole
import numpy as np
import pytest
import torch
import torch._dynamo.testing
from keyhole.torch_select import ops
from select_reference import chosen_of
from torch_reference import DEVICES, captured, check_close, draw, masks_of, needs_gpu

E4M3 = torch.float8_e4m3fn
LOCAL = keyhole.causal() & keyhole.window(9)
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def indexer(batch=1, heads=4, groups=1, q_len=40, entries=40, dim=16, device="cpu", dtype=torch.float32, has_w=True):
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    q = draw(batch, heads, q_len, dim, device=device, dtype=dtype)
    k = draw(batch, groups, entries, dim, device=device, dtype=dtype, seed=1)
    w = draw(batch, heads, q_len, device=device, dtype=sums, seed=2) if has_w else None
    return q, k, w


def scores_of(q, k, w=None, k_scale=None):
    """The definition, differentiable, in the dtype of the inputs."""
    groups = k.shape[1]
    products = (q.unflatten(1, (groups, -1)) @ k.transpose(-1, -2)[:, :, None]).relu()
    if w is not None:
        products = products * w.unflatten(1, (groups, -1))[..., None]
    scores = products.sum(2)
    return scores if k_scale is None else scores * k_scale[:, :, None]


def loss_of(scores, q, k, lse, listed, scale=None, softcap=0.0):
    """The definition in torch; `listed` is a mask [batch, groups, q_len, k_len]."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    logits = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    weights = (logits - lse[..., None]).exp().unflatten(1, (scores.shape[1], -1)).sum(2)
    weights = torch.where(listed, weights, 0)
    p = weights / weights.sum(-1, keepdim=True).clamp_min(1e-300)
    is_empty = ~listed.any(-1, keepdim=True)
    log_q = torch.where(is_empty, 0, scores.masked_fill(~listed, -torch.inf)).log_softmax(-1)
    return torch.where(p > 0, p * (p.clamp_min(1e-300).log() - torch.where(listed, log_q, 0)), 0).sum(-1)


def listed_of(lists, shape):
    if isinstance(lists, torch.Tensor):
        mask = torch.zeros(*shape[:3], shape[3] + 1, dtype=torch.bool, device=lists.device)
        lists = lists.long().expand(*shape[:3], -1)
        return mask.scatter(-1, torch.where(lists < 0, shape[3], lists), True)[..., :-1]
    return masks_of(keyhole.parse(lists) if isinstance(lists, str) else lists, *shape)


def target_of(batch=1, heads=4, kv_heads=2, q_len=40, k_len=40, device="cpu", dtype=torch.float32, lists="causal"):
    q = draw(batch, heads, q_len, 8, device=device, dtype=dtype, seed=4)
    k = draw(batch, kv_heads, k_len, 8, device=device, dtype=dtype, seed=5)
    _, lse = keyhole.attention(q, k, k, lists, return_lse=True)
    return q, k, lse


def dtypes_on(device):
    return [dtype for dtype in FLOATS if device == "cpu" or dtype != torch.float64]


@pytest.mark.parametrize("device", DEVICES)
def test_scores(device):
    for dtype in dtypes_on(device):
        q, k, w = indexer(batch=2, heads=6, groups=2, q_len=50, entries=70, dim=32, device=device, dtype=dtype)
        k_scale = draw(2, 2, 70, device=device, dtype=w.dtype, seed=3)
        got = keyhole.index_scores(q, k, w, k_scale=k_scale, visible=LOCAL)
        want = scores_of(*(x.double() for x in (q, k, w, k_scale)))
        visible = masks_of(LOCAL, 2, 2, 50, 70).to(device)
        assert got.dtype == w.dtype
        assert got.device == q.device
        check_close("scores", got, want.masked_fill(~visible, -torch.inf), w.dtype)  # products and sums are fp32


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("visible", [None, "causal", LOCAL])
def test_selected_keys_are_the_best_of_the_scores(visible, device):
    for dtype in dtypes_on(device):
        q, k, w = indexer(batch=2, heads=4, groups=2, q_len=50, entries=300, device=device, dtype=dtype)
        scores = keyhole.index_scores(q, k, w)
        always = keyhole.causal() & keyhole.window(2)
        masks = (None if x is None else listed_of(x, scores.shape).numpy() for x in (visible, always))
        want, counts = chosen_of(scores.cpu().numpy(), 20, *masks, takes_short_rows=True)
        options = {"visible": visible, "always": always, "return_counts": True}
        got = keyhole.select_keys(q, k, w, top_k=20, **options)
        np.testing.assert_array_equal(got[0].cpu().numpy(), want)
        np.testing.assert_array_equal(got[1].cpu().numpy(), counts)
        assert got[0].dtype == got[1].dtype == torch.int32
        assert got[0].is_contiguous()
        again = keyhole.top_k(scores, 20, **options)
        assert torch.equal(again[0], got[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("k", [1, 8, 200, 2048])
def test_equal_bits_give_equal_lists_everywhere(k, device):
    """Ties, zeros of both signs, NaN and infinities, in every dtype of scores; and 20 runs."""
    scores = torch.randint(-3, 4, (1, 2, 30, 1500), generator=torch.Generator().manual_seed(k)).float()
    scores[..., ::5] = -0.0
    scores[..., 1::97], scores[..., 2::89], scores[..., 3::83] = torch.nan, torch.inf, -torch.inf
    for dtype in dtypes_on(device):
        given = scores.to(device, dtype)
        want, counts = chosen_of(scores.to(dtype).double().numpy(), k, listed_of("causal", scores.shape).numpy())
        for _ in range(20):
            got, got_counts = keyhole.top_k(given, k, visible="causal", return_counts=True)
            np.testing.assert_array_equal(got.cpu().numpy(), want)
            np.testing.assert_array_equal(got_counts.cpu().numpy(), counts)


@pytest.mark.parametrize("device", DEVICES)
def test_e4m3(device):
    q, k, w = indexer(batch=2, heads=4, groups=2, q_len=50, entries=300, dim=64, device=device)
    (q8, q_scale), (k8, k_scale) = keyhole.quantize_e4m3(q), keyhole.quantize_e4m3(k, power_of_two=True)
    assert (q8.dtype, k8.dtype) == (E4M3, E4M3)
    got = keyhole.index_scores(q8, k8, w * q_scale, k_scale=k_scale)
    want = scores_of(q8.double(), k8.double(), (w * q_scale).double(), k_scale.double())
    # Hopper's tensor cores add up 8-bit products with about 13 bits.
    check_close("scores", got, want, torch.float32 if device == "cpu" else torch.float16)
    chosen = keyhole.select_keys(q8, k8, w * q_scale, k_scale=k_scale, top_k=16, visible="causal")
    assert torch.equal(chosen, keyhole.top_k(got, 16, visible="causal"))
    by_length = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q8, k8)]
    assert torch.equal(keyhole.index_scores(*by_length, w * q_scale, k_scale=k_scale), got)
    by_column = q8.transpose(2, 3).contiguous().transpose(2, 3)
    assert torch.equal(keyhole.index_scores(by_column, k8, w * q_scale, k_scale=k_scale), got)
    assert keyhole.index_scores(q8[:, :, :0], k8, w[:, :, :0]).shape == (2, 2, 0, 300)


def test_quantizing_is_what_numpy_does():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = draw(5, 7, 64)
    for power_of_two in (False, True):
        values, scale = keyhole.quantize_e4m3(x, power_of_two=power_of_two)
        theirs, their_scale = keyhole.quantize_e4m3(x.numpy(), power_of_two=power_of_two)
        np.testing.assert_array_equal(scale.numpy(), their_scale)
        np.testing.assert_array_equal(values.view(torch.uint8).numpy(), theirs.view(np.uint8))
        assert theirs.dtype == ml_dtypes.float8_e4m3fn


@pytest.mark.parametrize("dtype", FLOATS)
def test_hadamard_is_what_numpy_does(dtype):
    x = draw(3, 5, 64, dtype=dtype).requires_grad_()
    turned = keyhole.hadamard(x)
    assert turned.dtype == dtype
    check_close("hadamard", turned, torch.from_numpy(keyhole.hadamard(x.detach().double().numpy())), dtype)
    dx = draw(3, 5, 64, dtype=dtype, seed=1)
    turned.backward(dx)
    check_close("dx", x.grad, keyhole.hadamard(dx.double()), dtype)  # it is symmetric
    with pytest.raises(TypeError, match="hadamard: x is torch.int64"):
        keyhole.hadamard(torch.ones(4, dtype=torch.int64))


LOSSES = {
    "chosen": {},
    "dense": {"lists": "causal"},
    "a pattern": {"lists": LOCAL},
    "two groups": {"batch": 2, "groups": 2},
    "two groups, dense": {"groups": 2, "lists": "causal"},
    "no w": {"has_w": False},
    "more keys": {"q_len": 11, "entries": 33},
    "int64 lists": {"is_wide": True},
    "options": {"scale": 0.8, "softcap": 1.5},
}


def loss_case(
    batch=1,
    groups=1,
    q_len=12,
    entries=12,
    has_w=True,
    lists=None,
    is_wide=False,
    device="cpu",
    dtype=torch.float64,
    **options,
):
    learned = indexer(batch, 4, groups, q_len, entries, 8, device=device, dtype=dtype, has_w=has_w)
    if lists is None:
        lists = keyhole.select_keys(*learned, top_k=4, visible="causal")
        lists = lists.long() if is_wide else lists
    q = draw(batch, 4, q_len, 8, device=device, dtype=dtype, seed=4)
    k = draw(batch, 2, entries, 8, device=device, dtype=dtype, seed=5)
    sink = torch.tensor([0.5, -1.0, 2.0, 0.0], device=device)  # of the joint softmax
    _, lse = keyhole.attention(q, k, k, lists, sink=sink, return_lse=True, **options)
    return learned, (q, k, lse), lists, options


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", LOSSES)
def test_loss_and_gradients(case, device):
    dtype = torch.float64 if device == "cpu" else torch.float32
    learned, target, lists, options = loss_case(**LOSSES[case], device=device, dtype=dtype)
    learned = [None if x is None else x.requires_grad_() for x in learned]
    given = [x for x in learned if x is not None]
    loss = keyhole.index_loss(*learned, *target, lists, **options)
    scores = scores_of(*(None if x is None else x.double() for x in learned))
    want = loss_of(scores, *(x.double() for x in target), listed_of(lists, scores.shape).to(device), **options)
    check_close("loss", loss, want, dtype)
    dloss = draw(*loss.shape, device=device, dtype=dtype, seed=8)
    got = torch.autograd.grad(loss, given, dloss)
    expected = torch.autograd.grad(want, given, dloss.double())
    for name, a, b in zip("qkw", got, expected, strict=False):
        check_close(f"d{name}", a, b, dtype)


@pytest.mark.parametrize("case", LOSSES)
def test_gradcheck(case):
    learned, target, lists, options = loss_case(**LOSSES[case])
    given = [x.requires_grad_() for x in learned if x is not None]

    def loss(*tensors):
        return keyhole.index_loss(*(tensors if len(tensors) == 3 else (*tensors, None)), *target, lists, **options)

    assert torch.autograd.gradcheck(loss, given, eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_16_bit_gradients(device):
    for dtype in (torch.bfloat16, torch.float16):
        learned, target, lists, options = loss_case(device=device, dtype=dtype, q_len=30, entries=30)
        learned = [x.requires_grad_() for x in learned]
        loss = keyhole.index_loss(*learned, *target, lists, **options)
        assert loss.dtype == torch.float32
        got = torch.autograd.grad(loss.sum(), learned)
        assert [x.dtype for x in got] == [dtype, dtype, torch.float32]
        scores = scores_of(*(x.double() for x in learned))
        want = loss_of(scores, *(x.double() for x in target), listed_of(lists, scores.shape).to(device), **options)
        for a, b in zip(got, torch.autograd.grad(want.sum(), learned), strict=True):
            check_close("gradient", a, b, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_listed", [True, False], ids=["key lists", "a pattern"])
def test_entries_that_stand_for_several_keys(device, is_listed):
    dtype = torch.float64 if device == "cpu" else torch.float32
    q_len, k_len, size = 30, 34, 4
    learned = [x.requires_grad_() for x in indexer(1, 4, 1, q_len, 9, 8, device=device, dtype=dtype)]
    q, k = draw(1, 4, q_len, 8, device=device, dtype=dtype, seed=4), draw(1, 2, k_len, 8, device=device, dtype=dtype)
    lists = "causal & window(20)"
    if is_listed:
        chosen, counts = keyhole.select_keys(*learned, top_k=3, return_counts=True)
        lists = keyhole.KeyLists(chosen, counts=counts, keys_per_entry=size, causal=True)
    options = {} if is_listed else {"keys_per_entry": size}
    _, lse = keyhole.attention(q, k, k, lists, return_lse=True)

    def run(*learned):
        return keyhole.index_loss(*learned, q, k, lse, lists, **options)

    loss = run(*learned)
    dloss = draw(*loss.shape, device=device, dtype=dtype, seed=8)
    got = torch.autograd.grad(loss, learned, dloss)
    there = [x.detach().double().cpu().numpy() for x in (*learned, q, k, lse)]
    if is_listed:
        lists = keyhole.KeyLists(chosen.cpu().numpy(), counts=counts.cpu().numpy(), keys_per_entry=size, causal=True)
    check_close("loss", loss, torch.from_numpy(keyhole.index_loss(*there, lists, **options)).to(device), dtype)
    want = keyhole.index_loss_backward(dloss.double().cpu().numpy(), *there, lists, **options)
    for name, a, b in zip("qkw", got, want, strict=True):
        check_close(f"d{name}", a, torch.from_numpy(b).to(device), dtype)
    lists = keyhole.KeyLists(chosen, counts=counts, keys_per_entry=size, causal=True) if is_listed else lists
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*learned), loss)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_moves_what_nobody_chose(device):
    learned, target, _, _ = loss_case(q_len=30, entries=30, device=device, dtype=torch.float32)
    learned = [x.requires_grad_() for x in learned]
    lists = torch.full((1, 1, 30, 3), -1, dtype=torch.int32, device=device)
    lists[0, 0, 10:20] = torch.tensor([3, 7, -1], device=device)
    _, lse = keyhole.attention(target[0], target[1], target[1], lists, return_lse=True)
    loss = keyhole.index_loss(*learned, *target[:2], lse, lists)
    assert (loss[:, :, :10] == 0).all()
    assert (loss[:, :, 20:] == 0).all()
    dq, dk, dw = torch.autograd.grad(loss.sum(), learned)
    idle = [*range(10), *range(20, 30)]
    assert (dq[:, :, idle] == 0).all()
    assert (dw[:, :, idle] == 0).all()
    assert set(dk[0, 0].abs().sum(-1).nonzero().flatten().tolist()) <= {3, 7}
    assert (dk[0, 0, [3, 7]] != 0).any()


@pytest.mark.parametrize("device", DEVICES)
def test_rows(device):
    learned, target, lists, _ = loss_case(q_len=30, entries=30, device=device, dtype=torch.float32)
    learned = [x.requires_grad_() for x in learned]
    whole = keyhole.index_loss(*learned, *target, lists)
    for rows in ([0, 5, 29], [], list(range(30))):
        for given in (rows, torch.tensor(rows, dtype=torch.int64, device=device)):
            part = keyhole.index_loss(*learned, *target, lists, rows=given)
            kept = torch.isin(torch.arange(30, device=device), torch.tensor(rows, device=device, dtype=torch.int64))
            assert torch.equal(part, torch.where(kept, whole, 0))
            dpart = torch.autograd.grad(part.sum(), learned)
            dwhole = torch.autograd.grad((whole * kept).sum(), learned, retain_graph=True)
            for a, b in zip(dpart, dwhole, strict=True):
                check_close("gradient", a, b, torch.float32)


def test_the_target_learns_nothing():
    learned, target, lists, _ = loss_case()
    learned = [x.requires_grad_() for x in learned]
    target = [x.requires_grad_() for x in target]
    keyhole.index_loss(*learned, *target, lists).sum().backward()
    assert all(x.grad is None for x in target)
    assert all(x.grad is not None for x in learned)


def test_only_what_requires_a_gradient_gets_one():
    (q, k, w), target, lists, _ = loss_case()
    w.requires_grad_()
    keyhole.index_loss(q, k, w, *target, lists).sum().backward()
    assert q.grad is None
    assert k.grad is None
    assert w.grad is not None


@pytest.mark.parametrize("device", DEVICES)
def test_20_deterministic_backward_passes_are_equal(device):
    learned, target, lists, _ = loss_case(q_len=60, entries=60, device=device, dtype=torch.float32)
    learned = [x.requires_grad_() for x in learned]
    first = None
    for _ in range(20):
        loss = keyhole.index_loss(*learned, *target, lists, deterministic=True)
        found = torch.autograd.grad(loss.sum(), learned)
        first = found if first is None else first
        assert all(torch.equal(a, b) for a, b in zip(found, first, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["plain", "length first", "everything"])
def test_opcheck(name, device):
    q, k, w = indexer(batch=2, heads=4, groups=2, device=device)
    k_scale = draw(2, 2, 40, device=device, seed=3) if name == "everything" else None
    w = None if name == "plain" else w
    if name == "length first":
        q, k = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k))
    visible, always = (None, None) if name == "plain" else (LOCAL.tensor(), keyhole.plan("sinks(2)", 40).tensor())
    torch.library.opcheck(ops.index_scores, (q, k, w, k_scale, visible, "auto"))
    torch.library.opcheck(ops.select_keys, (q, k, w, k_scale, 5, visible, always, "auto"))
    scores = ops.index_scores(q, k, w, k_scale, visible, "auto")
    torch.library.opcheck(ops.top_k, (scores, 5, visible, always, "auto"))
    target = target_of(batch=2, device=device)
    keys = LOCAL.tensor() if name == "plain" else ops.select_keys(q, k, w, k_scale, 5, visible, None, "auto")[0]
    rows = torch.tensor([1, 5], dtype=torch.int32, device=device) if name == "everything" else None
    options = (1, rows, 0.3 if name == "everything" else None, 0.0, True, "auto")
    lists = (keys, None, [0, 0])
    if name == "everything":
        lists = (keys, (keys >= 0).sum(-1, dtype=torch.int32), [1, 1])
    torch.library.opcheck(ops.index_loss_forward, (q, k, w, k_scale, *target, *lists, *options))
    learned = [None if x is None else x.clone().requires_grad_() for x in (q, k, w)]
    torch.library.opcheck(ops.index_loss_forward, (*learned, k_scale, *target, *lists, *options))
    with torch.no_grad():
        loss, stats = ops.index_loss_forward(q, k, w, k_scale, *target, *lists, *options)
        dloss = torch.randn_like(loss)
        torch.library.opcheck(ops.index_loss_backward, (dloss, q, k, w, k_scale, *target, *lists, stats, *options))


@pytest.mark.parametrize("place", ["fake", "meta"])
def test_fake_results_are_laid_out_like_real_ones(place):
    learned, target, lists, _ = loss_case(batch=2, groups=2, dtype=torch.float32)
    tensors = (*learned, *target, lists)

    def results(q, k, w, *target):
        scores = keyhole.index_scores(q, k, w, visible="causal")
        best = keyhole.top_k(scores, 7, always="sinks(2)", return_counts=True)
        chosen = keyhole.select_keys(q, k, w, top_k=5, visible="causal", return_counts=True)
        losses = keyhole.index_loss(q, k, w, *target), keyhole.index_loss(q, k, w, *target[:3], "causal")
        return scores, *best, *chosen, *losses

    real = results(*tensors)
    if place == "meta":
        told = results(*(x.to("meta") for x in tensors))
    else:
        with torch._subclasses.FakeTensorMode() as mode:
            told = results(*map(mode.from_tensor, tensors))
    for a, b in zip(real, told, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


def step(index_q, index_k, w, q, k, v, visible, always):
    """Select, attend, and the loss of the indexer."""
    chosen = keyhole.select_keys(index_q, index_k, w, top_k=6, visible=visible, always=always)
    out, lse = keyhole.attention(q, k, v, chosen, return_lse=True)
    loss = keyhole.index_loss(index_q, index_k, w, q, k, lse, chosen)
    return out * 2, loss + 1, chosen


def step_inputs(q_len=40, device="cpu", dtype=torch.float32):
    learned = indexer(1, 4, 1, q_len, q_len, 16, device=device, dtype=dtype)
    attended = [draw(1, heads, q_len, 16, device=device, dtype=dtype, seed=5 + heads) for heads in (4, 2, 2)]
    return [x.requires_grad_() for x in (*learned, *attended)]


def check_step(function, *patterns, **sizes):
    inputs = step_inputs(**sizes)
    out, loss, chosen = function(*inputs, *patterns)
    want_out, want_loss, want_chosen = step(*inputs, *patterns)
    assert torch.equal(chosen, want_chosen)
    torch.testing.assert_close(out, want_out)
    torch.testing.assert_close(loss, want_loss)
    got = torch.autograd.grad(out.square().sum() + loss.sum(), inputs)
    want = torch.autograd.grad(want_out.square().sum() + want_loss.sum(), inputs)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_one_compiled_graph_serves_every_pattern(device):
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, fullgraph=True, backend=counter)
    for visible in (LOCAL, keyhole.causal(), keyhole.blocks(8), keyhole.plan("causal", 40)):
        check_step(compiled, visible, keyhole.sinks(2), device=device)
    assert counter.frame_count <= 2  # a plan in place of a pattern may be another graph


@pytest.mark.parametrize("length", ["number", "size"])
def test_top_k_may_change_under_a_compiler(length):
    def choose(q, k, n):
        return keyhole.select_keys(q, k, top_k=n if length == "number" else q.shape[2] // 4, visible="causal")

    torch._dynamo.reset()
    compiled = torch.compile(choose, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (8, 16, 24):
        q, k = draw(1, 2, 4 * n, 16), draw(1, 1, 4 * n, 16)
        assert torch.equal(compiled(q, k, n), choose(q, k, n))


def test_texts_compile():
    check_step(torch.compile(step, fullgraph=True, backend="aot_eager"), "causal", "sinks(2)")
    check_step(torch.compile(step, fullgraph=True, backend="aot_eager"), None, None)


@pytest.mark.slow
def test_inductor():
    check_step(torch.compile(step, fullgraph=True), LOCAL, None)


def test_one_compiled_graph_serves_every_length():
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, fullgraph=True, backend=counter, dynamic=True)
    made = []
    for q_len in (40, 57, 33):
        check_step(compiled, LOCAL, None, q_len=q_len)
        made.append(counter.frame_count)
    assert made[0] == made[1] == made[2]


def test_compiled_dense_loss():
    learned, target, _, _ = loss_case(dtype=torch.float32)

    def dense(q, k, w, pattern):
        return keyhole.index_loss(q * 1.0, k, w, *target, pattern, rows=torch.arange(0, 12, 2))

    compiled = torch.compile(dense, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*learned, LOCAL), dense(*learned, LOCAL))


def test_export():
    class Step(torch.nn.Module):
        def forward(self, index_q, index_k, q, k, v):
            return keyhole.attention(q, k, v, keyhole.select_keys(index_q, index_k, top_k=6, visible="causal"))

    index_q, index_k, _, q, k, v = (x.detach() for x in step_inputs())
    program = torch.export.export(Step(), (index_q, index_k, q, k, v))
    torch.testing.assert_close(program.module()(index_q, index_k, q, k, v), Step()(index_q, index_k, q, k, v))


@needs_gpu
def test_cuda_graph():
    """Select, attend, loss and backward in one graph, replayed on other data."""
    inputs = step_inputs(q_len=256, device="cuda", dtype=torch.bfloat16)

    def run():
        out, loss, chosen = step(*inputs, "causal", "causal & window(1)")
        return out, loss, chosen, *torch.autograd.grad(out.square().sum() + loss.sum(), inputs)

    graph, results = captured(run)
    for seed in range(3):
        with torch.no_grad():
            for i, x in enumerate(inputs):
                x.copy_(draw(*x.shape, device="cuda", dtype=x.dtype, seed=100 * seed + i))
        graph.replay()
        torch.cuda.synchronize()
        for got, want in zip(results, run(), strict=True):
            torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
        assert torch.equal(results[2], run()[2])


@needs_gpu
def test_lists_of_the_gpu_are_those_of_the_cpu():
    scores = draw(1, 2, 64, 5000).to(torch.bfloat16)
    for k in (1, 100, 2048):
        here = keyhole.top_k(scores, k, visible="causal")
        assert torch.equal(keyhole.top_k(scores.cuda(), k, visible="causal").cpu(), here)


@needs_gpu
def test_streams():
    q, k, w = indexer(q_len=300, entries=300, device="cuda")
    want = keyhole.select_keys(q, k, w, top_k=16, visible="causal")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        got = keyhole.select_keys(q.clone(), k.clone(), w.clone(), top_k=16, visible="causal")
    side.synchronize()
    assert torch.equal(got, want)


Q, K, W = indexer()
SCORES = draw(1, 1, 40, 40)
TARGET = target_of()
LISTS = torch.zeros(1, 1, 40, 3, dtype=torch.int32)


def scores(q=Q, k=K, w=W, **options):
    return keyhole.index_scores(q, k, w, **options)


def select(q=Q, k=K, w=W, top_k=4, **options):
    return keyhole.select_keys(q, k, w, top_k=top_k, **options)


def best(scores=SCORES, k=4, **options):
    return keyhole.top_k(scores, k, **options)


def loss(index_q=Q, index_k=K, w=W, q=TARGET[0], k=TARGET[1], lse=TARGET[2], keys="causal", **options):
    return keyhole.index_loss(index_q, index_k, w, q, k, lse, keys, **options)


REFUSED = [
    (best, {"k": 0}, ValueError, "top_k: k is 0; expected 1 or more"),
    (
        best,
        {"scores": SCORES.int()},
        TypeError,
        "top_k: scores is torch.int32; accepted are float16, bfloat16, float32",
    ),
    (best, {"scores": SCORES.to(E4M3)}, TypeError, "top_k: scores is torch.float8_e4m3fn"),
    (best, {"scores": SCORES[0]}, ValueError, "top_k: scores has 3 dimensions; expected 4"),
    (best, {"scores": SCORES.to_sparse()}, TypeError, r"scores has layout torch.sparse_coo.*to_dense\(\)"),
    (best, {"visible": "causl"}, ValueError, 'did you mean "causal"'),
    (best, {"visible": torch.ones(40, 40, dtype=torch.bool)}, TypeError, r"top_k: visible: .*from_dense\(mask\)"),
    (select, {"always": keyhole.window}, TypeError, r"select_keys: always: .*Call it: keyhole.window\(\.\.\.\)"),
    (select, {"top_k": 0}, ValueError, "select_keys: top_k is 0"),
    (select, {"w": W[:, :3]}, ValueError, "w"),
    (select, {"w": W[0]}, ValueError, r"select_keys: w has 2 dimensions; expected 3: \[batch, index_heads, q_len\]"),
    (select, {"w": W.long()}, TypeError, "select_keys: w is torch.int64"),
    (select, {"k": K.numpy()}, TypeError, "select_keys: k is a ndarray; pass torch tensors only"),
    (scores, {"q": Q.long()}, TypeError, "index_scores: q is torch.int64"),
    (scores, {"k_scale": W}, ValueError, "k_scale"),
    (scores, {"k": K.to("meta")}, TypeError, "k is on meta"),
    (select, {"k": K.half()}, ValueError, r"select_keys: k is torch.float16 and q torch.float32; .*k.to\(q.dtype\)"),
    (loss, {"keys": None}, TypeError, "index_loss: keys is None; accepted are a pattern, its text, a plan, key"),
    (loss, {"keys": keyhole.causal}, TypeError, r"Call it: keyhole.causal\(\)"),
    (
        loss,
        {"keys": np.zeros((1, 1, 40, 3), np.int32)},
        TypeError,
        r"index_loss: keys is a NumPy array of int32, .*index_q a torch tensor.*pass torch.from_numpy\(keys\)",
    ),
    (
        loss,
        {"keys": keyhole.TileLists(torch.zeros(1, 1, 1, 1, dtype=torch.int32), tile=(64, 64))},
        TypeError,
        "keys is a TileLists; accepted are .* or list keys with keyhole.KeyLists",
    ),
    (loss, {"keys": keyhole.KeyLists(LISTS, keys_per_entry=4)}, ValueError, "one entry for 4 keys: 10"),
    (loss, {"keys": keyhole.KeyLists(LISTS.numpy())}, TypeError, "keys.indices is a NumPy array.*torch.from_numpy"),
    (loss, {"keys": keyhole.KeyLists(LISTS), "keys_per_entry": 0}, ValueError, "keys_per_entry is 0"),
    (loss, {"lse": TARGET[2].bfloat16()}, ValueError, "index_loss: lse is torch.bfloat16 .*expected torch.float32"),
    (loss, {"k": TARGET[1].half()}, ValueError, "index_loss: k is torch.float16 and q torch.float32"),
    (loss, {"index_k": K.half()}, ValueError, "index_loss: index_k is torch.float16 and index_q torch.float32"),
    (
        loss,
        {"keys": torch.zeros(1, 1, 40, 3)},
        TypeError,
        "index_loss: keys is torch.float32; accepted are int32, int64",
    ),
    (
        loss,
        {"keys": torch.zeros(40, 3, dtype=torch.int32)},
        ValueError,
        "index_loss: keys has 2 dimensions; expected 4",
    ),
    (loss, {"keys": torch.full((1, 1, 40, 2), 40)}, ValueError, "40"),
    (loss, {"rows": torch.tensor([[1]])}, ValueError, r"index_loss: rows is torch.int64 \[1, 1\]; .*ascending"),
    (loss, {"rows": torch.tensor([0.5])}, ValueError, "index_loss: rows is torch.float32"),
    (loss, {"lse": TARGET[2].numpy()}, TypeError, "index_loss: lse is a ndarray"),
    (loss, {"scale": torch.tensor(1.0)}, TypeError, "index_loss: scale is a torch tensor"),
    (loss, {"k_scale": torch.ones(1, 1, 40, requires_grad=True)}, ValueError, "k_scale requires a gradient"),
    (loss, {"q": TARGET[0].to(E4M3)}, TypeError, "index_loss: q is torch.float8_e4m3fn; accepted are float16"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("call", "options", "error", "match"), REFUSED)
def test_what_is_refused(call, options, error, match):
    with pytest.raises(error, match=match):
        call(**options)


def test_scales_may_require_a_gradient_where_none_is_computed():
    scale = torch.ones(1, 1, 40, requires_grad=True)
    with torch.no_grad():
        torch.testing.assert_close(loss(k_scale=scale), loss())


@needs_gpu
def test_lists_elsewhere():
    with pytest.raises(ValueError, match="device|place"):
        loss(keys=select().cuda())
    with pytest.raises(ValueError, match="rows is on cuda"):
        loss(rows=torch.tensor([1], device="cuda"))
    with pytest.raises(ValueError, match="device|place"):
        scores(k=K.cuda())


def test_scores_have_no_gradient():
    found = scores(q=Q.clone().requires_grad_())
    with pytest.raises(NotImplementedError, match="train an indexer with keyhole.index_loss"):
        found.sum().backward()


def test_choices_have_no_gradient():
    q = Q.clone().requires_grad_()
    assert not select(q=q).requires_grad
    assert not best(scores=SCORES.clone().requires_grad_()).requires_grad
    assert not ops.select_keys(q, K, W, None, 4, None, None, "auto")[0].requires_grad


def test_e4m3_has_no_gradient():
    q8, k8 = Q.to(E4M3), K.to(E4M3)
    assert loss(index_q=q8, index_k=k8).shape == (1, 1, 40)
    w = W.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match=r"the loss of the tensors before keyhole.quantize_e4m3"):
        loss(index_q=q8, index_k=k8, w=w).sum().backward()


def test_second_derivatives_are_refused():
    q = Q.clone().requires_grad_()
    (dq,) = torch.autograd.grad(loss(index_q=q).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="index_loss: second derivatives"):
        dq.sum().backward()


@pytest.mark.parametrize("call", [scores, select, loss])
def test_transforms_are_refused(call):
    name = {"scores": "q", "select": "q", "loss": "index_q"}[call.__name__]
    with pytest.raises(NotImplementedError, match="torch.vmap is not supported"):
        torch.vmap(lambda q: call(**{name: q}))(torch.stack([Q, Q]))
    with pytest.raises(NotImplementedError, match="forward-mode"):
        torch.func.jvp(lambda q: call(**{name: q}), (Q,), (Q,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
        call(**{name: torch.autograd.forward_ad.make_dual(Q, Q)})


def test_ops_refuse_transforms_too():
    with pytest.raises(NotImplementedError, match="select_keys: torch.vmap is not supported"):
        torch.vmap(lambda q: ops.select_keys(q, K, None, None, 3, None, None, "auto"))(torch.stack([Q, Q]))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="index_scores: forward-mode"):
        ops.index_scores(torch.autograd.forward_ad.make_dual(Q, Q), K, None, None, None, "auto")


def test_batched_gradients():
    q = Q.clone().requires_grad_()
    found = loss(index_q=q)
    several = torch.stack([draw(*found.shape, seed=i) for i in range(3)])
    (got,) = torch.autograd.grad(found, q, several, is_grads_batched=True, retain_graph=True)
    for i in range(3):
        (want,) = torch.autograd.grad(found, q, several[i], retain_graph=True)
        assert torch.equal(got[i], want)


def test_checkpointing():
    inputs = step_inputs()
    want = torch.autograd.grad(sum(x.sum() for x in step(*inputs, "causal", None)[:2]), inputs)
    out, found, _ = torch.utils.checkpoint.checkpoint(step, *inputs, "causal", None, use_reentrant=False)
    for a, b in zip(torch.autograd.grad(out.sum() + found.sum(), inputs), want, strict=True):
        torch.testing.assert_close(a, b)


def test_autocast_leaves_the_hadamard_transform():
    x = draw(3, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        turned = keyhole.hadamard(x)
    assert torch.equal(turned, keyhole.hadamard(x))
    assert keyhole.hadamard(x.to("meta")).dtype == torch.float32


def test_autocast_leaves_the_dtypes_of_an_indexer():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(scores(), keyhole.index_scores(Q, K, W))
