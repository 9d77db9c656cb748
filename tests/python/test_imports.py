# tests/python/test_imports.py
"""Patterns from matrices, offsets, functions and block masks hold exactly the pairs they were made of, and block masks
made of patterns hold the patterns' pairs: each against the library that the thing comes from.
"""

from __future__ import annotations

import re
import types

import keyhole
import numpy as np
import pytest
from keyhole.imports.rows import joined
from keyhole.imports.tile_collector import TileCollector


def rng(seed=0):
    return np.random.default_rng(seed)


def pairs(pattern, q_len, k_len, batch=1, heads=1):
    """[batch, heads, q_len, k_len] by the pattern alone."""
    return np.array(
        [[pattern.mask(q_len, k_len, batch=b, head=h) for h in range(heads)] for b in range(batch)]
    ).reshape(batch, heads, q_len, k_len)


class TestFromDense:
    @pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (5, 5), (3, 200), (130, 127), (257, 300), (0, 4), (4, 0)])
    @pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
    def test_row_i_is_query_i(self, q_len, k_len, share):
        mask = rng().random((q_len, k_len)) < share
        assert (keyhole.from_dense(mask).mask(q_len, k_len) == mask).all()

    def test_is_for_the_lengths_of_the_matrix(self):
        mask = rng().random((5, 5)) < 0.5
        assert (keyhole.from_dense(mask).mask(3, 5) == mask[2:]).all()  # the last query is the last key
        with pytest.raises(ValueError, match="from_dense: made for 3 queries and 5 keys, but the call has 5 queries"):
            keyhole.from_dense(mask[:3]).mask(5, 5)

    def test_finds_equal_heads_and_entries(self):
        mask = rng().random((2, 3, 40, 40)) < 0.3
        assert (pairs(keyhole.from_dense(mask), 40, 40, 2, 3) == mask).all()
        same_heads = keyhole.from_dense(np.repeat(mask[:, :1], 3, axis=1))
        assert str(same_heads).startswith("from_dense(<2x3x40x40>, per_batch(bitmaps")
        assert ", per_head(bitmaps" in str(keyhole.from_dense(np.repeat(mask[:1], 2, axis=0)))

    def test_a_regular_mask_is_small(self):
        mask = keyhole.parse("causal & window(300)").mask(2048)
        text = str(keyhole.from_dense(mask))
        assert "3 bitmaps" in text

    def test_takes_integers_lists_and_tensors(self):
        mask = rng().random((6, 6)) < 0.5
        expected = keyhole.from_dense(mask)
        assert keyhole.from_dense(mask.tolist()) == expected
        assert keyhole.from_dense([[mask.tolist()]]) == expected
        assert keyhole.from_dense(list(mask)) == expected
        assert keyhole.from_dense(mask.astype(np.uint8)) == expected
        torch = pytest.importorskip("torch")
        assert keyhole.from_dense(torch.from_numpy(mask)) == expected
        assert keyhole.from_dense(torch.from_numpy(mask)[None, None]) == expected

    def test_says_what_was_passed(self):
        with pytest.raises(ValueError, match=r"shape \[3\]; expected \[q_len, k_len\] or"):
            keyhole.from_dense(np.ones(3, bool))
        with pytest.raises(ValueError, match=r"shape \[2\]; expected \[q_len, k_len\] or"):
            keyhole.from_dense([True, False])
        with pytest.raises(ValueError, match="mask has rows of different lengths"):
            keyhole.from_dense([[True], [True, False]])
        with pytest.raises(TypeError, match="expected a NumPy array, a tensor or nested lists of bools, found str"):
            keyhole.from_dense("causal")
        with pytest.raises(TypeError, match="found float64; for an additive mask"):
            keyhole.from_dense(np.zeros((2, 2)))
        with pytest.raises(ValueError, match="other than 0 and 1"):
            keyhole.from_dense(np.full((2, 2), 2))

    def test_sparse_matrices_are_refused(self):
        scipy = types.SimpleNamespace(format="coo", shape=(3, 3), tocsr=lambda: None)
        with pytest.raises(TypeError, match=r"format coo; .* pass mask.toarray\(\), or use from_csr\(mask.tocsr\(\)\)"):
            keyhole.from_dense(scipy)
        torch = pytest.importorskip("torch")
        sparse = torch.eye(3).bool().to_sparse()
        with pytest.raises(TypeError, match=r"pass mask.to_dense\(\), or use from_csr\(mask.to_sparse_csr\(\)\)"):
            keyhole.from_dense(sparse)
        expected = np.eye(3, dtype=bool)
        assert (keyhole.from_dense(sparse.to_dense()).mask(3) == expected).all()
        assert (keyhole.from_csr(sparse.to_sparse_csr()).mask(3) == expected).all()


