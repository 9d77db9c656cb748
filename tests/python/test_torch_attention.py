# tests/python/test_torch_attention.py
"""keyhole.attention and keyhole.merge on torch tensors: values, gradients, strides, options, errors."""

import contextlib
import gc
import math
from dataclasses import dataclass

import keyhole
import pytest
import torch
import torch.utils.flop_counter
from torch_reference import (
    DEVICES,
    ERRORS_ALLOWED,
    Spy,
    asked_by_methods,
    captured,
    check_close,
    check_each,
    draw,
    draw_qkv,
    masks_of,
    needs_gpu,
    reference,
)

EMPTY_ROWS = keyhole.causal() & keyhole.window(5, -2)  # query 0 and 1 see nothing


@dataclass
class Case:
    pattern: keyhole.Pattern
    batch: int = 1
    heads: int = 2
    kv_heads: int | None = None
    q_len: int = 40
    k_len: int | None = None
    head_dim: int = 16
    v_head_dim: int | None = None
    softcap: float = 0.0
    sink: bool = False
    scale: float | None = None
    layout: str = "bhsd"

    def sizes(self):
        names = ("batch", "heads", "kv_heads", "q_len", "k_len", "head_dim", "v_head_dim")
        return {name: getattr(self, name) for name in names}


CASES = {
    "causal": Case(keyhole.causal()),
    "one token": Case(keyhole.dense(), q_len=1),
    "window, two entries": Case(keyhole.causal() & keyhole.window(7), batch=2, q_len=130),
    "grouped heads": Case(keyhole.causal() & (keyhole.window(20) | keyhole.sinks(3)), heads=6, kv_heads=2, q_len=100),
    "decoding": Case(keyhole.causal(), q_len=3, k_len=77),
    "more queries than keys": Case(keyhole.causal(), q_len=50, k_len=20),
    "per head": Case(keyhole.per_head(keyhole.causal(), keyhole.blocks(8), keyhole.dilated(4)), heads=3),
    "ragged batch": Case(keyhole.per_batch(keyhole.documents([10, 30]), keyhole.documents([40])), batch=2),
    "other width of values": Case(keyhole.window(9), head_dim=24, v_head_dim=40),
    "softcap": Case(keyhole.causal(), softcap=2.0),
    "sink": Case(keyhole.causal() & keyhole.window(9), heads=4, kv_heads=2, sink=True),
    "sink and softcap": Case(keyhole.causal(), sink=True, softcap=3.0, scale=0.5),
    "scale": Case(keyhole.blocks(16), scale=1.7),
    "nothing to see": Case(EMPTY_ROWS),
    "length first": Case(keyhole.causal() & keyhole.window(9), batch=2, heads=4, kv_heads=2, layout="bshd"),
    "head_dim 128": Case(keyhole.causal() & keyhole.window(60), q_len=200, head_dim=128),
    "gathered keys": Case(
        keyhole.csr([i * 2 for i in range(151)], [j for i in range(150) for j in (i // 3, i)]), q_len=150
    ),
}
ON = [
    (device, dtype)
    for device in ("cpu", "cuda")
    for dtype in ERRORS_ALLOWED
    if (device, dtype) != ("cuda", torch.float64)
]
ON = [pytest.param(*x, marks=needs_gpu if x[0] == "cuda" else (), id=f"{x[0]}-{str(x[1])[6:]}") for x in ON]


def tensors_of(case, device, dtype):
    q, k, v = (x.requires_grad_() for x in draw_qkv(**case.sizes(), device=device, dtype=dtype))
    sink = draw(case.heads, device=device).requires_grad_() if case.sink else None
    return q, k, v, sink


def in_layout(tensor, case):
    return tensor.transpose(1, 2) if case.layout == "bshd" else tensor


def run(case, q, k, v, sink, **options):
    out, lse = keyhole.attention(
        *(in_layout(x, case) for x in (q, k, v)),
        case.pattern,
        scale=case.scale,
        layout=case.layout,
        softcap=case.softcap,
        sink=sink,
        return_lse=True,
        **options,
    )
    return in_layout(out, case), lse


def expect(case, q, k, v, sink):
    allowed = masks_of(case.pattern, q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return reference(q, k, v, allowed, scale=case.scale, softcap=case.softcap, sink=sink)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("device", "dtype"), ON)
def test_attention_and_its_gradients_follow_the_definition(name, device, dtype):
    case = CASES[name]
    q, k, v, sink = tensors_of(case, device, dtype)
    out, lse = run(case, q, k, v, sink)
    expected_out, expected_lse = expect(case, q, k, v, sink)
    assert out.dtype == dtype
    assert lse.dtype == (dtype if dtype == torch.float64 else torch.float32)
    assert out.device == q.device
    check_close("out", out, expected_out, dtype)
    check_close("lse", lse, expected_lse, dtype)

    dout = draw(*out.shape, device=device, dtype=dtype, seed=7)
    inputs = [x for x in (q, k, v, sink) if x is not None]
    gradients = torch.autograd.grad(out, inputs, dout)
    expected = torch.autograd.grad(expected_out, inputs, dout.double())
    check_each("dq dk dv dsink" if case.sink else "dq dk dv", gradients, expected, dtype)

    with torch.no_grad():  # the way without gradients gives the same bits
        again, lse_again = run(case, q, k, v, sink)
    assert torch.equal(again, out)
    assert torch.equal(lse_again, lse)


@pytest.mark.parametrize(
    "name", ["causal", "grouped heads", "sink", "sink and softcap", "nothing to see", "length first"]
)
@pytest.mark.parametrize(("device", "dtype"), ON)
@pytest.mark.parametrize("with_out", [True, False], ids=["out and lse", "lse alone"])
def test_gradients_of_lse(name, device, dtype, with_out):
    case = CASES[name]
    q, k, v, sink = tensors_of(case, device, dtype)
    inputs = [x for x in (q, k, v, sink) if x is not None]
    results, expected = run(case, q, k, v, sink), expect(case, q, k, v, sink)
    which = slice(0 if with_out else 1, 2)
    weights = [draw(*x.shape, device=device, dtype=x.dtype, seed=9) for x in results][which]
    weights[-1][results[1] == -torch.inf] = torch.nan  # what comes in for a row without keys must not go out
    got = torch.autograd.grad(results[which], inputs, weights)
    weights[-1] = weights[-1].nan_to_num(0)
    want = torch.autograd.grad(expected[which], inputs, [w.double() for w in weights], allow_unused=True)
    want = [torch.zeros_like(x) if gradient is None else gradient for x, gradient in zip(inputs, want, strict=True)]
    check_each("dq dk dv dsink" if case.sink else "dq dk dv", got, want, dtype)


HUGE = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
ON_EACH = pytest.mark.parametrize("backend", ["cpu", *(pytest.param(x, marks=needs_gpu) for x in ("auto", "sm80"))])


@pytest.mark.parametrize(
    ("pattern", "q_len", "k_len", "head_dim"),
    [
        ("dense", 200, 200, 64),
        ("causal & window(99)", 300, 300, 128),
        ("dilated(3)", 70, 500, 64),
        ("dense", 150, 150, 256),
        ("dense", 40, 5000, 64),
        ("dense", 3, 5000, 64),
    ],
    ids=["dense", "window", "residue classes", "wide", "split lists", "key lists"],
)
@HUGE
@ON_EACH
def test_scores_between_which_fp32_has_no_numbers(backend, dtype, pattern, q_len, k_len, head_dim):
    """All keys score the same, 2^27 to 2^36 in base 2 or minus that: a maximum that was rounded may be far from all."""
    device = "cpu" if backend == "cpu" else "cuda"
    mask = masks_of(keyhole.parse(pattern), 1, 2, q_len, k_len).to(device)
    v = 1 + draw(1, 2, k_len, head_dim, device=device, dtype=dtype)
    for size in (4096, 8192, -12288, 17408, -24576, 45056, 61440):
        q = torch.full((1, 2, q_len, head_dim), size, device=device, dtype=dtype)
        k = torch.full((1, 2, k_len, head_dim), abs(size), device=device, dtype=dtype)
        expected = reference(q, k, v, mask)
        for sink in (None, torch.tensor([0.0, 5.0], device=device)):
            is_sink_all = sink is not None and size < 0
            out, lse = keyhole.attention(q, k, v, pattern, backend=backend, sink=sink, return_lse=True)
            check_close(f"out of {size}", out, torch.zeros_like(out) if is_sink_all else expected[0], dtype)
            expected_lse = sink.double()[None, :, None].expand(lse.shape) if is_sink_all else expected[1]
            assert torch.allclose(lse.double(), expected_lse, rtol=1e-5)


@needs_gpu
@HUGE
@pytest.mark.parametrize("backend", ["auto", "sm80"])
@pytest.mark.parametrize("k_len", [100, 5000], ids=["one list", "split lists"])
def test_huge_scores_that_differ_a_little(backend, dtype, k_len):
    """By 8, in 1.3e8, where sums of fp32 are 16 apart: more than is promised, but products of these numbers are exact,
    and kernels of tiles sum them in fp64. The second half of the keys has e^-8 of the weight, also where it is another
    chunk of the list."""
    q, k = (torch.full((1, 1, length, 64), 4096.0, device="cuda") for length in (40, k_len))
    is_first = torch.arange(k_len, device="cuda") < k_len // 2
    q[..., 0], k[..., 0] = 1, torch.where(is_first, 192.0, 128.0)
    v = torch.where(is_first, 1.0, 0.0)[None, None, :, None].repeat(1, 1, 1, 64)
    out = keyhole.attention(q.to(dtype), k.to(dtype), v.to(dtype), "dense", backend=backend)
    assert (out.double() - 1 / (1 + math.exp(-8))).abs().max() < 4e-3


@pytest.mark.parametrize("name", ["causal", "grouped heads", "softcap", "nothing to see", "gathered keys", "per head"])
def test_gradcheck(name):
    case = CASES[name]
    sizes = {**case.sizes(), "head_dim": 4}
    inputs = [x.requires_grad_() for x in draw_qkv(**sizes, dtype=torch.float64)]

    def both(q, k, v):
        return keyhole.attention(q, k, v, case.pattern, softcap=case.softcap, return_lse=True)

    if name == "nothing to see":  # numerical differences of -inf are NaN
        torch.autograd.gradcheck(lambda *x: both(*x)[0], inputs, fast_mode=True)
    else:
        torch.autograd.gradcheck(both, inputs, fast_mode=True)


@pytest.mark.parametrize("way", ["plain", "op"])
@pytest.mark.parametrize("which", ["out", "lse"])
def test_only_who_differentiates_lse_pays_for_it(monkeypatch, way, which):
    spy = Spy(monkeypatch, "backward")
    q, k, v = (x.requires_grad_() for x in draw_qkv(head_dim=16))
    with torch.utils.flop_counter.FlopCounterMode(display=False) if way == "op" else contextlib.nullcontext():
        out, lse = keyhole.attention(q, k, v, "causal", return_lse=True)
    (out if which == "out" else lse).sum().backward()
    widths = [call[4].shape[3] for call in spy.calls]
    assert widths == [16 if which == "out" else 24]  # of v


def test_grad_mode_decides_not_the_inputs_alone():
    q, k, v = (x.requires_grad_() for x in draw_qkv())
    assert keyhole.attention(q, k, v, "causal").requires_grad
    with torch.no_grad():
        assert not keyhole.attention(q, k, v, "causal").requires_grad
    with torch.inference_mode():
        assert keyhole.attention(q, k, v, "causal").is_inference()
    out = keyhole.attention(q.detach(), k.detach(), v, "causal")  # one input is enough
    out.sum().backward()
    assert v.grad is not None
    assert q.grad is None


def sliced(x):
    """The same values inside of a larger tensor, its first element not aligned to 16 bytes."""
    big = torch.full((*x.shape[:-1], x.shape[-1] + 5), torch.nan, dtype=x.dtype, device=x.device)
    big[..., 3:-2] = x
    return big[..., 3:-2]


STRIDES = {
    "length first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "batch last but one": lambda x: x.permute(1, 2, 0, 3).contiguous().permute(2, 0, 1, 3),
    "inside of a larger one": sliced,
    "columns far apart": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "negative imaginary part": lambda x: torch.complex(torch.zeros_like(x.float()), -x.float()).conj().imag.to(x.dtype),
    "every second": lambda x: torch.stack([x, torch.full_like(x, torch.nan)], -1).flatten(-2)[..., ::2],
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", STRIDES)
def test_any_strides(name, dtype, device):
    q, k, v = draw_qkv(batch=2, heads=4, kv_heads=2, device=device, dtype=dtype)
    dout = draw(*q.shape, device=device, dtype=dtype, seed=5)

    def results(*tensors):
        inputs = [x.detach().requires_grad_() for x in tensors]
        out = keyhole.attention(*inputs, "causal & window(9)")
        return out, *torch.autograd.grad(out, inputs, dout if inputs[0].is_contiguous() else STRIDES[name](dout))

    plain, strided = results(q, k, v), results(*map(STRIDES[name], (q, k, v)))
    check_each("out dq dk dv", strided, plain, dtype)


def negated(x):
    """The same numbers, of which memory has the negatives."""
    of_complex = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert of_complex.is_neg()
    return of_complex


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("has_table", [True, False], ids=["asked by C functions", "asked by methods"])
@pytest.mark.parametrize("head_dim", [1, 16])  # rows of one element have no stride that gives them away
def test_memory_with_the_other_sign(has_table, device, head_dim):
    q, k, v = draw_qkv(heads=4, kv_heads=2, head_dim=head_dim, device=device)
    dout, sink = draw(*q.shape, device=device, seed=5), draw(4, device=device, seed=6)
    indices = torch.arange(8, device=device).expand(1, 2, q.shape[2], 8).contiguous()

    def results(change):
        of_qkv = [change(x) for x in (q, k, v)]
        plain = keyhole.attention(*of_qkv, "causal")
        with_sink, lse = keyhole.attention(*of_qkv, "causal", sink=change(sink), return_lse=True)
        gathered = keyhole.gather_attention(*of_qkv, indices)
        merged = keyhole.merge(change(plain), change(lse), change(with_sink), change(lse))
        inputs = [x.detach().requires_grad_() for x in (*of_qkv, change(sink))]
        out = keyhole.attention(*inputs[:3], "causal", sink=inputs[3])
        return plain, with_sink, lse, gathered, *merged, *torch.autograd.grad(out, inputs, change(dout))

    with contextlib.nullcontext() if has_table else asked_by_methods():
        got, want = results(negated), results(lambda x: x)
    names = "plain with_sink lse gathered merged merged_lse dq dk dv dsink"
    for name, a, b in zip(names.split(), got, want, strict=True):
        assert torch.equal(a, b) if device == "cpu" else torch.allclose(a, b, atol=1e-5), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["float32", "float16", "bfloat16"]
)
def test_both_ways_to_ask_a_tensor_give_the_same(dtype, device):
    q, k, v = (x.requires_grad_() for x in draw_qkv(heads=4, kv_heads=2, device=device, dtype=dtype))
    q, k, v = sliced(q), k.transpose(1, 2).contiguous().transpose(1, 2), STRIDES["columns far apart"](v)

    def run():
        out, lse = keyhole.attention(q, k, v, "causal", return_lse=True, deterministic=True)
        return out, lse, *torch.autograd.grad(out, (q, k, v), torch.ones_like(out))

    fast = run()
    with asked_by_methods():
        slow = run()
        with pytest.raises(TypeError, match=r"q is torch.int64; accepted are float16"):
            keyhole.attention(q.long(), k.long(), v.long(), "causal")
    assert all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_expanded_inputs_and_gradients(device):
    q, k, v = draw_qkv(batch=3, device=device)
    shared = k[:1].requires_grad_()
    out = keyhole.attention(q, shared.expand(3, -1, -1, -1), v, "causal")
    out.sum().backward()  # its gradient has stride 0 everywhere
    expected, _ = reference(q, shared.expand(3, -1, -1, -1), v, masks_of(keyhole.causal(), 3, 2, 40, 40))
    want = torch.autograd.grad(expected.sum(), shared)[0]
    check_close("out", out, expected, torch.float32)
    check_close("dk", shared.grad, want, torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_out_lies_in_memory_as_q_does(device):
    x = draw(2, 40, 4, 16, device=device)
    assert keyhole.attention(x, x, x, "causal", layout="bshd").is_contiguous()
    q = x.transpose(1, 2)
    assert keyhole.attention(q, q, q, "causal").transpose(1, 2).is_contiguous()
    q = q.contiguous()
    assert keyhole.attention(q, q, q, "causal").is_contiguous()


@pytest.mark.parametrize("sizes", [(0, 2, 8, 8), (2, 2, 0, 8), (2, 2, 8, 0)], ids=["batch", "queries", "keys"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_no_elements(sizes, device, layout):
    batch, heads, q_len, k_len = sizes

    def leaf(length, width):
        order = (batch, length, heads, width) if layout == "bshd" else (batch, heads, length, width)
        return draw(*order, device=device).requires_grad_()

    q, k, v = leaf(q_len, 16), leaf(k_len, 16), leaf(k_len, 8)
    out, lse = keyhole.attention(q, k, v, keyhole.dense(), return_lse=True, layout=layout)
    assert out.shape == leaf(q_len, 8).shape
    assert not out.any()
    assert (lse == -torch.inf).all()
    out.sum().backward()
    assert not any(x.grad.any() for x in (q, k, v))


NO_ELEMENTS_EXPANDED = {  # shapes of q and of k and v, and what they are expanded from
    "no queries, one entry": ((3, 2, 0, 8), (3, 2, 5, 8), (1, 2, 0, 8), (1, 2, 5, 8)),
    "no queries, one head": ((3, 2, 0, 8), (3, 2, 5, 8), (3, 1, 0, 8), (3, 1, 5, 8)),
    "no queries, one of both": ((3, 2, 0, 8), (3, 2, 5, 8), (1, 1, 0, 8), (1, 1, 5, 8)),
    "no keys, one entry": ((3, 2, 5, 8), (3, 2, 0, 8), (1, 2, 5, 8), (1, 2, 0, 8)),
    "no keys, one head": ((3, 2, 5, 8), (3, 2, 0, 8), (3, 1, 5, 8), (3, 1, 0, 8)),
    "no entries": ((0, 2, 5, 8), (0, 2, 5, 8), (0, 1, 5, 8), (0, 1, 5, 8)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", ["plain", "op"])
@pytest.mark.parametrize("name", NO_ELEMENTS_EXPANDED)
def test_no_elements_of_expanded_tensors(name, way, device):
    """Their strides may be 0, which those of results must not be."""
    q_shape, k_shape, q_from, k_from = NO_ELEMENTS_EXPANDED[name]
    q, k, v = (
        draw(*few, device=device).expand(shape).detach().requires_grad_()
        for few, shape in ((q_from, q_shape), (k_from, k_shape), (k_from, k_shape))
    )
    with torch.utils.flop_counter.FlopCounterMode(display=False) if way == "op" else contextlib.nullcontext():
        for x in (q.detach(), q):  # without and with gradients
            out = keyhole.attention(x, k.detach(), v.detach(), "dense")
            assert out.shape == q_shape
            assert not out.any()
            assert all(stride > 0 for stride in out.stride())
        keyhole.attention(q, k, v, "dense").sum().backward()
    for x in (q, k, v):
        assert x.grad.shape == x.shape
        assert not x.grad.any()


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_a_result_changed_in_place_is_noticed(layout):
    q, k, v = (in_layout(x, Case(None, layout=layout)).requires_grad_() for x in draw_qkv(batch=2))
    out = keyhole.attention(q, k, v, "causal", layout=layout)
    out += 1  # the backward pass needs it as it was
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_threads_of_torch_are_obeyed(monkeypatch):
    spy = Spy(monkeypatch, "forward")
    q, k, v = draw_qkv()
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            keyhole.attention(q, k, v, "causal", return_lse=True)
    finally:
        torch.set_num_threads(before)
    assert [call[13] for call in spy.calls] == [1, 2]


@pytest.mark.parametrize("how", ["nothing", "argument", "torch"])
def test_deterministic(monkeypatch, how):
    spy = Spy(monkeypatch, "backward")
    q, k, v = (x.requires_grad_() for x in draw_qkv())
    torch.use_deterministic_algorithms(how == "torch")
    try:
        keyhole.attention(q, k, v, "causal", deterministic=how == "argument").sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert [call[18] for call in spy.calls] == [how != "nothing"]


@pytest.mark.parametrize("device", DEVICES)
def test_deterministic_gradients_have_the_same_bits(device):
    q, k, v = (
        x.requires_grad_()
        for x in draw_qkv(heads=8, kv_heads=2, q_len=500, head_dim=64, device=device, dtype=torch.bfloat16)
    )
    out = keyhole.attention(q, k, v, "causal & (window(100) | dilated(16))", deterministic=True)
    runs = [torch.autograd.grad(out.float().square().sum(), (q, k, v), retain_graph=True) for _ in range(10)]
    assert all(torch.equal(a, b) for run in runs for a, b in zip(run, runs[0], strict=True))


def test_autocast_casts_as_torch_does():
    q, k, v = (x.requires_grad_() for x in draw_qkv())
    sink = draw(2).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, lse = keyhole.attention(q, k, v, "causal", sink=sink, return_lse=True)
        doubles = keyhole.attention(q.double(), k.double(), v.double(), "causal")
        torchs = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert out.dtype == torch.bfloat16
    assert lse.dtype == torch.float32
    assert doubles.dtype == torchs.dtype == torch.float64
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32
    assert sink.grad.dtype == torch.float32
    plain = keyhole.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), "causal", sink=sink)
    assert torch.equal(out, plain)


def test_sink_of_another_dtype():
    q, k, v = draw_qkv(dtype=torch.bfloat16)
    sink = draw(2, dtype=torch.bfloat16).requires_grad_()
    keyhole.attention(q, k, v, "causal", sink=sink).float().sum().backward()
    assert sink.grad.dtype == torch.bfloat16
    assert sink.grad.any()


def test_an_evicted_plan_lives_as_long_as_the_graph():
    q, k, v = (x.requires_grad_() for x in draw_qkv(dtype=torch.float64))
    out = keyhole.attention(q, k, v, "causal & window(5)")
    keyhole.plan_cache.clear()
    gc.collect()
    got = torch.autograd.grad(out.sum(), (q, k, v))
    expected, _ = reference(q, k, v, masks_of(keyhole.parse("causal & window(5)"), 1, 2, 40, 40))
    check_each("dq dk dv", got, torch.autograd.grad(expected.sum(), (q, k, v)), torch.float64)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_merge_joins_disjoint_keys(device, layout):
    case = Case(keyhole.causal(), batch=2, layout=layout)
    q, k, v = (x.requires_grad_() for x in draw_qkv(batch=2, device=device))
    options = {"layout": layout, "return_lse": True}
    parts = ["causal & window(5)", "causal & ~window(5)"]
    qkv = [in_layout(x, case) for x in (q, k, v)]
    results = [keyhole.attention(*qkv, part, **options) for part in parts]
    out, lse = keyhole.merge(*results[0], *results[1], layout=layout)
    expected_out, expected_lse = reference(q, k, v, masks_of(keyhole.causal(), 2, 2, 40, 40))
    check_close("out", in_layout(out, case), expected_out, torch.float32)
    check_close("lse", lse, expected_lse, torch.float32)
    weights = draw(*expected_out.shape, device=device, seed=3), draw(*lse.shape, device=device, seed=4)
    got = torch.autograd.grad((in_layout(out, case), lse), (q, k, v), weights)
    want = torch.autograd.grad((expected_out, expected_lse), (q, k, v), [w.double() for w in weights])
    check_each("dq dk dv", got, want, torch.float32)


def test_merge_of_rows_that_saw_nothing():
    outs = [torch.zeros(1, 1, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    lses = [torch.full((1, 1, 3), -torch.inf, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    out, lse = keyhole.merge(outs[0], lses[0], outs[1], lses[1])
    assert not out.any()
    assert (lse == -torch.inf).all()
    gradients = torch.autograd.grad((out, lse), [*outs, *lses], (torch.ones_like(out), torch.full_like(lse, torch.nan)))
    assert not any(g.any() for g in gradients)


ERRORS = {
    "three dimensions": (
        lambda q: keyhole.attention(q[0], q[0], q[0], "causal"),
        ValueError,
        "q has 3 dimensions; expected 4",
    ),
    "layout": (lambda q: keyhole.attention(q, q, q, "causal", layout="sbhd"), ValueError, "layout is 'sbhd'"),
    "dtype": (lambda q: keyhole.attention(q.int(), q.int(), q.int(), "causal"), TypeError, "torch.int32"),
    "two dtypes": (lambda q: keyhole.attention(q, q.double(), q, "causal"), ValueError, "q is f32 but k is f64"),
    "array": (lambda q: keyhole.attention(q, q.numpy(), q, "causal"), TypeError, "k is a ndarray"),
    "pattern": (
        lambda q: keyhole.attention(q, q, q, 3),
        TypeError,
        "lists is an int; accepted are a pattern, its text, a plan",
    ),
    "text": (lambda q: keyhole.attention(q, q, q, "cusal"), ValueError, 'did you mean "causal"'),
    "plan": (lambda q: keyhole.attention(q, q, q, keyhole.plan("causal", 41)), ValueError, "made for 41 queries"),
    "heads": (lambda q: keyhole.attention(q[:, :1], q, q, "causal"), ValueError, "multiple"),
    "backend": (lambda q: keyhole.attention(q, q, q, "causal", backend="cpx"), ValueError, "accepted are auto"),
    "sink": (lambda q: keyhole.attention(q, q, q, "causal", sink=torch.zeros(3)), ValueError, "one logit per head"),
    "scale": (lambda q: keyhole.attention(q, q, q, "causal", scale=torch.inf), ValueError, "scale is inf"),
    "merge": (lambda q: keyhole.merge(q[0], q[0], q[0], q[0]), ValueError, "out has 3 dimensions"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_say_what_was_passed_and_what_is_accepted(name):
    call, kind, text = ERRORS[name]
    with pytest.raises(kind, match=text):
        call(draw_qkv()[0])


@needs_gpu
def test_two_devices_are_refused():
    q = draw_qkv()[0]
    with pytest.raises(ValueError, match="q is on GPU 0 but k is in host memory"):
        keyhole.attention(q.cuda(), q, q, "causal")


@needs_gpu
def test_the_current_stream_is_used():
    q, k, v = draw_qkv(q_len=512, head_dim=64, device="cuda")
    expected = keyhole.attention(q, k, v, "causal")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late = q * 1  # only ready when the stream is past its sleep
        out = keyhole.attention(late, k, v, "causal")
    assert not stream.query()  # nothing waited
    stream.synchronize()
    assert torch.equal(out, expected)


@needs_gpu
def test_cuda_graph_of_forward_and_backward():
    plan = keyhole.plan("causal & window(63)", 256)  # held here: a graph does not hold it
    q, k, v = (x.requires_grad_() for x in draw_qkv(q_len=256, head_dim=64, device="cuda", dtype=torch.bfloat16))
    dout = draw(1, 2, 256, 64, device="cuda", dtype=torch.bfloat16)

    def step():
        out = keyhole.attention(q, k, v, plan)
        return out, *torch.autograd.grad(out, (q, k, v), dout)

    graph, results = captured(step)
    with torch.no_grad():
        for x in (q, k, v):
            x.mul_(0.5)
    graph.replay()
    check_each("out dq dk dv", results, step(), torch.bfloat16)
