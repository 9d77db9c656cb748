# tests/python/test_numpy_attention.py
"""NumPy arrays in, NumPy arrays out: against the textbook in fp64, for every dtype, layout, option and stride."""

from __future__ import annotations

from dataclasses import dataclass

import keyhole
import numpy as np
import numpy_reference as reference
import pytest
from properties import given, settings, st


@dataclass(frozen=True)
class Case:
    pattern: str
    q_len: int
    k_len: int
    batch: int = 1
    q_heads: int = 2
    kv_heads: int = 2
    head_dim: int = 16
    v_head_dim: int = 16

    def __str__(self) -> str:
        return f"{self.pattern}-{self.q_len}x{self.k_len}-{self.q_heads}/{self.kv_heads}-{self.head_dim}"

    def arrays(self, dtype=np.float32, seed=0):
        rng = np.random.default_rng(seed)
        shapes = [
            (self.batch, self.q_heads, self.q_len, self.head_dim),
            (self.batch, self.kv_heads, self.k_len, self.head_dim),
            (self.batch, self.kv_heads, self.k_len, self.v_head_dim),
        ]
        return [rng.standard_normal(shape).astype(dtype) for shape in shapes]

    def mask(self):
        pattern = keyhole.parse(self.pattern)
        heads = [
            [pattern.mask(self.q_len, self.k_len, batch=b, head=h) for h in range(self.q_heads)]
            for b in range(self.batch)
        ]
        return np.array(heads).reshape(self.batch, self.q_heads, self.q_len, self.k_len)


CASES = [
    Case("dense", 5, 9),
    Case("causal", 33, 33),
    Case("causal", 3, 70, kv_heads=1),
    Case("causal", 20, 7),  # the first queries see nothing
    Case("causal & (window(7) | sinks(2))", 65, 65, batch=2, head_dim=24),
    Case("streaming(2, 9)", 40, 80, q_heads=6, kv_heads=2),
    Case("documents(10, 0, 23)", 33, 33, head_dim=8, v_head_dim=40),
    Case("dilated(4) & causal", 50, 50),
    Case("bigbird(4, 3, 1, 1, 7)", 48, 48),
    Case("per_head(causal, window(3))", 17, 17),
    Case("per_batch(causal & documents(5, 12), causal & documents(9, 8))", 17, 17, batch=2),
    Case("~dense", 6, 6),
    Case("random(1, 3, 5)", 30, 30, head_dim=64),
    Case("causal", 1, 1, head_dim=1, v_head_dim=1),
]
DTYPES = [np.float16, np.float32, np.float64]


def bfloat16():
    return pytest.importorskip("ml_dtypes", reason="ml_dtypes gives NumPy its bfloat16").bfloat16


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_follows_the_pattern(case, dtype):
    q, k, v = case.arrays(dtype)
    out, lse = keyhole.attention(q, k, v, case.pattern, return_lse=True)
    want = reference.forward(q, k, v, case.mask())
    assert out.dtype == dtype
    assert lse.dtype == (np.float64 if dtype == np.float64 else np.float32)
    reference.check("out", out, want.out)
    reference.check("lse", lse, want.lse)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_follow_the_pattern(case, dtype):
    q, k, v = case.arrays(dtype)
    dout = np.random.default_rng(1).standard_normal((case.batch, case.q_heads, case.q_len, case.v_head_dim))
    dout = dout.astype(dtype)
    out, lse = keyhole.attention(q, k, v, case.pattern, return_lse=True)
    dq, dk, dv = keyhole.attention_backward(dout, q, k, v, out, lse, case.pattern)
    want = reference.backward(dout, q, k, v, case.mask())
    for name, got in (("dq", dq), ("dk", dk), ("dv", dv)):
        assert got.dtype == dtype
        reference.check(name, got, getattr(want, name), factor=256)


def test_bfloat16_of_ml_dtypes():
    case = CASES[4]
    q, k, v = case.arrays(bfloat16())
    out, lse = keyhole.attention(q, k, v, case.pattern, return_lse=True)
    want = reference.forward(q, k, v, case.mask())
    assert out.dtype == q.dtype
    reference.check("out", out, want.out)
    reference.check("lse", lse, want.lse, factor=2.0**17)  # fp32, from scores of rounded products