class TestSparseMatrices:
    @pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
    @pytest.mark.parametrize(("q_len", "k_len"), [(7, 7), (5, 12), (12, 5)])
    def test_csr(self, dtype, q_len, k_len):
        mask = rng(1).random((q_len, k_len)) < 0.3
        offsets = np.concatenate([[0], np.cumsum(mask.sum(1))]).astype(dtype)
        keys = np.nonzero(mask)[1].astype(dtype)
        pattern = keyhole.from_csr(offsets, keys, k_len=k_len)
        assert (pattern.mask(q_len, k_len) == mask).all()

    @pytest.mark.parametrize(("q_len", "k_len"), [(8, 9), (7, 9), (8, 12)])
    def test_bsr(self, q_len, k_len):
        tiles = rng(2).random((4, 3)) < 0.4
        offsets, keys = np.concatenate([[0], np.cumsum(tiles.sum(1))]), np.nonzero(tiles)[1]
        pattern = keyhole.from_bsr(offsets, keys, 2, 4, q_len=q_len, k_len=k_len)
        expected = np.repeat(np.repeat(tiles, 2, axis=0), 4, axis=1)[:q_len, :k_len]
        assert (pattern.mask(q_len, k_len) == expected).all()

    def test_matrices_of_others(self):
        torch = pytest.importorskip("torch")
        mask = rng(3).random((8, 12)) < 0.3
        csr = torch.from_numpy(mask).to_sparse_csr()
        assert (keyhole.from_csr(csr).mask(8, 12) == mask).all()
        bsr = torch.from_numpy(np.kron(mask, np.ones((2, 2)))).to_sparse_bsr((2, 2))
        assert (keyhole.from_bsr(bsr).mask(16, 24) == np.kron(mask, np.ones((2, 2)))).all()

        class Scipy:  # what SciPy's csr_array and bsr_array have
            indptr, indices, shape = csr.crow_indices().numpy(), csr.col_indices().numpy(), (8, 12)

        assert keyhole.from_csr(Scipy()) == keyhole.from_csr(csr)
        Scipy.blocksize = (2, 2)
        Scipy.shape = (16, 24)
        assert keyhole.from_bsr(Scipy()) == keyhole.from_bsr(bsr)

    @pytest.mark.parametrize(
        ("function", "format", "way_out"),
        [
            (keyhole.from_csr, "csc", "pass matrix.tocsr()"),
            (keyhole.from_csr, "bsr", "use from_bsr, or pass matrix.tocsr()"),
            (keyhole.from_bsr, "csr", "use from_csr, or pass matrix.tobsr((tile_q, tile_k))"),
            (keyhole.from_bsr, "csc", "pass matrix.tobsr((tile_q, tile_k))"),
        ],
    )
    def test_other_formats_of_scipy_are_refused(self, function, format, way_out):
        matrix = types.SimpleNamespace(
            format=format, indptr=np.array([0, 1, 2]), indices=np.array([1, 0]), data=np.ones(2), shape=(2, 2)
        )
        expected = f"the matrix is in format {format}, not {function.__name__.removeprefix('from_')}; {way_out}"
        with pytest.raises(TypeError, match=re.escape(expected) + "$"):
            function(matrix)

    def test_a_format_that_fits_is_taken(self):
        parts = {"indptr": np.array([0, 1, 2]), "indices": np.array([1, 0])}
        csr = types.SimpleNamespace(format="csr", data=np.ones(2), shape=(2, 2), **parts)
        assert keyhole.from_csr(csr) == keyhole.from_csr([0, 1, 2], [1, 0])
        bsr = types.SimpleNamespace(format="bsr", data=np.ones((2, 1, 1)), blocksize=(1, 1), shape=(2, 2), **parts)
        assert keyhole.from_bsr(bsr) == keyhole.from_bsr([0, 1, 2], [1, 0], 1, 1)

    def test_other_layouts_of_torch_are_refused(self):
        torch = pytest.importorskip("torch")
        with pytest.raises(TypeError, match=r"in format csc, not csr; pass matrix.to_sparse_csr\(\)"):
            keyhole.from_csr(torch.eye(2).to_sparse_csc())
        with pytest.raises(TypeError, match=r"in format coo, not bsr; pass matrix.to_sparse_bsr\(\(tile_q, tile_k\)\)"):
            keyhole.from_bsr(torch.eye(2).to_sparse())

    def test_says_what_was_passed(self):
        with pytest.raises(ValueError, match="key 4 is listed, but there are 2 keys; pass k_len"):
            keyhole.from_csr([0, 1, 2], [0, 4])
        with pytest.raises(TypeError, match=r"one sparse matrix with indptr .* found list alone"):
            keyhole.from_csr([0, 1])
        with pytest.raises(TypeError, match="tile_q and tile_k must be given"):
            keyhole.from_bsr([0, 1], [0])
        with pytest.raises(ValueError, match="2 rows of 4 queries do not fit q_len 3"):
            keyhole.from_bsr([0, 1, 1], [0], 4, 4, q_len=3)
        with pytest.raises(ValueError, match="the tile is 0 x 4"):
            keyhole.from_bsr([0, 1], [0], 0, 4)
        with pytest.raises(TypeError, match="offsets must be integers, found float64"):
            keyhole.from_csr(np.array([0.0, 1.0]), [0])


