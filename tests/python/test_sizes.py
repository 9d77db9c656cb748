# tests/python/test_sizes.py
"""What knows its sizes refuses others: every import and every leaf of that kind, on every road from a pattern to pairs.
tests/pattern/fit_test.cpp has the details.
"""

import pickle

import keyhole
import numpy as np
import pytest
from keyhole import _core

SQUARE = np.tri(8, dtype=bool)
CAUSAL_ROWS = (np.concatenate([[0], np.cumsum(np.arange(1, 9))]), np.concatenate([np.arange(i + 1) for i in range(8)]))
OFFSETS = np.arange(5)


def triangle(b, h, q, k):
    return k <= q


def block_mask(batch=None, heads=None, q_len=8, k_len=8):
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    return flex.create_block_mask(lambda b, h, q, k: k <= q, batch, heads, q_len, k_len, device="cpu")


class LowerTriangularMask:
    """Named as xFormers' own, which from_xformers recognises by the name."""


# For 8 positions, and any batch and heads.
EIGHT = {
    "documents": lambda: keyhole.documents([3, 5]),
    "documents, text": lambda: keyhole.parse("documents(3, 5)"),
    "tree": lambda: keyhole.tree([-1, 0, 0, 1, 1, 2, 2, 3]),
    "grid": lambda: keyhole.grid(2, 4, 1, 1),
    "neighborhood": lambda: keyhole.neighborhood(2, 4, 0, 1),
    "volume": lambda: keyhole.volume(2, 2, 2, 1, 1, 0),
    "volume_neighborhood": lambda: keyhole.volume_neighborhood(2, 2, 2, 1, 0, 1),
    "mask": lambda: keyhole.mask(SQUARE),
    "csr": lambda: keyhole.csr(*CAUSAL_ROWS),
    "tiles": lambda: keyhole.tiles(2, 2, OFFSETS, OFFSETS[:4]),
    "bitmaps": lambda: keyhole.bitmaps(2, 2, OFFSETS, OFFSETS[:4], [0] * 4, [[1, 0], [1, 1]]),
    "packed": lambda: keyhole.packed([3, 5], [3, 5], "causal"),
    "from_cu_seqlens": lambda: keyhole.from_cu_seqlens([0, 3, 8]),
    "from_dense": lambda: keyhole.from_dense(SQUARE),
    "from_csr": lambda: keyhole.from_csr(*CAUSAL_ROWS),
    "from_bsr": lambda: keyhole.from_bsr(OFFSETS, OFFSETS[:4], 2, 2),
    "from_bsr, sizes": lambda: keyhole.from_bsr([0, 1, 2], [0, 1], [3, 5], [3, 5]),
    "from_xformers": lambda: keyhole.from_xformers(LowerTriangularMask(), 8),
    "from_mask_mod": lambda: keyhole.from_mask_mod(triangle, 8, xp=np),
    "from_block_mask": lambda: keyhole.from_block_mask(block_mask()),
}
# For 7 queries and 8 keys.
SEVEN_BY_EIGHT = {
    "packed": lambda: keyhole.packed([3, 4], [3, 5], "causal"),
    "from_cu_seqlens": lambda: keyhole.from_cu_seqlens([0, 3, 7], [0, 3, 8]),
    "from_dense": lambda: keyhole.from_dense(SQUARE[1:]),
    "from_csr": lambda: keyhole.from_csr(np.arange(8), np.arange(7), k_len=8),
    "from_bsr": lambda: keyhole.from_bsr(OFFSETS, OFFSETS[:4], 2, 2, q_len=7, k_len=8),
    "from_bsr, sizes": lambda: keyhole.from_bsr([0, 1, 2], [0, 1], [3, 4], [3, 5]),
    "from_xformers": lambda: keyhole.from_xformers(LowerTriangularMask(), 7, 8),
    "from_mask_mod": lambda: keyhole.from_mask_mod(triangle, 7, 8, xp=np),
    "from_block_mask": lambda: keyhole.from_block_mask(block_mask(q_len=7)),
}
# With a batch and heads of their own, whether the entries differ or not.
MASKS = {
    "from_dense": lambda batch, heads: keyhole.from_dense(np.broadcast_to(SQUARE, (batch, heads, 8, 8))),
    "from_mask_mod": lambda batch, heads: keyhole.from_mask_mod(triangle, 8, batch=batch, heads=heads, xp=np),
    "from_block_mask": lambda batch, heads: keyhole.from_block_mask(block_mask(batch, heads)),
}


def name_of(name):
    return {"documents, text": "documents", "from_bsr, sizes": "from_bsr", "from_cu_seqlens": "packed"}.get(name, name)


def tensors(q_len, k_len, batch=2, heads=4, kv_heads=2):
    rng = np.random.default_rng(0)
    q = rng.standard_normal((batch, heads, q_len, 8), dtype=np.float32)
    k, v = rng.standard_normal((2, batch, kv_heads, k_len, 8), dtype=np.float32)
    return q, k, v


def numpy_attention(pattern, q_len, k_len):
    keyhole.attention(*tensors(q_len, k_len), pattern)


def torch_attention(pattern, q_len, k_len):
    torch = pytest.importorskip("torch")
    keyhole.attention(*map(torch.from_numpy, tensors(q_len, k_len)), pattern)