@pytest.mark.parametrize("options", [{"scale": 0.3}, {"softcap": 1.5}, {"scale": 2.0, "softcap": 0.7}], ids=str)
@pytest.mark.parametrize("has_sink", [False, True])
def test_options(options, has_sink):
    case = Case("causal & window(7)", 21, 30, q_heads=4, kv_heads=2)
    q, k, v = case.arrays(np.float64)
    sink = np.array([-1.0, 0.0, 2.0, -np.inf], np.float32) if has_sink else None
    out, lse = keyhole.attention(q, k, v, case.pattern, return_lse=True, sink=sink, **options)
    want = reference.forward(q, k, v, case.mask(), sink=sink, **options)
    reference.check("out", out, want.out)
    reference.check("lse", lse, want.lse)
    dout = np.ones_like(out)
    gradients = keyhole.attention_backward(dout, q, k, v, out, lse, case.pattern, sink=sink, **options)
    expected = reference.backward(dout, q, k, v, case.mask(), sink=sink, **options)
    assert len(gradients) == (4 if has_sink else 3)
    for name, got in zip(("dq", "dk", "dv", "dsink"), gradients, strict=False):
        reference.check(name, got, getattr(expected, name), factor=256)


def test_layout_bshd_is_a_view_of_bhsd():
    case = CASES[4]
    q, k, v = case.arrays()
    swapped = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    out, lse = keyhole.attention(q, k, v, case.pattern, return_lse=True)
    out_bshd, lse_bshd = keyhole.attention(*swapped, case.pattern, layout="bshd", return_lse=True)
    assert out_bshd.flags.c_contiguous
    np.testing.assert_array_equal(out_bshd.swapaxes(1, 2), out)
    np.testing.assert_array_equal(lse_bshd, lse)
    dout = np.ones_like(out)
    want = keyhole.attention_backward(dout, q, k, v, out, lse, case.pattern)
    got = keyhole.attention_backward(dout.swapaxes(1, 2), *swapped, out_bshd, lse, case.pattern, layout="bshd")
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a.swapaxes(1, 2), b)


def every_third(x):
    wide = np.full((*x.shape[:-1], 3 * x.shape[-1]), np.nan, x.dtype)
    wide[..., ::3] = x
    return wide[..., ::3]


def reversed_twice(x):
    return np.ascontiguousarray(x[:, :, ::-1])[:, :, ::-1]


def padded_rows(x):
    wide = np.full((*x.shape[:-1], x.shape[-1] + 5), np.nan, x.dtype)
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


def unaligned(x):
    raw = np.zeros(x.nbytes + 1, np.uint8)
    raw[1:] = np.frombuffer(x.tobytes(), np.uint8)
    return raw[1:].view(x.dtype).reshape(x.shape)


def other_byte_order(x):
    return x.astype(x.dtype.newbyteorder())


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


STRIDED = [every_third, reversed_twice, padded_rows, unaligned, other_byte_order, read_only, np.asfortranarray]


@pytest.mark.parametrize("change", STRIDED, ids=lambda f: f.__name__)
def test_any_strides(change):
    case = CASES[4]
    q, k, v = case.arrays()
    want = keyhole.attention(q, k, v, case.pattern)
    np.testing.assert_array_equal(keyhole.attention(*map(change, (q, k, v)), case.pattern), want)


def test_broadcast_keys():
    q, k, v = Case("causal", 12, 12, batch=3).arrays()
    k, v = (np.broadcast_to(x[:1], x.shape) for x in (k, v))
    want = keyhole.attention(q, k.copy(), v.copy(), "causal")
    np.testing.assert_array_equal(keyhole.attention(q, k, v, "causal"), want)


