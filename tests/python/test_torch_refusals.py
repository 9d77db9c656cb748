# tests/python/test_torch_refusals.py
"""Tensors that kernels cannot read or learn, wherever one can be passed: refused by name, with the way out."""

import keyhole
import numpy as np
import pytest
import torch
from keyhole.torch_attention import call
from torch.utils.flop_counter import FlopCounterMode
from torch_reference import draw

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, that a kind of tensor is young, or will go


def nested(x, **options):
    return torch.nested.nested_tensor(list(x), **options)


def quantized(x):
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


IS_NESTED = r"{0} is a nested tensor; accepted are dense ones.*from_cu_seqlens.*to_padded_tensor\({0}, 0.0\)"
HAS_LAYOUT = r"{0} has layout torch.%s; accepted is torch.strided: pass {0}.to_dense\(\)"
# How one is made of a dense tensor, and what is said of it.
KINDS = {
    "coo": (lambda x: x.to_sparse(), HAS_LAYOUT % "sparse_coo"),
    "hybrid": (lambda x: x.to_sparse(1), HAS_LAYOUT % "sparse_coo"),
    "csr": (lambda x: x.to_sparse_csr(), HAS_LAYOUT % "sparse_csr"),
    "mkldnn": (lambda x: x.to_mkldnn(), HAS_LAYOUT % "_mkldnn"),
    "nested": (nested, IS_NESTED),
    "jagged": (lambda x: nested(x, layout=torch.jagged), IS_NESTED),
    "quantized": (quantized, r"{0} is quantized, torch.qint8; accepted are plain numbers: pass {0}.dequantize\(\)"),
    "meta": (lambda x: x.to("meta"), r"{0} is on meta, where tensors have no values.*; pass "),
}
OF_MATRICES = {"csr", "nested", "jagged"}
OF_FLOATS = {"mkldnn", "quantized"}
SEEN_BY_ATTENTION = {"quantized", "meta"}  # which scaled_dot_product_attention calls, by its own names


def of_a_plan(q, k, v):
    return keyhole.attention(q, k, v, keyhole.plan("causal", 24, batch=2, heads=4))


def attention(q, k, v, sink=None):
    return keyhole.attention(q, k, v, "causal", sink=sink)


def with_layout(q, k, v):
    return keyhole.attention(q, k, v, "causal", layout="bshd")


def with_gradients(q, k, v):
    return keyhole.attention(q, k, v, "causal", sink=torch.zeros(4, device=q.device, requires_grad=True))


def with_a_mode(q, k, v):
    with FlopCounterMode(display=False):
        return keyhole.attention(q, k, v, "causal")


Q, LSE, SINK = draw(2, 4, 24, 16), draw(2, 4, 24), draw(4)
QKV = {"q": Q, "k": Q, "v": Q}
CALLS = {
    of_a_plan: QKV,
    attention: {**QKV, "sink": SINK},
    with_layout: QKV,
    with_gradients: QKV,
    with_a_mode: QKV,
    keyhole.gather_attention: {**QKV, "indices": torch.zeros(2, 4, 24, 3, dtype=torch.int64), "sink": SINK},
    keyhole.merge: {"out": Q, "lse": LSE, "other_out": Q, "other_lse": LSE},
    keyhole.scaled_dot_product_attention: {"query": Q, "key": Q, "value": Q},
}
MASK = torch.ones(24, 24, dtype=torch.bool)
PLACES = [
    *((function, arguments, name) for function, arguments in CALLS.items() for name in arguments),
    (keyhole.scaled_dot_product_attention, {"query": Q, "key": Q, "value": Q, "attn_mask": MASK}, "attn_mask"),
]


def can_be_made(kind, dense):
    if kind == "mkldnn" and not torch.backends.mkldnn.is_available():
        return False
    return (dense.dim() > 1 or kind not in OF_MATRICES) and (dense.is_floating_point() or kind not in OF_FLOATS)


CASES = [
    pytest.param(*place, kind, id=f"{place[0].__name__}-{place[2]}-{kind}")
    for place in PLACES
    for kind in KINDS
    if can_be_made(kind, place[1][place[2]])
]


@pytest.mark.parametrize(("function", "arguments", "name", "kind"), CASES)
def test_tensors_that_kernels_cannot_read(function, arguments, name, kind):
    make, text = KINDS[kind]
    shown = name if kind not in SEEN_BY_ATTENTION else {"query": "q", "key": "k", "value": "v"}.get(name, name)
    with pytest.raises(TypeError, match=": " + text.format(shown)):
        function(**{**arguments, name: make(arguments[name])})


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
def test_all_tensors_on_meta_give_the_shape(function):
    arguments = CALLS[function]
    results = function(**{name: tensor.to("meta") for name, tensor in arguments.items()})
    expected = function(**arguments)
    for result, real in zip(*([x] if isinstance(x, torch.Tensor) else x for x in (results, expected)), strict=True):
        assert result.is_meta
        assert (result.shape, result.stride(), result.dtype) == (real.shape, real.stride(), real.dtype)


