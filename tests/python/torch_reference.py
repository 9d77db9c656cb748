# tests/python/torch_reference.py
"""What the torch tests share: the devices, the reference in fp64, and how close a result must be."""

import contextlib

import pytest
import torch
from keyhole import _core
from keyhole.torch_attention.tensors import DTYPES, MEMORY

NO_GPU = "no CUDA device: torch.cuda.is_available() is False"
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU)
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]

EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)  # torch's table of C functions for tensors

ERRORS_ALLOWED = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}  # and the error allowed, of the largest value


def captured(step):
    """A CUDA graph of a call of step, and what that call returned: the memory that a replay writes to."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()  # code is loaded on first use, which a capture may forbid
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    return graph, results


@contextlib.contextmanager
def asked_by_methods():
    """As with a torch that has no table of C functions."""
    try:
        _core.know_torch(torch.Tensor, DTYPES, None)
        yield
    finally:
        _core.know_torch(torch.Tensor, DTYPES, EXCHANGE)


@contextlib.contextmanager
def other_memory(**ways):
    """With other functions in place of those that _core allocates with."""
    _core.know_torch_memory(**{**MEMORY, **ways})
    try:
        yield
    finally:
        _core.know_torch_memory(**MEMORY)


def draw(*shape, device="cpu", dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)


def draw_qkv(
    batch=1,
    heads=2,
    kv_heads=None,
    q_len=40,
    k_len=None,
    head_dim=16,
    v_head_dim=None,
    device="cpu",
    dtype=torch.float32,
):
    kv_heads, k_len, v_head_dim = kv_heads or heads, k_len or q_len, v_head_dim or head_dim
    sizes = [(batch, heads, q_len, head_dim), (batch, kv_heads, k_len, head_dim), (batch, kv_heads, k_len, v_head_dim)]
    return [draw(*size, device=device, dtype=dtype, seed=i) for i, size in enumerate(sizes)]


def reference(q, k, v, allowed, *, scale=None, softcap=0.0, sink=None):
    """(out, lse) in fp64, by definition, differentiable; `allowed` broadcasts to [batch, heads, q_len, k_len]."""
    group = q.shape[1] // k.shape[1]
    k, v = k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = q.double() @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    allowed = torch.as_tensor(allowed, device=q.device).expand(scores.shape)
    scores = torch.where(allowed, scores, -torch.inf)
    if sink is not None:
        logits = sink.double()[:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, logits], -1)
        v = torch.cat([v, torch.zeros_like(v[:, :, :1])], -2)
    is_empty = (scores == -torch.inf).all(-1, keepdim=True)
    lse = torch.logsumexp(torch.where(is_empty, 0, scores), -1, keepdim=True)
    weights = torch.where(is_empty, 0, torch.exp(torch.where(is_empty, 0, scores) - lse))
    return weights @ v, torch.where(is_empty, -torch.inf, lse).squeeze(-1)


def masks_of(pattern, batch, heads, q_len, k_len, offset=None):
    """[batch, heads, q_len, k_len] of a pattern, pair by pair."""
    rows = [
        [torch.tensor(pattern.mask(q_len, k_len, offset=offset, batch=b, head=h)) for h in range(heads)]
        for b in range(batch)
    ]
    return torch.stack([torch.stack(row) for row in rows])


def check_close(name, got, expected, dtype):
    assert got.shape == expected.shape, name
    got, expected = got.detach().double().cpu(), expected.detach().double().cpu()
    assert torch.equal(torch.isinf(got), torch.isinf(expected)), f"{name}: infinite in other places"
    got, expected = (torch.where(torch.isinf(x), 0, x) for x in (got, expected))
    allowed = ERRORS_ALLOWED[dtype] * max(1.0, expected.abs().max().item() if expected.numel() else 0.0)
    error = (got - expected).abs().max().item() if expected.numel() else 0.0
    assert error <= allowed, f"{name}: off by {error:.3g}; allowed {allowed:.3g}"


def check_each(names, got, expected, dtype):
    for name, a, b in zip(names.split(), got, expected, strict=True):
        check_close(name, a, b, dtype)


class Spy:
    """Stands before a function of _core and keeps what it was called with."""

    def __init__(self, monkeypatch, name):
        self.function = getattr(_core, name)
        self.calls = []
        monkeypatch.setattr(_core, name, self)

    def __call__(self, *arguments):
        self.calls.append(arguments)
        return self.function(*arguments)
