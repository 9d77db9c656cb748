# tests/python/test_torch_nn.py
"""keyhole.nn: SparseAttention and set_patterns."""

import copy

import keyhole
import pytest
import torch
from keyhole.nn import SparseAttention, set_patterns
from torch_reference import DEVICES, check_close, check_each, draw, masks_of, reference

LOCAL = keyhole.causal() & keyhole.window(9)


def by_hand(layer, x, context=None, rotate=None):
    """The layer in fp64, from its weights."""
    context = x if context is None else context
    layer, x, context = copy.deepcopy(layer).double(), x.double(), context.double()
    q = layer.q_proj(x).unflatten(-1, (layer.num_heads, -1))
    k = layer.k_proj(context).unflatten(-1, (layer.num_kv_heads, -1))
    v = layer.v_proj(context).unflatten(-1, (layer.num_kv_heads, -1))
    if rotate is not None:
        q, k = rotate(q, k)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    allowed = masks_of(layer.pattern, q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    options = {"scale": layer.scale, "softcap": layer.softcap, "sink": layer.sink}
    out, _ = reference(q, k, v, allowed, **options)
    return layer.o_proj(out.transpose(1, 2).flatten(-2)), layer


LAYERS = {
    "plain": {},
    "grouped heads": {"num_kv_heads": 2},
    "head_dim": {"head_dim": 24},
    "bias": {"bias": True},
    "sink": {"sink": True, "num_kv_heads": 1},
    "softcap and scale": {"softcap": 2.0, "scale": 0.5},
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_does_what_it_says(name, device):
    torch.manual_seed(0)
    layer = SparseAttention(64, 4, LOCAL, **LAYERS[name]).to(device)
    x = draw(2, 40, 64, device=device).requires_grad_()
    out = layer(x)
    expected, twin = by_hand(layer, x)
    check_close("out", out, expected, torch.float32)
    dx = torch.autograd.grad(out.square().sum(), (x, *layer.parameters()))
    want = torch.autograd.grad(expected.square().sum(), (x, *twin.parameters()))
    names = " ".join(["x", *(name for name, _ in layer.named_parameters())])
    check_each(names, dx, want, torch.float32)


def test_context_and_rotation():
    layer = SparseAttention(64, 4, "causal")
    x, context = draw(2, 7, 64), draw(2, 40, 64)

    def rotate(q, k):  # not rotary, but depends on positions
        return q * torch.arange(7, 0, -1)[:, None, None], k.cos()

    expected, _ = by_hand(layer, x, context, rotate)
    check_close("out", layer(x, context, rotate=rotate), expected, torch.float32)


def test_state_dict_has_no_pattern():
    first = SparseAttention(64, 4, "causal", sink=True, bias=True)
    assert set(first.state_dict()) == {
        "sink",
        *(f"{name}_proj.{what}" for name in "qkvo" for what in ("weight", "bias")),
    }
    second = SparseAttention(64, 4, LOCAL, sink=True, bias=True)
    second.load_state_dict(first.state_dict())
    second.pattern = first.pattern
    x = draw(1, 40, 64)
    assert torch.equal(first(x), second(x))


def test_how_it_prints():
    layer = SparseAttention(64, 4, "causal & window(9)", num_kv_heads=2, sink=True, softcap=30.0)
    numbers = "64, num_heads=4, num_kv_heads=2, head_dim=16"
    assert layer.extra_repr() == f"{numbers}, pattern=keyhole.parse('causal & window(9)'), softcap=30.0, sink=True"


def test_each_layer_has_its_own_pattern():
    model = torch.nn.Sequential(*(SparseAttention(32, 2) for _ in range(3)))
    plan = keyhole.plan("blocks(8)", 40)
    set_patterns(model, ["causal", LOCAL, plan])
    assert [layer.pattern for layer in model] == [keyhole.causal(), LOCAL, plan]
    set_patterns(model, lambda layer: f"window({layer})")
    assert [str(layer.pattern) for layer in model] == ["window(0)", "window(1)", "window(2)"]
    with pytest.raises(ValueError, match="2 patterns for 3 SparseAttention layers"):
        set_patterns(model, ["causal", "dense"])


def test_layers_share_one_graph_under_compile():
    model = torch.nn.Sequential(*(SparseAttention(32, 2, f"causal & window({i})") for i in range(4)))
    x = draw(2, 40, 32).requires_grad_()
    expected = model(x)
    model.compile(backend="aot_eager", fullgraph=True)
    out = model(x)
    check_close("out", out, expected, torch.float32)
    check_each("dx", torch.autograd.grad(out.sum(), x), torch.autograd.grad(expected.sum(), x), torch.float32)


def test_a_layer_in_low_precision():
    layer = SparseAttention(64, 4, LOCAL, sink=True, dtype=torch.bfloat16)
    x = draw(2, 40, 64, dtype=torch.bfloat16)
    expected, _ = by_hand(layer, x)
    check_close("out", layer(x), expected, torch.bfloat16)
    layer(x).float().sum().backward()
    assert layer.sink.grad.dtype == torch.bfloat16


ERRORS = {
    "heads": ((64, 5), {}, ValueError, "embed_dim 64 is not a multiple of num_heads 5"),
    "kv heads": ((64, 4), {"num_kv_heads": 3}, ValueError, "num_heads is 4 and num_kv_heads 3"),
    "pattern": ((64, 4, 7), {}, TypeError, "expected a pattern or its text, found int"),
    "text": ((64, 4, "cusal"), {}, ValueError, 'did you mean "causal"'),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    arguments, options, kind, text = ERRORS[name]
    with pytest.raises(kind, match=text):
        SparseAttention(*arguments, **options)
