# python/keyhole/leaves.py
"""The patterns of the catalog, one function each. q and k are positions; `/` is floor division.

Query i is at position i + (k_len - q_len), so the last query is at the position of the last key: causal masks are
aligned at the bottom right. A pattern is causal only if its definition says k <= q.

Most patterns work for any length. Those made from lengths or arrays are for these lengths; a call with others is a
ValueError.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Union

from .pattern import Pattern, PatternLike, as_integer, as_pattern, make, parse

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "at",
    "bigbird",
    "bitmaps",
    "blocks",
    "causal",
    "csr",
    "dense",
    "dilated",
    "documents",
    "exponential",
    "fixed",
    "global_",
    "global_at",
    "grid",
    "longformer",
    "mask",
    "neighborhood",
    "packed",
    "per_batch",
    "per_head",
    "prefix",
    "random",
    "sinks",
    "streaming",
    "strided",
    "tiles",
    "tree",
    "volume",
    "volume_neighborhood",
    "window",
]

Integers = Union["npt.ArrayLike", Iterable[int]]
_LONGEST_TEXT = 64  # entries; shorter arrays are kept as text, so that the pattern prints them


def dense() -> Pattern:
    """Every query sees every key: plain attention.

    >>> print(dense().picture(2))
    # #
    # #
    """
    return make("dense")


def causal() -> Pattern:
    """A token sees itself and all earlier tokens: k <= q.

    >>> print(causal().picture(3))
    # . .
    # # .
    # # #
    >>> print(causal().picture(2, 4))  # aligned at the bottom right
    # # # .
    # # # #
    """
    return make("causal")


def window(left: int | float, right: int | float | None = None) -> Pattern:
    """A sliding window, both ends included: -left <= k - q <= right.

    `right` is `left` by default; float("inf") leaves a side open. `causal() & window(1023)` keeps 1,024 tokens.

    >>> print(window(1, 0).picture(4))
    # . . .
    # # . .
    . # # .
    . . # #
    >>> window(float("inf"), 0).count_pairs(4) == causal().count_pairs(4)
    True
    """
    return make("window", left, right)


def sinks(count: int) -> Pattern:
    """Every query sees the first `count` tokens, the attention sinks of trained models: k < count.

    >>> print(sinks(1).picture(3))
    # . .
    # . .
    # . .
    """
    return make("sinks", count)


def blocks(size: int) -> Pattern:
    """The sequence is cut into blocks of `size` tokens, and each block attends to itself: q/size == k/size.

    >>> print(blocks(2).picture(4))
    # # . .
    # # . .
    . . # #
    . . # #
    """
    return make("blocks", size)


def prefix(count: int) -> Pattern:
    """Causal, except that every query sees the whole prompt of `count` tokens: k <= q or k < count.

    >>> print(prefix(2).picture(3))
    # # .
    # # .
    # # #
    """
    return make("prefix", count)


def global_(count: int) -> Pattern:
    """The first `count` tokens see all tokens and are seen by all: q < count or k < count.

    The text form is `global`; the underscore is there because `global` is a keyword of Python.

    >>> print(global_(1).picture(3))
    # # #
    # . .
    # . .
    >>> global_(1)
    keyhole.parse('global(1)')
    """
    return make("global", count)


def global_at(positions: Integers | int, *more: int) -> Pattern:
    """Chosen tokens, such as separators, see all tokens and are seen by all: q or k is one of `positions`.

    Positions are passed as numbers or as one array.

    >>> print(global_at(1).picture(3))
    . # .
    # # #
    . # .
    >>> global_at([1, 7]) == global_at(1, 7)
    True
    """
    return make("global_at", _integers("global_at", "positions", positions, *more))


def documents(lengths: Integers | int, *more: int) -> Pattern:
    """Documents packed into one sequence; each attends only to itself.

    Lengths are passed as numbers or as one array. They add up to k_len.

    >>> print((causal() & documents(2, 1)).picture(3))
    # . .
    # # .
    . . #
    >>> documents([2, 1]) == documents(2, 1)
    True
    """
    return make("documents", _integers("documents", "lengths", lengths, *more))


def tree(parents: Integers | int, *more: int) -> Pattern:
    """A token sees itself and its ancestors; a root has parent -1. For speculative decoding over a tree of drafts.

    Parents are passed as numbers or as one array, one for each of the k_len keys. The text before the drafts is a
    chain: -1, 0, 1, ...

    >>> print(tree(-1, 0, 0).picture(3))
    # . .
    # # .
    # . #
    >>> tree([-1, 0, 0]) == tree(-1, 0, 0)
    True
    """
    return make("tree", _integers("tree", "parents", parents, *more))


def dilated(stride: int, count: int | None = None) -> Pattern:
    """Every stride-th token: (q - k) % stride == 0. With `count`, only up to a distance: |q - k| < stride * count.

    >>> print(dilated(2).picture(4))
    # . # .
    . # . #
    # . # .
    . # . #
    """
    return make("dilated", stride, count)


def strided(stride: int) -> Pattern:
    """The last `stride` tokens and every stride-th before them (Sparse Transformers).

    >>> strided(4).mask(8)[7].astype(int)
    array([0, 0, 0, 1, 1, 1, 1, 1])
    """
    return make("strided", stride)


def fixed(stride: int, columns: int) -> Pattern:
    """The query's own block of `stride` tokens, causal, and the last `columns` tokens of every earlier block (Sparse
    Transformers).

    >>> print(fixed(2, 1).picture(4))
    # . . .
    # # . .
    . # # .
    . # # #
    """
    return make("fixed", stride, columns)


def exponential() -> Pattern:
    """Tokens at distance 0, 1, 2, 4, 8, ...: information between any two tokens needs only a few layers.

    >>> (causal() & exponential()).mask(9)[8].astype(int)
    array([1, 0, 0, 0, 1, 0, 1, 1, 1])
    """
    return make("exponential")


def random(block: int, count: int, seed: int) -> Pattern:
    """`count` distinct key blocks, drawn at random for each query block. The draw is the same for all heads and on
    every machine.

    >>> random(2, 1, seed=7).count_pairs(8)
    16
    """
    return make("random", block, count, seed)


def grid(height: int, width: int, row_radius: int, column_radius: int) -> Pattern:
    """A neighbourhood in two dimensions, for images of height x width = k_len pixels read row by row.

    >>> grid(2, 3, 0, 1).mask(6)[1].astype(int)  # one row, one column to either side
    array([1, 1, 1, 0, 0, 0])
    """
    return make("grid", height, width, row_radius, column_radius)


def neighborhood(height: int, width: int, row_radius: int, column_radius: int) -> Pattern:
    """Neighbourhood attention over an image: as `grid`, but near a border the window is shifted inward, not cut.

    Every query sees 2 * radius + 1 pixels along an axis, or all where there are fewer. NATTEN's `kernel_size` is
    2 * radius + 1.

    >>> neighborhood(1, 5, 0, 1).mask(5).astype(int)
    array([[1, 1, 1, 0, 0],
           [1, 1, 1, 0, 0],
           [0, 1, 1, 1, 0],
           [0, 0, 1, 1, 1],
           [0, 0, 1, 1, 1]])
    """
    return make("neighborhood", height, width, row_radius, column_radius)


def volume(depth: int, height: int, width: int, depth_radius: int, row_radius: int, column_radius: int) -> Pattern:
    """A neighbourhood in three dimensions: volumes read plane by plane, videos frame by frame.

    >>> volume(2, 1, 3, 1, 0, 1).mask(6)[0].astype(int)  # two columns of both planes
    array([1, 1, 0, 1, 1, 0])
    """
    return make("volume", depth, height, width, depth_radius, row_radius, column_radius)


def volume_neighborhood(
    depth: int, height: int, width: int, depth_radius: int, row_radius: int, column_radius: int
) -> Pattern:
    """Neighbourhood attention in three dimensions: as `volume`, but near a border the window is shifted inward.

    >>> volume_neighborhood(2, 1, 3, 0, 0, 1).mask(6)[0].astype(int)  # three columns of its own plane
    array([1, 1, 1, 0, 0, 0])
    """
    return make("volume_neighborhood", depth, height, width, depth_radius, row_radius, column_radius)


def streaming(sinks: int, window: int) -> Pattern:
    """The last `window` tokens, the query included, and the first `sinks` tokens: endless generation (StreamingLLM).

    >>> streaming(1, 2).mask(5)[4].astype(int)
    array([1, 0, 0, 1, 1])
    """
    return make("streaming", sinks, window)


def longformer(window: int, globals: int) -> Pattern:
    """window/2 neighbours on each side, and the first `globals` tokens, which are global (Longformer).

    >>> longformer(2, 1).mask(5)[3].astype(int)
    array([1, 0, 1, 1, 1])
    """
    return make("longformer", window, globals)


def bigbird(block: int, window: int, randoms: int, globals: int, seed: int) -> Pattern:
    """A window of blocks, global blocks and random blocks; `window` counts blocks and is odd (BigBird).

    >>> bigbird(block=2, window=3, randoms=0, globals=1, seed=0).mask(8)[7].astype(int)
    array([1, 1, 0, 0, 1, 1, 1, 1])
    """
    return make("bigbird", block, window, randoms, globals, seed)


def tiles(tile_q: int, tile_k: int, offsets: Integers, keys: Integers) -> Pattern:
    """Tiles from block-sparse row arrays (BSR): query tile i sees the key tiles keys[offsets[i]:offsets[i + 1]].

    Rows are positions: query tile i holds the positions i * tile_q to (i + 1) * tile_q - 1, and the last query is at
    the position of the last key. To have row 0 begin with query 0, use `keyhole.from_bsr`.

    >>> print(tiles(2, 2, offsets=[0, 1, 3], keys=[0, 0, 1]).picture(4))
    # # . .
    # # . .
    # # # #
    # # # #
    """
    return _from_arrays("tiles", {"tile_q": tile_q, "tile_k": tile_k}, {"offsets": offsets, "keys": keys})


def bitmaps(
    tile_q: int, tile_k: int, offsets: Integers, keys: Integers, bitmap: Integers, rows: npt.ArrayLike
) -> Pattern:
    """Tiles from block-sparse row arrays, each full or masked by a bitmap.

    `offsets` and `keys` are as in `tiles`. Entry e of `keys` is masked by bitmap number bitmap[e], or is full where
    that is -1. `rows` holds the bitmaps stacked, [bitmaps * tile_q, tile_k]. Rows are positions, as in `tiles`.

    >>> print(bitmaps(2, 2, [0, 1, 3], [0, 0, 1], [0, -1, 0], [[1, 0], [1, 1]]).picture(4))
    # . . .
    # # . .
    # # # .
    # # # #
    """
    from . import _arrays

    tile_q, tile_k = as_integer(tile_q, "bitmaps: tile_q"), as_integer(tile_k, "bitmaps: tile_k")
    lists = [
        _arrays.integers("bitmaps", name, values)
        for name, values in (("offsets", offsets), ("keys", keys), ("bitmap", bitmap))
    ]
    bits = _arrays.boolean_rows("bitmaps", "rows", rows)
    if _fits_text(bits) and sum(map(len, lists)) <= _LONGEST_TEXT:
        numbers = ", ".join(str(values.tolist()) for values in lists)
        return parse(f"bitmaps({tile_q}, {tile_k}, {numbers}, {bits.astype(int).tolist()})")
    return make("bitmaps", tile_q, tile_k, *(values.tobytes() for values in lists), (_arrays.packed(bits), *bits.shape))


def csr(offsets: Integers, keys: Integers) -> Pattern:
    """Pairs from compressed sparse row arrays (CSR): the query at position i sees keys[offsets[i]:offsets[i + 1]].

    Rows are positions: the last query is at the position of the last key. For row i to be query i, use
    `keyhole.from_csr`.

    >>> print(csr(offsets=[0, 1, 3], keys=[0, 0, 1]).picture(2))
    # .
    # #
    """
    return _from_arrays("csr", {}, {"offsets": offsets, "keys": keys})


def mask(rows: npt.ArrayLike) -> Pattern:
    """Pairs from a boolean matrix: row i is for the query at position i.

    As for every pattern, query 0 is at position k_len - q_len. For a matrix [q_len, k_len] whose row 0 is query 0, use
    `keyhole.from_dense`.

    >>> print(mask([[True, False], [True, True]]).picture(2))
    # .
    # #
    >>> print(mask([[True, False], [True, True]]).picture(1, 2))  # one query, at position 1
    # #
    """
    from . import _arrays

    bits = _arrays.boolean_rows("mask", "rows", rows)
    if _fits_text(bits):
        return parse("mask([" + ", ".join("[" + ", ".join(str(int(bit)) for bit in row) + "]" for row in bits) + "])")
    return make("mask", (_arrays.packed(bits), *bits.shape))


def per_head(patterns: PatternLike | Iterable[PatternLike], *more: PatternLike) -> Pattern:
    """One pattern for each query head, head 0 first. Pass them one by one or as one sequence.

    >>> per_head(causal(), "window(2)")
    keyhole.parse('per_head(causal, window(2))')
    >>> per_head([window(2 << head) for head in range(3)])
    keyhole.parse('per_head(window(2), window(4), window(8))')
    """
    return make("per_head", _patterns("per_head", patterns, *more))


def per_batch(patterns: PatternLike | Iterable[PatternLike], *more: PatternLike) -> Pattern:
    """One pattern for each batch entry, entry 0 first. Pass them one by one or as one sequence.

    >>> ragged = per_batch(causal() & documents([2, 2]), causal() & documents([1, 3]))
    >>> ragged.mask(4, batch=1)[3].astype(int)
    array([0, 1, 1, 1])
    """
    return make("per_batch", _patterns("per_batch", patterns, *more))


def at(q_positions: Integers, k_positions: Integers, pattern: PatternLike) -> Pattern:
    """`pattern` with explicit positions: query i is at q_positions[i], key j at k_positions[j].

    Each array is [length], [batch, length] or [batch, heads, length]; a batch or heads of 1 serves all. A pattern with
    lengths of its own refuses positions past its end. Positions below 0 are outside of it and attend to nothing.

    >>> print(at([0, 2], [2, 1, 0], causal()).picture(2, 3))
    . . #
    # # #
    >>> at([[0, 1], [5, 6]], [0, 1], causal())
    keyhole.parse('per_batch(at(q=[0, 1], k=[0, 1], causal), at(q=[5, 6], k=[0, 1], causal))')
    """
    from . import _arrays

    inner = as_pattern(pattern, "at: pattern")
    q, k = _arrays.positions("at", q_positions=q_positions, k_positions=k_positions)
    entries = []
    for q_of_entry, k_of_entry in zip(q, k, strict=True):
        pairs = zip(q_of_entry, k_of_entry, strict=True)
        heads = [make("at", of_q.tobytes(), of_k.tobytes(), inner) for of_q, of_k in pairs]
        entries.append(heads[0] if len(heads) == 1 else per_head(*heads))
    return entries[0] if len(entries) == 1 else per_batch(*entries)


def packed(q_lengths: Integers, k_lengths: Integers, pattern: PatternLike) -> Pattern:
    """Documents packed one after the other. Document d holds the next q_lengths[d] queries and k_lengths[d] keys.
    `pattern` applies inside each document, with positions counted as if it were alone.

    The lengths add up to q_len and k_len. Padding is a document that has queries and no keys.

    >>> print(packed([1, 2], [3, 2], causal()).picture(3, 5))
    # # # . .
    . . . # .
    . . . # #
    """
    return make(
        "packed",
        _integers("packed", "q_lengths", q_lengths),
        _integers("packed", "k_lengths", k_lengths),
        as_pattern(pattern, "packed: pattern"),
    )


def _integers(name: str, parameter: str, values: Integers | int, *more: int) -> bytes:
    """The bytes of integers that were passed as one array, or one by one."""
    from . import _arrays

    if more:
        values = [_one_of(name, parameter, i, number) for i, number in enumerate((values, *more))]
    return _arrays.integers(name, parameter, values).tobytes()


def _one_of(name: str, parameter: str, i: int, number: Any) -> int:
    if isinstance(number, Iterable):
        raise TypeError(
            f"{name}: {parameter} {i} is a {type(number).__name__} among several arguments; pass numbers, such as "
            f"{name}(1, 2), or all of them in one array, {name}([1, 2])"
        )
    return as_integer(number, f"{name}: {parameter} {i}")


def _from_arrays(name: str, integers: dict[str, int], arrays: dict[str, Integers]) -> Pattern:
    """Keeps short arrays as text, so that the pattern prints them and equals a parsed one, and long ones as bytes."""
    from . import _arrays

    numbers = [as_integer(value, f"{name}: {parameter}") for parameter, value in integers.items()]
    lists = [_arrays.integers(name, parameter, values) for parameter, values in arrays.items()]
    if sum(map(len, lists)) <= _LONGEST_TEXT:
        return parse(f"{name}({', '.join(str(a) for a in [*numbers, *(x.tolist() for x in lists)])})")
    return make(name, *numbers, *(values.tobytes() for values in lists))


def _fits_text(rows: npt.NDArray[np.bool_]) -> bool:
    """Whether a matrix is short and its text gives its shape. Without elements, only 0 x 0 has such a text: []."""
    return 0 < rows.size <= _LONGEST_TEXT or rows.shape == (0, 0)


def _patterns(name: str, patterns: Any, *more: Any) -> tuple[Pattern, ...]:
    """Patterns that were passed as one sequence, or one by one."""
    if more or isinstance(patterns, (Pattern, str)) or not isinstance(patterns, Iterable):
        patterns = (patterns, *more)
    return tuple(as_pattern(pattern, f"{name}: pattern {i}") for i, pattern in enumerate(patterns))
