# tests/python/test_torch_out.py
"""out=: results in the caller's tensors."""

import keyhole
import pytest
import torch
from torch_reference import DEVICES, draw

SHAPE = (2, 4, 40, 16)
ELSEWHERE = {  # where out may lie
    "contiguous": lambda x: torch.empty_like(x),
    "heads inside": lambda x: torch.empty(2, 40, 4, 16, device=x.device).transpose(1, 2),
    "a part of more": lambda x: torch.empty(3, 6, 50, 32, device=x.device)[:2, 1:5, :40, 8:24],
    "last dimension not contiguous": lambda x: torch.empty(2, 4, 16, 40, device=x.device).transpose(2, 3),
    "the memory of q": lambda x: x,
    "a parameter": lambda x: torch.nn.Parameter(torch.empty_like(x)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("place", ELSEWHERE)
def test_the_result_is_written_where_it_is_wanted(place, device):
    q, k, v = (draw(*SHAPE, device=device, seed=i) for i in range(3))
    expected, expected_lse = keyhole.attention(q, k, v, "causal & window(9)", return_lse=True)
    out = ELSEWHERE[place](q)
    with torch.no_grad():
        version = out._version
        got, lse = keyhole.attention(q, k, v, "causal & window(9)", return_lse=True, out=out)
    assert got is out
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)
    assert out._version > version  # so that torch notices who needs the old values


def test_a_free_tensor_is_not_copied(monkeypatch):
    q, out = draw(*SHAPE), torch.empty(SHAPE)
    monkeypatch.setattr(torch.Tensor, "copy_", lambda *_: pytest.fail("copied"))
    assert keyhole.attention(q, q, q, "causal", out=out) is out


def test_layout_indices_and_more():
    q = draw(2, 40, 4, 16)
    expected = keyhole.attention(q, q, q, "causal", layout="bshd")
    out = torch.empty(2, 40, 4, 16)
    assert keyhole.attention(q, q, q, "causal", layout="bshd", out=out) is out
    assert torch.equal(out, expected)
    indices = torch.arange(3).expand(2, 1, 40, 3)
    x = q.transpose(1, 2)
    got = keyhole.attention(x, x, x, indices, out=torch.empty(2, 4, 40, 16))
    assert torch.equal(got, keyhole.attention(x, x, x, indices))
    with torch.inference_mode():
        assert torch.equal(keyhole.attention(x, x, x, "causal", out=torch.empty(SHAPE)), expected.transpose(1, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = keyhole.attention(x, x, x, "causal", out=torch.empty(SHAPE, dtype=torch.bfloat16))
    assert torch.allclose(half.float(), expected.transpose(1, 2), atol=0.05)


def test_under_compile_and_modes():
    from torch.utils.flop_counter import FlopCounterMode

    q = draw(*SHAPE)
    expected, out = keyhole.attention(q, q, q, "causal"), torch.empty(SHAPE)
    compiled = torch.compile(
        lambda q, out: keyhole.attention(q, q, q, "causal", out=out) + 1, fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(q, out), expected + 1)
    assert torch.equal(out, expected)
    with FlopCounterMode(display=False):
        got = keyhole.attention(q, q, q, "causal", out=out.zero_())
    assert got is out
    assert torch.equal(out, expected)


Q = torch.zeros(SHAPE)
ERRORS = {
    "shape": (Q, torch.zeros(2, 4, 39, 16), ValueError, r"out has shape \[2, 4, 39, 16\]; expected \[2, 4, 40, 16\]"),
    "dtype": (Q, Q.double(), TypeError, "out is torch.float64; expected torch.float32"),
    "device": (Q, Q.to("meta"), ValueError, "out is on meta; expected cpu"),
    "kind": (Q, Q.numpy(), TypeError, "out is a ndarray; pass torch tensors only"),
    "gradients": (Q.clone().requires_grad_(), Q.clone(), RuntimeError, "out= gives no gradients"),
    "gradients of out": (Q, Q.clone().requires_grad_(), RuntimeError, "out= gives no gradients"),
    "one place for many": (Q, torch.zeros(1).expand(SHAPE), RuntimeError, "more than one element"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_is_refused(name):
    q, out, kind, text = ERRORS[name]
    with pytest.raises(kind, match=text):
        keyhole.attention(q, Q, Q, "causal", out=out)