class TestFromCuSeqlens:
    @pytest.mark.parametrize("inner", ["causal", "causal & (window(3) | sinks(1))", "blocks(4)", "dense"])
    def test_each_sequence_is_the_pattern_alone(self, inner):
        q_lengths, k_lengths = [5, 0, 1, 9, 3], [7, 2, 11, 9, 0]
        cu_q, cu_k = (np.concatenate([[0], np.cumsum(x)]).astype(np.int32) for x in (q_lengths, k_lengths))
        expected = np.zeros((sum(q_lengths), sum(k_lengths)), bool)
        for i, (q, k) in enumerate(zip(q_lengths, k_lengths, strict=True)):
            expected[cu_q[i] : cu_q[i + 1], cu_k[i] : cu_k[i + 1]] = keyhole.parse(inner).mask(q, k)
        assert (keyhole.from_cu_seqlens(cu_q, cu_k, inner).mask(*expected.shape) == expected).all()

    def test_attention_is_that_of_each_sequence(self):
        q_lengths, k_lengths = [40, 1, 150], [70, 90, 150]
        cu_q, cu_k = np.cumsum([0, *q_lengths]), np.cumsum([0, *k_lengths])
        q = rng(4).standard_normal((1, 2, sum(q_lengths), 16))
        k, v = rng(5).standard_normal((2, 1, 1, sum(k_lengths), 16))
        out = keyhole.attention(q, k, v, keyhole.from_cu_seqlens(cu_q, cu_k, "causal & window(31)"))
        for i in range(3):
            queries, keys = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
            alone = keyhole.attention(q[:, :, queries], k[:, :, keys], v[:, :, keys], "causal & window(31)")
            assert np.allclose(out[:, :, queries], alone)

    def test_keys_are_the_queries_unless_given(self):
        assert keyhole.from_cu_seqlens([0, 3, 5]) == keyhole.packed([3, 2], [3, 2], "causal")

    def test_says_what_was_passed(self):
        with pytest.raises(ValueError, match="cu_seqlens_q begins with 1; expected 0"):
            keyhole.from_cu_seqlens([1, 2])
        with pytest.raises(ValueError, match="cu_seqlens_k falls from 3 to 2 at 2"):
            keyhole.from_cu_seqlens([0, 1, 2], [0, 3, 2])
        with pytest.raises(ValueError, match="cu_seqlens_q has 2 offsets, cu_seqlens_k 3"):
            keyhole.from_cu_seqlens([0, 1], [0, 1, 2])
        with pytest.raises(ValueError, match="is empty"):
            keyhole.from_cu_seqlens([])


def catching(look):
    """A function that goes on whatever a look at h raises."""

    def function(b, h, q, k):
        try:
            return k <= q + look(h)
        except Exception:
            return k <= q

    return function


LOOKING_AT_H = {
    "sum": lambda b, h, q, k: k <= q + h,
    "index": lambda b, h, q, k: k <= q + [0, 3, 1][h],
    "array": lambda b, h, q, k: k <= q + np.array([0, 3, 1])[h],
    "asarray": lambda b, h, q, k: k <= q + np.asarray(h),
    "array of b and h": lambda b, h, q, k: k <= q + np.array([b, h])[1],
    "where": lambda b, h, q, k: np.where(h, k <= q, k < q),
    "power": lambda b, h, q, k: k <= q + 2**h,
    "division": lambda b, h, q, k: k <= q + 6 / (h + 1),
    "text": lambda b, h, q, k: k <= q + {"1": 3}.get(str(h), 0),
    "format": lambda b, h, q, k: k <= q + int(f"{h}"),
    "hash": lambda b, h, q, k: k <= q + hash(h),
    "dict": lambda b, h, q, k: k <= q + {1: 3}.get(h, 0),
    "in": lambda b, h, q, k: k <= q + (h in (1, 2)),
    "method": lambda b, h, q, k: k <= q + h.bit_length(),
    "isinstance": lambda b, h, q, k: k <= q + (h if isinstance(h, int) else 0),
    "branch": lambda b, h, q, k: k <= q if h else k < q,
    "for one entry": lambda b, h, q, k: k <= q + h if b == 1 else k <= q,
    "an entry for one head": lambda b, h, q, k: k <= q + b if h == 2 else k <= q,
    "caught sum": catching(lambda h: h + 1),
    "caught text": catching(lambda h: int(str(h))),
    "caught attribute": catching(lambda h: h.real),
}


