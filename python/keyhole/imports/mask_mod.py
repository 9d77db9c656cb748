# python/keyhole/imports/mask_mod.py
"""Patterns from functions fn(b, h, q_idx, kv_idx), such as the mask_mod of FlexAttention. The function is evaluated for
every pair once, in blocks of bounded size, and stored as tiles: a pattern never calls back into Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..pattern import Pattern
from .rows import imported, length_of

if TYPE_CHECKING:
    from .mask_evaluator import MaskEvaluator

__all__ = ["from_mask_mod"]

_TILE = 128
_MOST_PAIRS = 1 << 22  # in one call of the function: 32 MiB for each int64 tensor that it computes


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
    """The pairs for which fn(b, h, q_idx, kv_idx) is True.

    The pattern is for these lengths, and for this batch and these heads if they are given; calls with other sizes are
    refused. q_idx 0 is query 0. If q_len equals k_len, a call with fewer queries uses the last ones.

    fn          called as FlexAttention calls a mask_mod: indices count from 0, and it must not branch on their values
    batch, heads
                the number of batch entries and heads. Required if fn reads b or h; otherwise the pattern is for any
                number. If fn provably does not depend on b or h, it is evaluated once for all; equal masks are stored
                once.
    device      where torch evaluates fn; large lengths are much faster on a GPU
    xp          the library that fn is written for, the module numpy or torch. By default torch if it is installed.
                NumPy functions get arrays that broadcast against each other, such as q_idx[:, None] and kv_idx[None, :]

    >>> import numpy
    >>> print(from_mask_mod(lambda b, h, q, k: (k <= q) & (q - k < 2), 4, xp=numpy).picture(4))
    # . . .
    # # . .
    . # # .
    . . # #
    """
    from .mask_evaluator import MaskEvaluator

    if not callable(fn):
        raise TypeError(f"from_mask_mod: fn must be a function of (b, h, q_idx, kv_idx), found {type(fn).__name__}")
    q_len = length_of("from_mask_mod", "q_len", q_len)
    k_len = q_len if k_len is None else length_of("from_mask_mod", "k_len", k_len)
    counts = {"batch": batch, "heads": heads}
    batch, heads = (_count(*named) for named in counts.items())
    evaluator = MaskEvaluator(fn, device, xp, "from_mask_mod")
    evaluator.require_counts(**counts)
    uses_batch, uses_heads = evaluator.uses(batch, heads)
    entries = [
        [_one_head(evaluator, b, h, q_len, k_len) for h in range(heads if uses_heads else 1)]
        for b in range(batch if uses_batch else 1)
    ]
    return imported("from_mask_mod", entries, q_len, k_len, batch, heads)


def _count(parameter: str, value: Any) -> int:
    return 1 if value is None else length_of("from_mask_mod", parameter, value, least=1)


def _one_head(evaluator: MaskEvaluator, b: int, h: int, q_len: int, k_len: int) -> Pattern:
    import numpy as np

    from .tile_collector import TileCollector

    collector = TileCollector(q_len, k_len, _TILE, _TILE)
    for q, k in _blocks(q_len, k_len):
        block = evaluator.evaluate(b, h, np.arange(q.start, q.stop)[None], np.arange(k.start, k.stop)[None])[0]
        collector.add_block(q.start, k.start, block)
    return collector.pattern()


def _blocks(q_len: int, k_len: int) -> Iterator[tuple[range, range]]:
    """Cuts all pairs into rectangles of whole tiles with at most _MOST_PAIRS pairs each."""
    columns = min(k_len, _MOST_PAIRS // _TILE) or 1
    rows = max(_MOST_PAIRS // columns // _TILE, 1) * _TILE
    for q in range(0, q_len, rows):
        for k in range(0, k_len, columns):
            yield range(q, min(q + rows, q_len)), range(k, min(k + columns, k_len))
