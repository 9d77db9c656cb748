# tests/python/test_tile_lists.py
"""keyhole.TileLists of NumPy arrays: values, gradients, forms of the arrays, errors; and what else may be lists."""

import pickle

import keyhole
import numpy as np
import numpy_reference
import pytest
from keyhole import _core
from keyhole.numpy_attention import _tensor
from numpy_reference import counted, draw, draw_qkv
from tile_reference import FORMS, SIZES, draw_lists, pairs_of


def attend(q, k, v, lists, **options):
    return keyhole.attention(q, k, v, keyhole.TileLists(**lists), **options)


def pairs(lists, q, k):
    return pairs_of(lists, q.shape[1], q.shape[2], k.shape[2])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("list_heads", [1, 2, 4])
@pytest.mark.parametrize("form", FORMS)
def test_agrees_with_the_definition(form, list_heads, dtype):
    q, k, v = draw_qkv(**SIZES, dtype=dtype)
    lists = draw_lists(form, list_heads=list_heads, dtype=np.int32 if dtype == "float16" else np.int64)
    options = {"scale": 0.3, "softcap": 2.0, "sink": draw(4, dtype=np.float32)}
    out, lse = attend(q, k, v, lists, return_lse=True, **options)
    want_out, want_lse = counted(q, k, v, pairs(lists, q, k), **options)
    numpy_reference.check("out", out, want_out)
    numpy_reference.check("lse", lse, want_lse)
    assert np.array_equal(attend(q, k, v, lists, **options), out)


@pytest.mark.parametrize("tile", [(16, 16), (128, 128), (32, 96), (256, 64), (16, 1024)], ids=str)
def test_tiles_of_any_shape_that_kernels_can_cut(tile):
    q, k, v = draw_qkv(**SIZES)
    lists = draw_lists("everything", tile)
    numpy_reference.check("out", attend(q, k, v, lists), counted(q, k, v, pairs(lists, q, k))[0])


@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (64, 64), (63, 65), (1, 200), (129, 1)])
def test_lengths_that_tiles_hang_over(q_len, k_len):
    q, k, v = draw_qkv(**{**SIZES, "q_len": q_len, "k_len": k_len})
    lists = draw_lists("everything", q_len=q_len, k_len=k_len)
    numpy_reference.check("out", attend(q, k, v, lists), counted(q, k, v, pairs(lists, q, k))[0])


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("form", FORMS)
def test_gradients(form, layout):
    tensors = draw_qkv(**SIZES)
    lists = draw_lists(form, repeats=False)
    swap = (lambda x: np.swapaxes(x, 1, 2).copy()) if layout == "bshd" else np.asarray
    q, k, v = map(swap, tensors)
    sink = draw(4, dtype=np.float32)
    options = {"layout": layout, "softcap": 3.0, "sink": sink}
    out, lse = attend(q, k, v, lists, return_lse=True, **options)
    dout = draw(2, 4, SIZES["q_len"], 24, seed=7)
    got = keyhole.attention_backward(swap(dout), q, k, v, out, lse, keyhole.TileLists(**lists), **options)
    want = numpy_reference.backward(dout, *tensors, pairs(lists, *tensors[:2]) > 0, softcap=3.0, sink=sink)
    for name, a, b in zip(("dq", "dk", "dv"), got, want, strict=False):
        numpy_reference.check(name, swap(a) if layout == "bshd" else a, b)
    numpy_reference.check("dsink", got[3], want.dsink)


NOTHING = {
    "no capacity": lambda lists: {**lists, "tiles": lists["tiles"][..., :0]},
    "counts of 0": lambda lists: {**lists, "counts": np.zeros(lists["tiles"].shape[:3], np.int32)},
    "padding": lambda lists: {**lists, "tiles": np.full_like(lists["tiles"], -1)},
    "empty bitmaps": lambda lists: {
        **lists,
        "bitmap_of": np.zeros_like(lists["tiles"]),
        "bitmaps": np.zeros((1, 64, 64), bool),
    },
}


@pytest.mark.parametrize("name", NOTHING)
def test_lists_of_nothing(name):
    q, k, v = draw_qkv(**SIZES)
    lists = keyhole.TileLists(**NOTHING[name](draw_lists()))
    out, lse = keyhole.attention(q, k, v, lists, return_lse=True)
    assert np.all(out == 0)
    assert np.all(lse == -np.inf)
    for gradient in keyhole.attention_backward(np.ones_like(out), q, k, v, out, lse, lists):
        assert np.all(gradient == 0)


def test_what_is_not_counted_is_not_looked_at():
    q, k, v = draw_qkv(**SIZES)
    lists = draw_lists("everything")
    want = attend(q, k, v, lists)
    surplus = np.arange(5) >= lists["counts"][..., None]
    for name in ("tiles", "bitmap_of"):
        lists[name] = np.where(surplus, 10**9, lists[name])
    assert np.array_equal(attend(q, k, v, lists), want)