@pytest.mark.parametrize("function", [of_a_plan, attention, with_layout, with_gradients, keyhole.gather_attention])
def test_a_sound_call_does_not_wait_for_the_question(function, monkeypatch):
    monkeypatch.setattr(call, "refuse_unreadable", lambda *_, **__: pytest.fail("asked"))
    function(**CALLS[function])


def test_errors_of_readable_tensors_stay_what_they_were():
    with pytest.raises(ValueError, match="made for 41 queries"):
        keyhole.attention(Q, Q, Q, keyhole.plan("causal", 41), return_lse=True)
    with pytest.raises(ValueError, match=r"indices\[0, 0, 0, 0\] is 24; k has 24 keys"):
        keyhole.gather_attention(Q, Q, Q, torch.full((2, 4, 24, 3), 24))


@pytest.mark.parametrize("sink", [np.zeros(4, np.float32), [0.0] * 4], ids=["array", "list"])
@pytest.mark.parametrize("function", [attention, keyhole.gather_attention])
def test_sinks_that_are_no_tensors(function, sink):
    with pytest.raises(TypeError, match=f"sink is a {type(sink).__name__}; pass torch tensors only"):
        function(**{**CALLS[function], "sink": sink})


@pytest.mark.parametrize("name", ["query", "key", "value", "attn_mask"])
@pytest.mark.parametrize("make", [lambda x: x.numpy(), lambda x: x.tolist()], ids=["array", "list"])
def test_what_sdpa_takes_is_a_tensor(name, make):
    arguments = {"query": Q, "key": Q, "value": Q, "attn_mask": MASK}
    text = rf"{name} is a (ndarray|list); expected a torch tensor.*keyhole.attention\(q, k, v, pattern\), or convert"
    with pytest.raises(TypeError, match=text):
        keyhole.scaled_dot_product_attention(**{**arguments, name: make(arguments[name])})


def sparse_layer(**options):
    return keyhole.nn.SparseAttention(64, 4, **options)


def compiled(**options):
    torch.compiler.reset()  # after some options for one function torch gives up, and would compile what is inside
    return torch.compile(lambda q: keyhole.attention(q, q, q, "causal", **options), backend="eager")(Q)


def short_way_first(**options):
    return keyhole.attention(Q, Q, Q, "causal", **options)


def with_gradient(**options):
    return keyhole.attention(Q.clone().requires_grad_(), Q, Q, "causal", **options)


def gathering(**options):
    return keyhole.gather_attention(**CALLS[keyhole.gather_attention], **options)


def sdpa(**options):
    return keyhole.scaled_dot_product_attention(Q, Q, Q, **options)


TENSORS = {
    "parameter": lambda: torch.nn.Parameter(torch.tensor(0.5)),
    "number": lambda: torch.tensor(0.5),
    "one number": lambda: torch.tensor([0.5]),
}
WAYS_OUT = {
    "scale": r"pass float\(scale\)\. To learn it, multiply q by it and pass scale=1\.0",
    "softcap": r"pass float\(softcap\)",
}
OPTIONS = [
    pytest.param(take, name, id=f"{take.__name__}-{name}")
    for take in (short_way_first, with_gradient, compiled, gathering, sparse_layer, sdpa)
    for name in WAYS_OUT
    if not (take is sdpa and name == "softcap")  # torch's has none
]


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize(("take", "name"), OPTIONS)
def test_options_that_are_tensors_would_not_be_learned(take, name, tensor):
    with pytest.raises(TypeError, match=f": {name} is a torch tensor; accepted are numbers.*{WAYS_OUT[name]}"):
        take(**{name: TENSORS[tensor]()})


NUMBERS = [
    pytest.param(*option.values, number, id=f"{option.id}-{number!r}")
    for option in OPTIONS
    for number in (2, 0.5, np.float64(0.5), np.float32(0.5))
    if not (option.values[0] is compiled and isinstance(number, np.generic))  # in torch 2.6 Dynamo makes arrays of them
]


@pytest.mark.parametrize(("take", "name", "number"), NUMBERS)
def test_options_are_numbers_of_any_kind(take, name, number):
    take(**{name: number})


def test_the_way_out_learns_a_scale():
    scale = torch.nn.Parameter(torch.tensor(0.5))
    out = keyhole.attention(Q * scale, Q, Q, "causal", scale=1.0)
    torch.testing.assert_close(out, keyhole.attention(Q, Q, Q, "causal", scale=0.5))
    out.sum().backward()
    assert scale.grad is not None