class TestFromMaskModNumpy:
    def test_is_asked_in_blocks_of_bounded_size(self):
        sizes = []

        def causal(b, h, q, k):
            sizes.append(q.size * k.size)
            return k <= q

        pattern = keyhole.from_mask_mod(causal, 5000, 5001, xp=np)
        assert max(sizes) <= 1 << 22
        assert len(sizes) > 5
        assert (pattern.mask(5000, 5001) == np.tri(5000, 5001, dtype=bool)).all()

    def test_asks_about_entries_and_heads_only_where_they_matter(self):
        lengths = np.array([3, 5])
        calls = []

        def fn(b, h, q, k):
            calls.append(b)
            return k < lengths[b]

        pattern = keyhole.from_mask_mod(fn, 6, batch=2, heads=7, xp=np)
        assert str(pattern).startswith("from_mask_mod(<2x7x6x6>, per_batch(")
        assert [b for b in calls if isinstance(b, int)][-2:] == [0, 1]
        assert (pairs(pattern, 6, 6, 2, 7) == (np.arange(6) < lengths[:, None, None, None])).all()
        assert "per_" not in str(keyhole.from_mask_mod(lambda b, h, q, k: k <= q, 6, batch=2, heads=7, xp=np))

    @pytest.mark.parametrize("name", LOOKING_AT_H)
    def test_sees_every_look_at_h(self, name):
        function = LOOKING_AT_H[name]
        q, k = np.arange(6)[:, None], np.arange(6)[None, :]
        expected = np.array([[function(b, h, q, k) for h in range(3)] for b in range(2)])
        assert (pairs(keyhole.from_mask_mod(function, 6, batch=2, heads=3, xp=np), 6, 6, 2, 3) == expected).all()

    @pytest.mark.parametrize("catches", [False, True])
    def test_a_function_that_looks_at_h_for_some_pairs_only_is_refused(self, catches):
        def function(b, h, q, k):
            try:
                return k <= q + (h if q.max() > 3 else 0)
            except Exception:
                if not catches:
                    raise
                return k <= q

        assert keyhole.from_mask_mod(function, 3, heads=2, xp=np).count_pairs(3) == 6
        with pytest.raises(ValueError, match=r"reads b or h for some pairs and not for others; .* numpy.where"):
            keyhole.from_mask_mod(function, 6, heads=2, xp=np)
        with pytest.raises(ValueError, match=r"reads h, and heads is not given: .* pass heads=N"):
            keyhole.from_mask_mod(function, 6, xp=np)
        assert keyhole.from_mask_mod(function, 6, heads=1, xp=np).count_pairs(6) == 21

    def test_says_what_was_passed(self):
        with pytest.raises(TypeError, match="fn must be a function"):
            keyhole.from_mask_mod(3, 4)
        with pytest.raises(TypeError, match="must return bools, found int64; a score_mod"):
            keyhole.from_mask_mod(lambda b, h, q, k: q - k, 4, xp=np)
        with pytest.raises(ValueError, match="q_len is -1"):
            keyhole.from_mask_mod(lambda b, h, q, k: q > k, -1, xp=np)
        with pytest.raises(ValueError, match="accepted are the modules numpy and torch"):
            keyhole.from_mask_mod(lambda b, h, q, k: q > k, 4, xp=pytest)
        with pytest.raises(TypeError, match="branches on the values of its indices .* write & for and") as caught:
            keyhole.from_mask_mod(lambda b, h, q, k: q > k and k > 2, 4, xp=np)
        assert isinstance(caught.value.__cause__, ValueError)

    @pytest.mark.parametrize("function", [lambda b, h, q, k: q > k, lambda b, h, q, k: q > k + b + h])
    @pytest.mark.parametrize("parameter", ["batch", "heads"])
    def test_counts_are_checked_whether_they_matter_or_not(self, function, parameter):
        for count in (0, -1):
            with pytest.raises(ValueError, match=f"{parameter} is {count}; expected 1 or more"):
                keyhole.from_mask_mod(function, 4, xp=np, **{parameter: count})
        for count in ("x", 2.0, True):
            with pytest.raises(TypeError, match=f"{parameter}: expected an int, found {type(count).__name__}"):
                keyhole.from_mask_mod(function, 4, xp=np, **{parameter: count})


def test_joined_keeps_what_differs():
    a, b = keyhole.causal(), keyhole.dense()
    assert joined([[a, a], [b, b]]) == keyhole.per_batch(a, b)
    assert joined([[a, b], [b, b]]) == keyhole.per_batch(keyhole.per_head(a, b), b)


def test_a_collector_without_tiles_is_a_pattern_without_pairs():
    assert keyhole.plan(TileCollector(300, 200, 128, 128).pattern(), 300, 200, offset=0).explain().pairs == 0