def packed(bitmaps):
    n, rows, columns = bitmaps.shape
    words = np.zeros((n, rows, -(-columns // 64)), np.uint64)
    for i, row, column in zip(*np.nonzero(bitmaps), strict=True):
        words[i, row, column // 64] |= np.uint64(1) << np.uint64(column % 64)
    return words


@pytest.mark.parametrize("tile", [(64, 64), (16, 80), (128, 128), (32, 16)], ids=str)
def test_bits_are_packed_as_told(tile):
    q, k, v = draw_qkv(**SIZES)
    lists = draw_lists("bitmaps", tile)
    want, words = attend(q, k, v, lists), packed(lists["bitmaps"])
    forms = {
        "uint64": words,
        "int64": words.view(np.int64),
        "big-endian": words.astype(">u8"),
        "strided": np.repeat(words, 2, axis=0)[::2],
        "backwards": words[::-1].copy()[::-1],
    }
    for name, form in forms.items():
        assert np.array_equal(attend(q, k, v, {**lists, "bitmaps": form}), want), name


def test_any_strides():
    q, k, v = draw_qkv(**SIZES)
    lists = draw_lists("everything")
    want = attend(q, k, v, lists)
    forms = {
        "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
        "length first": lambda x: x.swapaxes(1, 2).copy().swapaxes(1, 2),
        "backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
        "big-endian": lambda x: x.astype(">i8"),
        "read-only": lambda x: np.broadcast_to(x, x.shape),
    }
    for name, form in forms.items():
        changed = {key: form(lists[key]) for key in ("tiles", "counts", "bitmap_of")}
        assert np.array_equal(attend(q, k, v, {**lists, **changed}), want), name


def test_arrays_are_read_by_every_call_anew():
    q, k, v = draw_qkv(**SIZES)
    lists = draw_lists("counts")
    kept = keyhole.TileLists(**lists)
    before = keyhole.attention(q, k, v, kept)
    lists["counts"][...] = 1
    after = keyhole.attention(q, k, v, kept)
    assert not np.array_equal(before, after)
    assert np.array_equal(after, attend(q, k, v, lists))


def test_a_pattern_in_tile_lists_is_the_pattern():
    q, k, v = draw_qkv(batch=1, heads=2, kv_heads=2, q_len=256, k_len=256, dtype=np.float32)
    i = np.arange(256)
    tiles = np.tile(np.arange(4), (4, 1))
    lists = keyhole.TileLists(
        tiles[None, None],
        tile=(64, 64),
        counts=np.arange(1, 5)[None, None],
        bitmap_of=np.where(tiles == np.arange(4)[:, None], 0, -1)[None, None],
        bitmaps=(i[:64, None] >= i[:64])[None],
    )
    want = keyhole.attention(q, k, v, "causal")
    np.testing.assert_allclose(keyhole.attention(q, k, v, lists), want, atol=1e-6)


def test_it_says_what_it_is_and_pickles():
    lists = keyhole.TileLists(**draw_lists("everything"))
    assert repr(lists) == "<keyhole.TileLists of tiles 64x64: [2, 2, 3, 5], counts, 3 bitmaps>"
    other = pickle.loads(pickle.dumps(lists))
    q, k, v = draw_qkv(**SIZES)
    assert np.array_equal(keyhole.attention(q, k, v, other), keyhole.attention(q, k, v, lists))


def _with(name, value):
    def change(lists):
        lists[name][1, 0, 2, 3] = value
        lists["counts"][...] = 5
        return lists

    return change


def _as(name, function):
    return lambda lists: {**lists, name: function(lists[name])}


# What only a call can tell, as it knows q and k.
CALL_ERRORS = {
    "tile beyond": (_with("tiles", 4), ValueError, r"tiles\[1, 0, 2, 3\] is 4; accepted are 0 to 3, and -1"),
    "tile -2": (_with("tiles", -2), ValueError, r"tiles\[1, 0, 2, 3\] is -2"),
    "bitmap beyond": (lambda x: _with("tiles", 0)(_with("bitmap_of", 3)(x)), ValueError, r"bitmap_of\[1, 0, 2, 3\] is"),
    "count": (_as("counts", lambda x: x * 0 + 6), ValueError, "is 6; accepted are 0 to 5"),
    "negative count": (_as("counts", lambda x: x * 0 - 1), ValueError, "is -1; accepted are 0 to 5"),
    "batch": (lambda x: {k: v if k in ("tile", "bitmaps") else v[:1] for k, v in x.items()}, ValueError, "batch must"),
    "heads": (
        lambda x: {k: v if k in ("tile", "bitmaps") else np.repeat(v, 4, 1)[:, :3] for k, v in x.items()},
        ValueError,
        "their heads must be those of k, 2, those of q, 4, or 1",
    ),
    "query tiles": (
        lambda x: {k: v if k in ("tile", "bitmaps") else v[:, :, :2] for k, v in x.items()},
        ValueError,
        "q has 150 queries, 64 of them to a tile: expected 3 lists",
    ),
}


@pytest.mark.parametrize("name", CALL_ERRORS)
def test_errors_of_a_call(name):
    change, kind, text = CALL_ERRORS[name]
    q, k, v = draw_qkv(**SIZES)
    lists = keyhole.TileLists(**change(draw_lists("everything")))
    with pytest.raises(kind, match=text):
        keyhole.attention(q, k, v, lists)
    out, lse = np.zeros((2, 4, 150, 24)), np.zeros((2, 4, 150))
    with pytest.raises(kind, match=text):
        keyhole.attention_backward(out, q, k, v, out, lse, lists)


def test_tiles_that_no_kernel_can_cut_are_named():
    q, k, v = draw_qkv(**SIZES)
    with pytest.raises(NotImplementedError, match="follows tiles of .*; the lists are of tiles of 50x64"):
        attend(q, k, v, draw_lists(tile=(50, 64)))


ERRORS = {
    "a list": (_as("tiles", lambda x: x.tolist()), TypeError, "tiles is a list; accepted are NumPy arrays and torch"),
    "no tiles": (_as("tiles", lambda x: None), TypeError, "tiles is None"),
    "dtype": (
        _as("tiles", lambda x: x.astype(np.int16)),
        TypeError,
        "tiles is .* of int16, .*; accepted are int32 and",
    ),
    "floats": (_as("tiles", lambda x: x.astype(float)), TypeError, "tiles is a NumPy array of float64"),
    "rank": (_as("tiles", lambda x: x[0]), ValueError, r"tiles has shape \[2, 3, 5\]; expected \[batch, heads, ceil"),
    "tile": (_as("tile", lambda x: 64), TypeError, r"tile is 64; expected its rows and columns, such as \(128, 128\)"),
    "one number": (_as("tile", lambda x: (64,)), TypeError, r"tile is \(64,\)"),
    "no numbers": (_as("tile", lambda x: (64, 64.0)), TypeError, "columns of tile: expected an int, found float"),
    "tile of 0": (_as("tile", lambda x: (0, 64)), ValueError, r"tile is \(0, 64\); accepted are 1 to 1024"),
    "large tile": (_as("tile", lambda x: (64, 2048)), ValueError, r"tile is \(64, 2048\)"),
    "counts": (
        _as("counts", lambda x: x[..., None]),
        ValueError,
        r"counts has shape .*; expected \[2, 2, 3\], as tiles",
    ),
    "float counts": (_as("counts", lambda x: x.astype(float)), TypeError, "counts is a NumPy array of float64"),
    "a list of counts": (
        _as("counts", lambda x: x.tolist()),
        TypeError,
        "counts is a list, and tiles is a NumPy array",
    ),
    "bitmap_of": (
        _as("bitmap_of", lambda x: x[..., :4]),
        ValueError,
        r"bitmap_of has shape .*; expected \[2, 2, 3, 5\]",
    ),
    "no bitmap_of": (_as("bitmap_of", lambda x: None), ValueError, "only one of bitmap_of and bitmaps was passed"),
    "no bitmaps": (_as("bitmaps", lambda x: None), ValueError, "only one of bitmap_of and bitmaps was passed"),
    "bits of int32": (
        _as("bitmaps", lambda x: x.astype(np.int32)),
        TypeError,
        "bitmaps is .* of int32.*accepted are bool",
    ),
    "small bitmaps": (
        _as("bitmaps", lambda x: x[:, :32]),
        ValueError,
        r"bitmaps is .*; expected \[n, 64, 64\] for tiles",
    ),
    "large words": (_as("bitmaps", lambda x: x.astype(int)), ValueError, r"expected \[n, 64, 1\] for tiles of 64 x 64"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    change, kind, text = ERRORS[name]
    with pytest.raises(kind, match=f"^TileLists: .*{text}"):
        keyhole.TileLists(**change(draw_lists("everything")))


def test_indices_are_lists_too():
    q, k, v = draw_qkv(**SIZES)
    indices = np.random.default_rng(0).integers(-1, SIZES["k_len"], (2, 2, 150, 12))
    out, lse = keyhole.attention(q, k, v, indices, return_lse=True)
    assert np.array_equal(out, keyhole.gather_attention(q, k, v, indices))
    arguments = (np.ones_like(out), q, k, v, out, lse, indices)
    for a, b in zip(keyhole.attention_backward(*arguments), keyhole.gather_attention_backward(*arguments), strict=True):
        assert np.array_equal(a, b)


NO_LISTS = {
    "mask": (np.ones((150, 201), bool), TypeError, r"a NumPy array of bool, \[150, 201\]"),
    "mask of rank 4": (np.ones((1, 1, 150, 201), bool), TypeError, ".* of bool"),
    "rank": (np.zeros((150, 4), int), ValueError, r".* of int64, \[150, 4\]"),
    "floats": (np.zeros((2, 2, 150, 4)), TypeError, ".* of float64"),
    "bytes": (np.zeros((2, 2, 150, 4), np.uint8), TypeError, ".* of uint8"),
    "a function": (lambda b, h, q, k: q >= k, TypeError, "a function"),
    "nothing": (None, TypeError, "None"),
    "a number": (7, TypeError, "an int"),
}

WAYS = {"a function": r"keyhole\.from_mask_mod\(", "nothing": r"keyhole\.from_dense\(mask\).*keyhole\.from_mask_mod\("}


@pytest.mark.parametrize("name", NO_LISTS)
def test_what_are_no_lists_has_a_way_out(name):
    lists, kind, text = NO_LISTS[name]
    q, k, v = draw_qkv(**SIZES)
    out, lse = np.zeros((2, 4, 150, 24)), np.zeros((2, 4, 150))
    way_out = r"; accepted are a pattern.*TileLists.*" + WAYS.get(name, r"keyhole\.from_dense\(mask\)")
    with pytest.raises(kind, match=f"^attention: lists is {text}.*{way_out}"):
        keyhole.attention(q, k, v, lists)
    with pytest.raises(kind, match=f"^attention_backward: lists is {text}.*{way_out}"):
        keyhole.attention_backward(out, q, k, v, out, lse, lists)


# The extension alone, as a stranger could call it.
ARRAY = np.ones((1, 1, 64, 16), np.float32)
GOOD, TILES, COUNTS = _tensor(ARRAY), np.zeros((1, 1, 1, 2), np.int32), np.ones((1, 1, 1), np.int32)
BITMAPS = np.zeros((2, 64, 1), np.int64)
CORE_LISTS = {
    "three items": ((1, 2, 3), TypeError, "lists: expected a _core.Plan, a tuple of indices .*, found tuple"),
    "four items": ((1, 2, 3, 4), TypeError, "indices: expected a tuple .pointer"),
    "no tensor": ((64, 64, None, None, None, None), TypeError, "tiles: expected a tuple .pointer"),
    "tile": ((0, 64, _tensor(TILES), None, None, None), ValueError, "tiles of 0x64"),
    "huge tile": ((1 << 40, 64, _tensor(TILES), None, None, None), ValueError, "tile"),
    "rank": ((64, 64, _tensor(TILES[0]), None, None, None), ValueError, "tiles have 3 dimensions; expected 4"),
    "rank of counts": ((64, 64, _tensor(TILES), _tensor(TILES), None, None), ValueError, "counts have 4 dimensions"),
    "narrow bits": ((64, 64, _tensor(TILES), None, None, _tensor(TILES)), ValueError, "bitmaps are int32"),
    "rows": (
        (64, 64, _tensor(TILES), None, None, _tensor(BITMAPS[:, :9])),
        ValueError,
        r"bitmaps \[num_bitmaps, 64, 1\]",
    ),
    "rank of bits": (
        (64, 64, _tensor(TILES), None, None, _tensor(BITMAPS[0])),
        ValueError,
        "bitmaps have 2 dimensions",
    ),
    "apart": ((64, 64, _tensor(TILES), None, None, _tensor(BITMAPS[::-1])), ValueError, "bitmaps have stride -64"),
    "elsewhere": ((64, 64, _tensor(TILES), None, None, (*_tensor(BITMAPS)[:4], 0)), ValueError, "on different devices"),
}


@pytest.mark.parametrize("name", CORE_LISTS)
def test_what_the_extension_refuses(name):
    lists, kind, text = CORE_LISTS[name]
    out = np.empty_like(ARRAY)
    with pytest.raises(kind, match=text):
        _core.forward(GOOD, GOOD, GOOD, lists, _tensor(out), None, None, None, None, 0.0, 1.0, 0, "auto", 0, 0)


def test_the_kernels_of_all_lists_are_told():
    keys = np.zeros((1, 1, 64, 2), np.int32)
    for lists in (
        keyhole.plan("causal", 64).core,
        _tensor(keys),
        (64, 64, _tensor(TILES), _tensor(COUNTS), None, None),
    ):
        arguments = (GOOD, GOOD, lists, None, None, 0.0, "auto")
        assert _core.kernel_for_forward(*arguments).startswith("cpu.forward.f32")
        assert _core.kernel_for_backward(*arguments).startswith("cpu.backward.f32")
