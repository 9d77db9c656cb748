# tests/python/test_torch_gather.py
"""keyhole.gather_attention on torch tensors: values, gradients, whatever looks at a call, errors."""

import keyhole
import pytest
import torch
import torch._dynamo.testing
from keyhole.torch_attention import ops
from torch.utils import checkpoint
from torch_reference import DEVICES, ERRORS_ALLOWED, check_close, check_each, draw, draw_qkv, needs_gpu

SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 40, "k_len": 50}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def draw_indices(batch=2, index_heads=2, lists=40, entries=21, k_len=50, device="cpu", dtype=torch.int64, seed=0):
    """Keys in no order, some named twice, padding anywhere, and one list of nothing else."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, index_heads, lists, entries)
    indices = torch.randint(0, k_len, shape, generator=generator)
    indices = torch.where(torch.rand(shape, generator=generator) < 0.3, -1, indices)
    indices[0, 0, lists // 2] = -1
    return indices.to(device, dtype)


def reference(q, k, v, indices, *, scale=None, softcap=0.0, sink=None):
    """(out, lse) in fp64, by definition, differentiable: the keys of every query side by side."""
    batch, heads, q_len, _ = q.shape
    lists = indices.repeat_interleave(heads // indices.shape[1], 1)
    lists = lists.repeat_interleave(-(-q_len // lists.shape[2]), 2)[:, :, :q_len].long()
    is_key = (lists >= 0) & (lists < k.shape[2])
    at = torch.where(is_key, lists, 0)

    def rows(x):
        x = x.double().repeat_interleave(heads // x.shape[1], 1)
        b, h = torch.arange(batch)[:, None, None, None], torch.arange(heads)[None, :, None, None]
        return x[b.to(x.device), h.to(x.device), at]

    scores = (q.double()[:, :, :, None] * rows(k)).sum(-1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    weights = torch.where(is_key, torch.exp(scores), 0)
    total = weights.sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink.double())[:, None, None]
    out = (weights[..., None] * rows(v)).sum(-2) / torch.where(total == 0, 1, total)
    return out, torch.where(total == 0, -torch.inf, torch.log(torch.where(total == 0, 1, total))).squeeze(-1)


def attend(q, k, v, indices, **options):
    return keyhole.gather_attention(q * 1.0, k, v, indices, **options) + 1.0


def check_step(function, indices, device="cpu", dtype=torch.float64, sizes=SIZES, **options):
    """A forward and a backward pass of `function(q, k, v, indices) == gather_attention + 1` against the reference."""
    q, k, v = (x.requires_grad_() for x in draw_qkv(**sizes, device=device, dtype=dtype))
    out = function(q, k, v, indices)
    expected, _ = reference(q, k, v, indices, **options)
    check_close("out", out, expected + 1, dtype)
    out.square().sum().backward()
    want = torch.autograd.grad((expected + 1).square().sum(), (q, k, v))
    check_each("dq dk dv", (q.grad, k.grad, v.grad), want, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ERRORS_ALLOWED, ids=str)
@pytest.mark.parametrize("index_heads", [1, 2, 4])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_values_and_gradients(index_dtype, index_heads, dtype, device):
    if device == "cuda" and dtype == torch.float64:
        pytest.skip("no GPU kernel reads f64")
    indices = draw_indices(index_heads=index_heads, device=device, dtype=index_dtype)
    for deterministic in (False, True):
        check_step(lambda *x: attend(*x, deterministic=deterministic), indices, device, dtype)  # noqa: B023


@pytest.mark.parametrize("device", DEVICES)
def test_options(device):
    dtype = torch.float32
    sink = draw(4, device=device).requires_grad_()
    q, k, v = (x.requires_grad_() for x in draw_qkv(**SIZES, v_head_dim=24, device=device, dtype=dtype))
    indices = draw_indices(lists=10, device=device)  # four queries a list
    options = {"sink": sink, "softcap": 2.0, "scale": 0.4}
    swapped = [x.transpose(1, 2) for x in (q, k, v)]
    out, lse = keyhole.gather_attention(*swapped, indices, layout="bshd", return_lse=True, **options)
    want, want_lse = reference(q, k, v, indices, **options)
    check_each("out lse", (out.transpose(1, 2), lse), (want, want_lse), dtype)
    is_seen = torch.isfinite(lse)
    weight = torch.randn_like(lse)
    loss = out.square().sum() + torch.where(is_seen, lse * weight, 0).sum()
    want_loss = want.square().sum() + torch.where(is_seen, want_lse * weight, 0).sum()
    inputs = (q, k, v, sink)
    check_each("dq dk dv dsink", torch.autograd.grad(loss, inputs), torch.autograd.grad(want_loss, inputs), dtype)


def test_gradcheck():
    q, k, v = (
        x.requires_grad_() for x in draw_qkv(heads=2, kv_heads=1, q_len=5, k_len=6, head_dim=3, dtype=torch.double)
    )
    indices = draw_indices(batch=1, index_heads=1, lists=5, entries=7, k_len=6)
    indices[0, 0, 2, 0] = 1  # an empty row has lse -inf, which differences cannot follow
    torch.autograd.gradcheck(lambda *x: keyhole.gather_attention(*x, indices, return_lse=True), (q, k, v))


@pytest.mark.parametrize("device", DEVICES)
def test_strided_and_broadcast_indices(device):
    q, k, v = draw_qkv(**SIZES, device=device)
    indices = draw_indices(device=device)
    forms = {
        "every other": indices.repeat_interleave(2, -1)[..., ::2],
        "lists first": indices.transpose(1, 2).contiguous().transpose(1, 2),
        "broadcast": indices[:1, :1].expand(2, 2, -1, -1),
    }
    for name, form in forms.items():
        want = keyhole.gather_attention(q, k, v, form.contiguous())
        assert torch.equal(keyhole.gather_attention(q, k, v, form), want), name


def test_indices_that_change_before_backward_are_noticed():
    q, k, v = (x.requires_grad_() for x in draw_qkv(**SIZES))
    indices = draw_indices()
    out = keyhole.gather_attention(q, k, v, indices)
    indices.clamp_(max=3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["plain", "sink", "length first", "everything"])
def test_opcheck(name, device):
    v_head_dim = 24 if name == "everything" else None
    q, k, v = draw_qkv(**SIZES, head_dim=16, v_head_dim=v_head_dim, device=device)
    sink = draw(4, device=device) if name in ("sink", "everything") else None
    if name == "length first":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    indices = draw_indices(lists=20 if name == "everything" else 40, device=device)
    scale, softcap = (0.3, 5.0) if name == "everything" else (None, 0.0)
    forward = ([indices], [], sink, scale, softcap, 1.0, 0, True, "auto")
    torch.library.opcheck(ops.attention_forward, (q, k, v, *forward))
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    with_sink = None if sink is None else sink.clone().requires_grad_()
    torch.library.opcheck(ops.attention_forward, (*inputs, [indices], [], with_sink, *forward[3:]))
    with torch.no_grad():
        out, lse, support = ops.attention_forward(q, k, v, *forward)
        dlse = torch.where(torch.isfinite(lse), 0.5, 0) if name == "everything" else None
        torch.library.opcheck(
            ops.attention_backward, (torch.randn_like(out), dlse, q, k, v, out, lse, support, *forward)
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_one_graph_serves_every_selection(backend, device):
    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    for seed in range(3):
        check_step(compiled, draw_indices(device=device, seed=seed), device, torch.float32)
    assert counter.frame_count == 1


@pytest.mark.parametrize("device", DEVICES)
def test_a_selection_inside_of_the_graph(device):
    def function(q, k, v):
        scores = q @ k.repeat_interleave(2, 1).transpose(-1, -2)
        return keyhole.gather_attention(q, k, v, scores.topk(8).indices)

    q, k, v = draw_qkv(**SIZES, device=device)
    compiled = torch.compile(function, fullgraph=True)
    check_close("out", compiled(q, k, v), function(q, k, v), torch.float32)


@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_activation_checkpointing(use_reentrant):
    def function(*tensors):
        return checkpoint.checkpoint(attend, *tensors, use_reentrant=use_reentrant)

    check_step(function, draw_indices())


def test_autocast():
    q, k, v = draw_qkv(**SIZES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = keyhole.gather_attention(q, k, v, draw_indices())
    assert out.dtype == torch.bfloat16


def test_fake_tensors():
    with torch._subclasses.FakeTensorMode():
        q, k, v = torch.empty(2, 4, 40, 16), torch.empty(2, 2, 50, 16), torch.empty(2, 2, 50, 24)
        out, lse = keyhole.gather_attention(q, k, v, torch.empty(2, 2, 40, 9, dtype=torch.int64), return_lse=True)
        assert (out.shape, lse.shape) == ((2, 4, 40, 24), (2, 4, 40))


def _with(indices, value):
    indices[1, 0, 3, 2] = value
    return indices


ERRORS = {
    "beyond": (lambda i: _with(i, 50), ValueError, r"indices\[1, 0, 3, 2\] is 50; k has 50 keys"),
    "dtype": (lambda i: i.to(torch.int16), TypeError, "indices are torch.int16; accepted are int32 and int64"),
    "floats": (lambda i: i.float(), TypeError, "indices are torch.float32"),
    "rank": (lambda i: i[0], ValueError, r"indices has 3 dimensions; expected 4: \[batch, heads, lists, entries\]"),
    "batch": (lambda i: i[:1], ValueError, "batch must be that of q, 2"),
    "lists": (lambda i: i[:, :, :39], ValueError, "40 queries, 2 of them to a list: expected 20 lists"),
    "NumPy": (lambda i: i.numpy(), TypeError, "indices is a ndarray; pass torch tensors only"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    change, kind, text = ERRORS[name]
    q, k, v = draw_qkv(**SIZES)
    with pytest.raises(kind, match=text):
        keyhole.gather_attention(q, k, v, change(draw_indices()))


def test_second_derivatives_are_refused():
    q, k, v = (x.requires_grad_() for x in draw_qkv(**SIZES))
    out = keyhole.gather_attention(q, k, v, draw_indices())
    (gradient,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        gradient.sum().backward()


@needs_gpu
def test_entries_that_are_no_keys_are_padding_on_a_gpu():
    indices = draw_indices(device="cuda")
    hostile = torch.tensor([-2, 50, 2**32, 2**40 + 3, -(2**63)], device="cuda")
    which = torch.arange(indices.numel(), device="cuda").reshape(indices.shape) % 5
    check_step(attend, torch.where(indices < 0, hostile[which], indices), "cuda", torch.float32)


@needs_gpu
def test_the_current_stream_is_used_and_nothing_waits():
    q, k, v = draw_qkv(**SIZES, device="cuda", dtype=torch.bfloat16)
    indices = draw_indices(device="cuda")
    want = keyhole.gather_attention(q, k, v, indices)
    torch.cuda.synchronize()
    stream, other = torch.cuda.Stream(), torch.empty_like(indices)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        other.copy_(indices)
        out = keyhole.gather_attention(q, k, v, other)
        assert not stream.query()  # queued behind the sleep: the call came back before its indices were there
    stream.synchronize()
    assert torch.equal(out, want)


@needs_gpu
def test_cuda_graphs_follow_the_indices_of_the_day():
    q, k, v = draw_qkv(**SIZES, device="cuda", dtype=torch.bfloat16)
    indices = draw_indices(device="cuda")
    keyhole.gather_attention(q, k, v, indices)  # code is loaded on first use, which a capture may forbid
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = keyhole.gather_attention(q, k, v, indices)
    for seed in range(3):
        indices.copy_(draw_indices(seed=seed))
        graph.replay()
        assert torch.equal(out, keyhole.gather_attention(q, k, v, indices))
