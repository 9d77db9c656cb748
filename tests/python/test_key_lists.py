# tests/python/test_key_lists.py
"""keyhole.KeyLists of NumPy arrays: counts, several keys per entry, causal lists; forms of the arrays, errors."""

import keyhole
import numpy as np
import pytest

BATCH, HEADS, KV_HEADS, Q_LEN, K_LEN, ENTRIES = 2, 4, 2, 40, 50, 9


def draw(dtype=np.float64, seed=0):
    random = np.random.default_rng(seed)
    return (
        random.standard_normal((BATCH, heads, length, 16)).astype(dtype)
        for heads, length in ((HEADS, Q_LEN), (KV_HEADS, K_LEN), (KV_HEADS, K_LEN))
    )


def draw_lists(keys_per_entry, *, heads=KV_HEADS, seed=1):
    """Indices and counts. Behind the counts stand entries that name no key."""
    random = np.random.default_rng(seed)
    shape = (BATCH, heads, Q_LEN, ENTRIES)
    indices = random.integers(-1, -(-K_LEN // keys_per_entry), shape)
    counts = random.integers(0, ENTRIES + 1, shape[:3])
    indices[np.arange(ENTRIES) >= counts[..., None]] = 10**6
    return indices, counts


def expanded(indices, counts, keys_per_entry, causal):
    """The same as plain indices of keys, by definition."""
    indices = np.where(np.arange(ENTRIES) < counts[..., None], indices, -1)
    keys = indices[..., None] * keys_per_entry + np.arange(keys_per_entry)
    keys = np.where((indices[..., None] >= 0) & (keys < K_LEN), keys, -1)
    if causal:
        keys = np.where(keys <= np.arange(Q_LEN)[:, None, None] + K_LEN - Q_LEN, keys, -1)
    return keys.reshape(*indices.shape[:3], -1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys_per_entry", [1, 2, 7, 64])
def test_they_are_the_lists_of_their_keys(keys_per_entry, causal):
    q, k, v = draw()
    indices, counts = draw_lists(keys_per_entry)
    lists = keyhole.KeyLists(indices, counts=counts, keys_per_entry=keys_per_entry, causal=causal)
    plain = expanded(indices, counts, keys_per_entry, causal)
    out, lse = keyhole.attention(q, k, v, lists, return_lse=True)
    want, want_lse = keyhole.attention(q, k, v, plain, return_lse=True)
    assert np.array_equal(out, want)
    assert np.array_equal(lse, want_lse)
    dout = np.ones_like(out)
    for got, want in zip(
        keyhole.attention_backward(dout, q, k, v, out, lse, lists),
        keyhole.attention_backward(dout, q, k, v, out, lse, plain),
        strict=True,
    ):
        assert np.array_equal(got, want)


def test_gather_attention_takes_the_same():
    q, k, v = draw()
    indices, counts = draw_lists(3)
    options = {"counts": counts, "keys_per_entry": 3, "causal": True}
    out, lse = keyhole.gather_attention(q, k, v, indices, **options, return_lse=True)
    lists = keyhole.KeyLists(indices, **options)
    assert np.array_equal(out, keyhole.attention(q, k, v, lists))
    dout = np.ones_like(out)
    got = keyhole.gather_attention_backward(dout, q, k, v, out, lse, indices, **options)
    want = keyhole.attention_backward(dout, q, k, v, out, lse, lists)
    assert all(np.array_equal(x, y) for x, y in zip(got, want, strict=True))


FORMS = {
    "int32": lambda indices, counts: (indices.astype(np.int32), counts.astype(np.int32)),
    "other byte order": lambda indices, counts: (indices.astype(">i8"), counts.astype(">i4")),
    "strided": lambda indices, counts: (np.repeat(indices, 2, -1)[..., ::2], np.repeat(counts, 3, -1)[..., ::3]),
    "backwards": lambda indices, counts: (indices[::-1].copy()[::-1], counts[:, ::-1].copy()[:, ::-1]),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_the_arrays_changes_no_bit(form):
    q, k, v = draw(np.float32)
    arrays = draw_lists(4)
    want = keyhole.attention(q, k, v, keyhole.KeyLists(arrays[0], counts=arrays[1], keys_per_entry=4))
    indices, counts = FORMS[form](*arrays)
    assert np.array_equal(keyhole.attention(q, k, v, keyhole.KeyLists(indices, counts=counts, keys_per_entry=4)), want)


def test_neighbouring_queries_may_share_entries():
    q, k, v = draw()
    indices = np.tile(np.arange(5)[:, None], (BATCH, 1, 1, 1))  # eight queries to a list, ten keys to an entry
    out = keyhole.attention(q, k, v, keyhole.KeyLists(indices, keys_per_entry=10))
    mask = np.arange(Q_LEN)[:, None] // 8 == np.arange(K_LEN) // 10
    want = keyhole.attention(q, k, v, keyhole.from_dense(mask))
    assert np.allclose(out, want, atol=1e-12)


def test_what_a_selection_returns_can_be_passed_on():
    q, k, v = draw(np.float32)
    random = np.random.default_rng(3)
    index_q, index_k = random.standard_normal((BATCH, 4, Q_LEN, 8)), random.standard_normal((BATCH, KV_HEADS, K_LEN, 8))
    chosen, counts = keyhole.select_keys(index_q, index_k, top_k=12, visible="causal", return_counts=True)
    out = keyhole.attention(q, k, v, keyhole.KeyLists(chosen, counts=counts, causal=True))
    assert np.array_equal(out, keyhole.attention(q, k, v, chosen))


def test_what_is_printed():
    indices, counts = draw_lists(4)
    assert repr(keyhole.KeyLists(indices)) == "<keyhole.KeyLists of [2, 2, 40, 9]>"
    lists = keyhole.KeyLists(indices, counts=counts, keys_per_entry=4, causal=True)
    assert repr(lists) == "<keyhole.KeyLists of [2, 2, 40, 9], counts, 4 keys per entry, causal>"


INDICES, COUNTS = draw_lists(1)
REFUSED = {
    "a list": ([[[[1]]]], {}, TypeError, "indices is a list; accepted are NumPy arrays and torch tensors"),
    "floats": (INDICES * 1.0, {}, TypeError, r"indices is a NumPy array of float64.*accepted are int32 and int64"),
    "rank": (INDICES[0], {}, ValueError, r"indices has shape \[2, 40, 9\]; expected \[batch, heads, lists, entries\]"),
    "counts of floats": (INDICES, {"counts": COUNTS * 1.0}, TypeError, "counts is a NumPy array of float64"),
    "counts of entries": (INDICES, {"counts": INDICES}, ValueError, r"counts has shape .*; expected \[2, 2, 40\], as"),
    "counts of others": (INDICES, {"counts": COUNTS[:1]}, ValueError, r"counts has shape \[1, 2, 40\]; expected"),
    "a number": (INDICES, {"counts": 3}, TypeError, "counts is an int, and indices is a NumPy array"),
    "no keys": (INDICES, {"keys_per_entry": 0}, ValueError, "keys_per_entry is 0; accepted are 1 and more"),
    "half a key": (INDICES, {"keys_per_entry": 1.5}, TypeError, "keys_per_entry"),
    "a pattern": (INDICES, {"causal": "causal"}, TypeError, "causal is a str; accepted are True and False"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    indices, options, kind, text = REFUSED[name]
    with pytest.raises(kind, match=f"^KeyLists: .*{text}"):
        keyhole.KeyLists(indices, **options)


def test_what_a_call_refuses():
    q, k, v = draw()
    counts = COUNTS.copy()
    counts[1, 0, 7] = ENTRIES + 1
    with pytest.raises(ValueError, match=r"counts\[1, 0, 7\] is 10; a list has 9 entries: accepted are 0 to 9"):
        keyhole.attention(q, k, v, keyhole.KeyLists(INDICES, counts=counts))
    with pytest.raises(ValueError, match=r"is 13; k has 50 keys, 4 to an entry: accepted are 0 to 12, and -1"):
        keyhole.attention(q, k, v, keyhole.KeyLists(np.full_like(INDICES, 13), keys_per_entry=4))
    with pytest.raises(ValueError, match=r"causal lists have 2 queries each.*give every query a list of its own"):
        keyhole.attention(q, k, v, keyhole.KeyLists(INDICES[:, :, ::2] * 0, causal=True))
    with pytest.raises(ValueError, match=r"keys_per_entry is 1000000000 and indices are int64 \[2, 2, 40, 9\]"):
        keyhole.attention(q, k, v, keyhole.KeyLists(INDICES, keys_per_entry=10**9))