def torch_op(pattern, q_len, k_len):
    torch = pytest.importorskip("torch")
    q, k, v = map(torch.from_numpy, tensors(q_len, k_len))
    torch.compile(lambda q, k, v: keyhole.attention(q, k, v, pattern), backend="eager", fullgraph=True)(q, k, v)


def to_block_mask(pattern, q_len, k_len):
    pytest.importorskip("torch")
    keyhole.to_block_mask(pattern, q_len, k_len)


ROADS = {
    "mask": lambda pattern, *lengths: pattern.mask(*lengths),
    "picture": lambda pattern, *lengths: pattern.picture(*lengths),
    "count_pairs": lambda pattern, *lengths: pattern.count_pairs(*lengths),
    "show": lambda pattern, *lengths: pattern.show(*lengths),
    "plan": lambda pattern, *lengths: keyhole.plan(pattern, *lengths),
    "plan of pickled": lambda pattern, *lengths: keyhole.plan(pickle.loads(pickle.dumps(pattern)), *lengths),
    "numpy": numpy_attention,
    "torch": torch_attention,
    "torch.compile": torch_op,
    "to_block_mask": to_block_mask,
}


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", EIGHT)
def test_eight_positions_are_eight_keys(name, road):
    pattern, walk = EIGHT[name](), ROADS[road]
    walk(pattern, 8, 8)
    if name_of(name) != "packed":  # it has a number of queries of its own
        walk(pattern, 1, 8)  # decoding: the last query is the last key
        walk(pattern, 5, 8)
    for lengths in ((300, 300), (9, 9), (1, 9), (6, 6), (9, 8)):
        with pytest.raises(ValueError, match=f"{name_of(name)}: made for .*, but the call has {lengths[0]} quer"):
            walk(pattern, *lengths)


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", SEVEN_BY_EIGHT)
def test_seven_by_eight_is_nothing_else(name, road):
    pattern, walk = SEVEN_BY_EIGHT[name](), ROADS[road]
    walk(pattern, 7, 8)
    for lengths in ((8, 8), (1, 8), (7, 7), (7, 9), (300, 300)):
        with pytest.raises(ValueError, match=f"{name_of(name)}: made for 7 queries and 8 keys, but the call has"):
            walk(pattern, *lengths)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("is_torch", [False, True])
def test_batch_and_heads_are_those_of_the_mask(name, is_torch):
    def attend(pattern, batch, heads):
        arrays = tensors(8, 8, batch, heads, kv_heads=1)
        if is_torch:
            arrays = map(pytest.importorskip("torch").from_numpy, arrays)
        return np.asarray(keyhole.attention(*arrays, pattern))

    for own, fitting, other in (
        ((1, 1), [(1, 1), (3, 4)], []),
        ((2, 1), [(2, 1), (2, 4)], [(1, 4), (3, 4)]),
        ((1, 4), [(1, 4), (3, 4)], [(3, 1), (3, 8)]),
        ((2, 4), [(2, 4)], [(4, 2), (1, 1), (3, 4), (2, 8)]),
    ):
        pattern = MASKS[name](*own)
        for sizes in fitting:
            np.testing.assert_array_equal(attend(pattern, *sizes), attend("causal", *sizes))
        for sizes in other:
            with pytest.raises(ValueError, match=f"{name}: made for .* for {own[0]} batch entr.* of {own[1]} head"):
                attend(pattern, *sizes)


def test_the_table_has_every_import_and_every_leaf_that_knows():
    imports = {name for name in keyhole.__all__ if name.startswith("from_")}
    leaves = {
        row["name"]
        for row in _core.catalog()
        if not row["is_composition"] and keyhole.parse(row["example"]).core.own_lengths()
    }
    assert imports | leaves | {"packed", "documents, text", "from_bsr, sizes"} == set(EIGHT)


def test_two_masks_of_other_sizes_are_both_named():
    with pytest.raises(ValueError, match="from_csr: made for 1 position, .*; from_dense in the same pattern is"):
        keyhole.plan(keyhole.from_dense(SQUARE) & keyhole.from_csr([0, 1], [0]), 8)


def test_a_mask_keeps_its_sizes_when_it_travels():
    pattern = MASKS["from_dense"](2, 3)
    there = pickle.loads(pickle.dumps(pattern))
    assert there == pattern
    assert there != MASKS["from_dense"](1, 3)
    assert there != keyhole.from_dense(SQUARE)
    assert str(there) == str(pattern)
    assert there.core.smallest_shape() == (2, 3)


def test_positions_below_zero_stand_outside():
    image = keyhole.grid(2, 2, 0, 1)
    text_behind = keyhole.at([0, 1, 2, 3, -1, -1], [0, 1, 2, 3, -1, -1], image) | "causal"
    assert (text_behind.mask(6)[4:] == np.tri(6, dtype=bool)[4:]).all()
    with pytest.raises(ValueError, match="grid: made for 4 positions, but at puts queries at positions 0 to 5"):
        keyhole.at(range(6), range(6), image).mask(6)


def test_a_notebook_shows_the_lengths_that_a_pattern_has(capsys):
    assert "     8          34    53.1%" in keyhole.documents([3, 5])._repr_html_()
    keyhole.from_dense(SQUARE[1:]).show()
    assert " 7 x 8, " in capsys.readouterr().out
