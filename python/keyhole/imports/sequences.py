# python/keyhole/imports/sequences.py
"""Ragged batches in the format of FlashAttention: sequences packed into one, with cumulative lengths."""

from __future__ import annotations

from typing import Any

from ..leaves import packed
from ..pattern import Pattern, PatternLike

__all__ = ["from_cu_seqlens"]


def from_cu_seqlens(cu_seqlens_q: Any, cu_seqlens_k: Any = None, pattern: PatternLike = "causal") -> Pattern:
    """Packed sequences, as for FlashAttention's varlen functions. Sequence i holds the queries cu_seqlens_q[i] to
    cu_seqlens_q[i + 1] - 1, and the keys in the same way from cu_seqlens_k, which is cu_seqlens_q by default.

    `pattern` applies inside each sequence, aligned at the bottom right: the last query is at the position of the last
    key. The last offsets are q_len and k_len; calls with other lengths are refused.

    >>> print(from_cu_seqlens([0, 2, 3], [0, 3, 4]).picture(3, 4))
    # # . .
    # # # .
    . . . #
    """
    q_lengths = _lengths("cu_seqlens_q", cu_seqlens_q)
    k_lengths = q_lengths if cu_seqlens_k is None else _lengths("cu_seqlens_k", cu_seqlens_k)
    if len(q_lengths) != len(k_lengths):
        raise ValueError(
            f"from_cu_seqlens: cu_seqlens_q has {len(q_lengths) + 1} offsets, cu_seqlens_k {len(k_lengths) + 1}; "
            "expected the same number, one more than there are sequences"
        )
    return packed(q_lengths, k_lengths, pattern)


def _lengths(parameter: str, offsets: Any) -> Any:
    import numpy as np

    from .._arrays import integers

    values = integers("from_cu_seqlens", parameter, offsets)
    if len(values) == 0 or values[0] != 0:
        found = f"begins with {values[0]}" if len(values) else "is empty"
        raise ValueError(f"from_cu_seqlens: {parameter} {found}; expected 0, then the end of each sequence")
    lengths = np.diff(values)
    if (lengths < 0).any():
        i = int(np.argmax(lengths < 0))
        raise ValueError(
            f"from_cu_seqlens: {parameter} falls from {values[i]} to {values[i + 1]} at {i + 1}; it must not decrease"
        )
    return lengths
