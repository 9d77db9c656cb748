# tests/python/test_gather.py
"""keyhole.gather_attention on NumPy arrays: values, gradients, forms of the indices, errors."""

import keyhole
import numpy as np
import numpy_reference
import pytest
from numpy_reference import counted, draw, draw_qkv

SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 9, "k_len": 30, "entries": 12}


def draw_indices(batch, lists, k_len, entries, index_heads, dtype=np.int64, repeats=True, **_):
    """Keys in no order, padding anywhere, and one list of nothing else."""
    rng = np.random.default_rng(3)
    shape = (batch, index_heads, lists, entries)
    different = np.argsort(rng.random((*shape[:3], k_len)))[..., :entries]
    indices = rng.integers(0, k_len, shape) if repeats else different
    indices[rng.random(shape) < 0.3] = -1
    indices[-1, -1, lists // 2] = -1
    return indices.astype(dtype)


def counts_of(indices, heads, q_len, k_len):
    """[batch, heads, q_len, k_len]: how often each query names each key."""
    batch, index_heads, lists, _ = indices.shape
    rows = -(-q_len // lists)
    counts = np.zeros((batch, heads, q_len, k_len))
    for b, h, i in np.ndindex(batch, heads, q_len):
        keys = indices[b, h // (heads // index_heads), i // rows]
        np.add.at(counts[b, h, i], keys[keys >= 0], 1)
    return counts


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("index_heads", [1, 2, 4])
def test_agrees_with_the_definition(index_heads, index_dtype, dtype):
    q, k, v = draw_qkv(**SIZES, dtype=dtype)
    indices = draw_indices(**SIZES, lists=9, index_heads=index_heads, dtype=index_dtype)
    sink = draw(4, dtype=np.float32)
    options = {"scale": 0.3, "softcap": 2.0, "sink": sink}
    out, lse = keyhole.gather_attention(q, k, v, indices, return_lse=True, **options)
    want_out, want_lse = counted(q, k, v, counts_of(indices, 4, 9, 30), **options)
    numpy_reference.check("out", out, want_out)
    numpy_reference.check("lse", lse, want_lse)
    assert np.array_equal(keyhole.gather_attention(q, k, v, indices, **options), out)


def test_an_empty_list_is_an_empty_row():
    q, k, v = draw_qkv(**SIZES)
    indices = draw_indices(**SIZES, lists=9, index_heads=2)
    out, lse = keyhole.gather_attention(q, k, v, indices, return_lse=True)
    assert np.all(out[1, 2:, 4] == 0)
    assert np.all(lse[1, 2:, 4] == -np.inf)


@pytest.mark.parametrize("lists", [1, 3, 5])
def test_fewer_lists_than_queries_are_shared(lists):
    q, k, v = draw_qkv(**SIZES)
    indices = draw_indices(**SIZES, lists=lists, index_heads=2)
    want, _ = counted(q, k, v, counts_of(indices, 4, 9, 30))
    numpy_reference.check("out", keyhole.gather_attention(q, k, v, indices), want)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("sink", [None, draw(4, dtype=np.float32)], ids=["", "sink"])
def test_gradients(layout, sink):
    tensors = draw_qkv(**SIZES)
    indices = draw_indices(**SIZES, lists=9, index_heads=2, repeats=False)
    swap = (lambda x: np.swapaxes(x, 1, 2).copy()) if layout == "bshd" else np.asarray
    q, k, v = map(swap, tensors)
    options = {"layout": layout, "softcap": 3.0, "sink": sink}
    out, lse = keyhole.gather_attention(q, k, v, indices, return_lse=True, **options)
    dout = draw(2, 4, 9, 24, seed=7)
    got = keyhole.gather_attention_backward(swap(dout), q, k, v, out, lse, indices, **options)
    want = numpy_reference.backward(dout, *tensors, counts_of(indices, 4, 9, 30) > 0, softcap=3.0, sink=sink)
    assert len(got) == (3 if sink is None else 4)
    for name, a, b in zip(("dq", "dk", "dv"), got, want, strict=False):
        numpy_reference.check(name, swap(a) if layout == "bshd" else a, b)
    if sink is not None:
        numpy_reference.check("dsink", got[3], want.dsink)


def test_any_strides():
    q, k, v = draw_qkv(**SIZES)
    indices = draw_indices(**SIZES, lists=9, index_heads=2)
    want = keyhole.gather_attention(q, k, v, indices)
    padded = np.full((2, 9, 2, 30), 7)
    padded[:, :, :, 1:25:2] = indices.swapaxes(1, 2)
    forms = {
        "strided": padded[:, :, :, 1:25:2].swapaxes(1, 2),
        "backwards": np.ascontiguousarray(indices[..., ::-1])[..., ::-1],
        "big-endian": indices.astype(">i8"),
        "read-only": np.broadcast_to(indices, indices.shape),
    }
    for name, form in forms.items():
        assert np.array_equal(keyhole.gather_attention(q, k, v, form), want), name


ERRORS = {
    "beyond": (lambda i: _with(i, 30), ValueError, r"indices\[1, 0, 3, 2\] is 30; k has 30 keys"),
    "negative": (lambda i: _with(i, -2), ValueError, r"indices\[1, 0, 3, 2\] is -2"),
    "dtype": (lambda i: i.astype(np.int16), TypeError, "indices has dtype int16; accepted are int32, int64"),
    "floats": (lambda i: i.astype(np.float32), TypeError, "indices has dtype float32"),
    "rank": (lambda i: i[0], ValueError, r"indices has shape \[2, 9, 12\]; expected 4 dimensions"),
    "batch": (lambda i: i[:1], ValueError, "batch must be that of q, 2"),
    "heads": (lambda i: np.concatenate([i, i, i], 1)[:, :3], ValueError, "those of k, 2, those of q, 4, or 1"),
    "lists": (lambda i: i[:, :, :8], ValueError, "9 queries, 2 of them to a list: expected 5 lists"),
    "a list": (lambda i: i.tolist(), TypeError, "indices has type list; pass NumPy arrays only"),
}


def _with(indices, value):
    indices = indices.copy()
    indices[1, 0, 3, 2] = value
    return indices


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    change, kind, text = ERRORS[name]
    q, k, v = draw_qkv(**SIZES)
    indices = change(draw_indices(**SIZES, lists=9, index_heads=2))
    with pytest.raises(kind, match=text):
        keyhole.gather_attention(q, k, v, indices)
    out, lse = np.zeros((2, 4, 9, 24)), np.zeros((2, 4, 9))
    with pytest.raises(kind, match=text):
        keyhole.gather_attention_backward(out, q, k, v, out, lse, indices)