def test_masked_nan_stays_where_it_is():
    q, k, v = Case("causal", 8, 8).arrays()
    k[:, :, 5:], v[:, :, 5:] = np.nan, np.nan
    out = keyhole.attention(q, k, v, "causal")
    assert np.isfinite(out[:, :, :5]).all()
    assert np.isnan(out[:, :, 5:]).all()


def test_plan_and_pattern_and_text_give_the_same():
    q, k, v = Case("causal", 24, 24).arrays()
    pattern = keyhole.causal() & keyhole.window(5)
    plan = keyhole.plan(pattern, 24, batch=1, heads=2)
    want = keyhole.attention(q, k, v, plan)
    np.testing.assert_array_equal(keyhole.attention(q, k, v, pattern), want)
    np.testing.assert_array_equal(keyhole.attention(q, k, v, "causal & window(5)"), want)


def test_merge_of_disjoint_keys_is_attention_over_all():
    case = Case("causal", 31, 31)
    q, k, v = case.arrays()
    want = reference.forward(q, k, v, case.mask())
    parts = [keyhole.attention(q, k, v, f"causal & {near}", return_lse=True) for near in ("window(4)", "~window(4)")]
    before = parts[0][0].copy()
    out, lse = keyhole.merge(*parts[0], *parts[1])
    reference.check("out", out, want.out)
    reference.check("lse", lse, want.lse)
    np.testing.assert_array_equal(parts[0][0], before)  # merge returns, it does not change
    swapped = [x.swapaxes(1, 2) for x in (parts[0][0], parts[1][0])]
    out_bshd, _ = keyhole.merge(swapped[0], parts[0][1], swapped[1], parts[1][1], layout="bshd")
    np.testing.assert_array_equal(out_bshd.swapaxes(1, 2), out)


