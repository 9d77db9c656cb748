# python/keyhole/imports/mask_mod.py
"""Patterns from functions fn(b, h, q_idx, kv_idx), as FlexAttention calls its mask_mod. A function is asked about every
pair once, in blocks of bounded size, and becomes tiles: a pattern never calls back into Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..pattern import Pattern
from .rows import imported, length_of

if TYPE_CHECKING:
    from .asker import Asker

__all__ = ["from_mask_mod"]

_TILE = 128
_MOST_PAIRS = 1 << 22  # asked about at once: 32 MiB for each int64 that the function computes


def from_mask_mod(
    fn: Callable[[Any, Any, Any, Any], Any],
    q_len: int,
    k_len: int | None = None,
    *,
    batch: int | None = None,
    heads: int | None = None,
    device: Any = "cpu",
    xp: Any = None,
) -> Pattern:
    """The pairs for which fn(b, h, q_idx, kv_idx) is True, for these lengths. Others are refused, as are another batch
    or other heads where they were given. q_idx 0 is query 0; where q_len is k_len, fewer queries are the last ones.

    fn          called as FlexAttention calls a mask_mod: indices count from 0, and it must not branch on their values
    batch, heads
                how many there are; a function that looks at b needs batch, one that looks at h needs heads.
                Without them the pattern is for any number. What certainly does not depend on them is asked once;
                what turns out equal is stored once.
    device      where torch evaluates fn; large lengths are much faster on a GPU
    xp          numpy or torch: the library that fn is written for; torch where it is installed, unless given.
                NumPy functions get arrays that broadcast, as q_idx[:, None] and kv_idx[None, :] do.

    >>> import numpy
    >>> print(from_mask_mod(lambda b, h, q, k: (k <= q) & (q - k < 2), 4, xp=numpy).picture(4))
    # . . .
    # # . .
    . # # .
    . . # #
    """
    from .asker import Asker

    if not callable(fn):
        raise TypeError(f"from_mask_mod: fn must be a function of (b, h, q_idx, kv_idx), found {type(fn).__name__}")
    q_len = length_of("from_mask_mod", "q_len", q_len)
    k_len = q_len if k_len is None else length_of("from_mask_mod", "k_len", k_len)
    counts = {"batch": batch, "heads": heads}
    batch, heads = (_count(*named) for named in counts.items())
    asker = Asker(fn, device, xp, "from_mask_mod")
    asker.refuse_to_guess(**counts)
    uses_batch, uses_heads = asker.uses(batch, heads)
    entries = [
        [_one_head(asker, b, h, q_len, k_len) for h in range(heads if uses_heads else 1)]
        for b in range(batch if uses_batch else 1)
    ]
    return imported("from_mask_mod", entries, q_len, k_len, batch, heads)


def _count(parameter: str, value: Any) -> int:
    return 1 if value is None else length_of("from_mask_mod", parameter, value, least=1)


def _one_head(asker: Asker, b: int, h: int, q_len: int, k_len: int) -> Pattern:
    import numpy as np

    from .tile_collector import TileCollector

    collector = TileCollector(q_len, k_len, _TILE, _TILE)
    for q, k in _blocks(q_len, k_len):
        block = asker.ask(b, h, np.arange(q.start, q.stop)[None], np.arange(k.start, k.stop)[None])[0]
        collector.add_block(q.start, k.start, block)
    return collector.pattern()


def _blocks(q_len: int, k_len: int) -> Iterator[tuple[range, range]]:
    """Rectangles of whole tiles that cover all pairs, each of at most _MOST_PAIRS of them."""
    columns = min(k_len, _MOST_PAIRS // _TILE) or 1
    rows = max(_MOST_PAIRS // columns // _TILE, 1) * _TILE
    for q in range(0, q_len, rows):
        for k in range(0, k_len, columns):
            yield range(q, min(q + rows, q_len)), range(k, min(k + columns, k_len))