@settings(max_examples=40, deadline=None)
@given(
    q_len=st.integers(0, 40),
    k_len=st.integers(0, 40),
    batch=st.integers(0, 2),
    group=st.integers(1, 3),
    head_dim=st.integers(1, 33),
    left=st.integers(0, 20),
    count=st.integers(0, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape(q_len, k_len, batch, group, head_dim, left, count, seed):
    case = Case(f"causal & (window({left}) | sinks({count}))", q_len, k_len, batch, group * 2, 2, head_dim, head_dim)
    q, k, v = case.arrays(np.float32, seed)
    out, lse = keyhole.attention(q, k, v, case.pattern, return_lse=True)
    want = reference.forward(q, k, v, case.mask())
    reference.check("out", out, want.out)
    reference.check("lse", lse, want.lse)


def raises(error, match, *arguments, function=keyhole.attention, **options):
    with pytest.raises(error, match=match):
        function(*arguments, **options)


def test_what_is_not_an_array_is_a_type_error():
    q, k, v = Case("causal", 4, 4).arrays()
    raises(TypeError, "q has type list; pass NumPy arrays only, or torch tensors only", q.tolist(), k, v, "causal")
    raises(TypeError, "v has type NoneType; pass NumPy arrays only", q, k, None, "causal")
    raises(TypeError, "q has dtype int64; accepted are float16, bfloat16", q.astype(int), k, v, "causal")
    raises(TypeError, "q has dtype complex64", q.astype(np.complex64), k, v, "causal")
    raises(TypeError, "lists is a NumPy array of float32, .*; accepted are a pattern, its text, a plan", q, k, v, q)
    raises(TypeError, "lists is None; accepted are a pattern", q, k, v, None)
    raises(TypeError, "scale: expected a number, found str", q, k, v, "causal", scale="1")
    raises(TypeError, "backend: expected a str, found int", q, k, v, "causal", backend=7)
    raises(TypeError, "sink has type list; expected a NumPy array, as q is", q, k, v, "causal", sink=[0, 0])
    raises(TypeError, "sink has dtype int64", q, k, v, "causal", sink=np.zeros(2, int))


def test_mixed_worlds_are_a_type_error():
    torch = pytest.importorskip("torch")
    q, k, v = Case("causal", 4, 4).arrays()
    raises(TypeError, "k has type torch.Tensor; pass NumPy arrays only, or torch tensors only", q,
           torch.from_numpy(k), v, "causal")  # fmt: skip
    raises(TypeError, "attention_backward takes NumPy arrays", *[torch.from_numpy(q)] * 6, "causal",
           function=keyhole.attention_backward)  # fmt: skip


def test_shapes_that_do_not_fit_are_a_value_error():
    q, k, v = Case("causal", 4, 4).arrays()
    raises(ValueError, r"q has shape \[2, 4, 16\]; expected 4 dimensions", q[0], k, v, "causal")
    raises(ValueError, "q has head_dim 16 but k has 8", q, k[..., :8], v, "causal")
    raises(ValueError, "attention: q is f32 but k is f64", q, k.astype(np.float64), v, "causal")
    raises(ValueError, "layout is 'sbhd'; accepted are 'bhsd' and 'bshd'", q, k, v, "causal", layout="sbhd")
    raises(ValueError, 'unknown pattern "cusal"', q, k, v, "cusal")
    raises(ValueError, "sink", q, k, v, "causal", sink=np.zeros(3, np.float32))
    raises(ValueError, r"sink has shape \[1, 2\]; expected \[q_heads\]", q, k, v, "causal",
           sink=np.zeros((1, 2), np.float32))  # fmt: skip
    raises(ValueError, "plan", q, k, v, keyhole.plan("causal", 5))
    raises(ValueError, "softcap", q, k, v, "causal", softcap=-1.0)


def test_a_backend_that_cannot_or_is_not_there():
    q, k, v = Case("causal", 4, 4).arrays()
    raises(ValueError, 'attention: backend is "gpu"; accepted are auto, .*cpu$', q, k, v, "causal", backend="gpu")
    # A package without CUDA has no sm80.
    either = 'on sm80\n  sm80: reads the memory of a GPU$|backend is "sm80"; accepted'
    raises((NotImplementedError, ValueError), either, q, k, v, "causal", backend="sm80")


OUT = {  # where out may lie
    "contiguous": lambda x: np.empty_like(x),
    "heads inside": lambda x: np.empty((2, 40, 4, 16), x.dtype).swapaxes(1, 2),
    "last dimension not contiguous": lambda x: np.empty((2, 4, 16, 40), x.dtype).swapaxes(2, 3),
    "backwards": lambda x: np.empty_like(x)[:, :, ::-1],
    "other order of bytes": lambda x: np.empty(x.shape, x.dtype.newbyteorder()),
    "the memory of q": lambda x: x,
}


@pytest.mark.parametrize("place", OUT)
def test_out_is_written_where_it_is_wanted(place):
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 4, 40, 16), dtype=np.float32)
    expected, expected_lse = keyhole.attention(q, k, v, "causal & window(9)", return_lse=True)
    out = OUT[place](q)
    got, lse = keyhole.attention(q, k, v, "causal & window(9)", return_lse=True, out=out)
    assert got is out
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(lse, expected_lse)


def test_out_has_the_layout_of_q():
    q = np.random.default_rng(0).standard_normal((2, 40, 4, 16))
    out = np.empty((2, 40, 4, 16))
    assert keyhole.attention(q, q, q, "causal", layout="bshd", out=out) is out
    np.testing.assert_array_equal(out, keyhole.attention(q, q, q, "causal", layout="bshd"))


@pytest.mark.parametrize(
    ("out", "error", "match"),
    [
        (np.zeros((1, 2, 8, 3), np.float32), ValueError, r"out has shape \[1, 2, 8, 3\]; expected \[1, 2, 8, 4\]"),
        (np.zeros((1, 2, 8, 4)), TypeError, "out has dtype float64; expected float32"),
        (np.broadcast_to(np.float32(0), (1, 2, 8, 4)), ValueError, "out is read-only"),
        ([0.0], TypeError, "out has type list; expected a NumPy array, as q is"),
    ],
    ids=["shape", "dtype", "read-only", "list"],
)
def test_out_is_checked(out, error, match):
    q = np.zeros((1, 2, 8, 4), np.float32)
    with pytest.raises(error, match=match):
        keyhole.attention(q, q, q, "causal", out=out)
