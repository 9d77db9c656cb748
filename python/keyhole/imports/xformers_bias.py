# python/keyhole/imports/xformers_bias.py
"""Patterns from xFormers' attention biases, which hold the starts of packed sequences and the mask of each. They are
recognised by class name and read through their attributes, so xFormers is never imported.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..leaves import at, causal, dense, documents, packed, window
from ..pattern import Pattern
from .rows import imported, length_of

__all__ = ["from_xformers"]


class _Kind(NamedTuple):
    """How a bias masks one sequence. from_bottom_right: its last query is at the position of its last key."""

    mask: str  # "dense", "causal", "local" (causal, of _window_size tokens) or "window" (window_left and window_right)
    from_bottom_right: bool = True
    is_block_diagonal: bool = True


_KINDS = {
    "LowerTriangularMask": _Kind("causal", from_bottom_right=False, is_block_diagonal=False),
    "LowerTriangularFromBottomRightMask": _Kind("causal", is_block_diagonal=False),
    "LowerTriangularFromBottomRightLocalAttentionMask": _Kind("local", is_block_diagonal=False),
    "LocalAttentionFromBottomRightMask": _Kind("window", is_block_diagonal=False),
    "BlockDiagonalMask": _Kind("dense"),
    "BlockDiagonalCausalMask": _Kind("causal", from_bottom_right=False),
    "BlockDiagonalCausalFromBottomRightMask": _Kind("causal"),
    "BlockDiagonalCausalLocalAttentionMask": _Kind("local", from_bottom_right=False),
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask": _Kind("local"),
    "BlockDiagonalPaddedKeysMask": _Kind("dense"),
    "BlockDiagonalGappyKeysMask": _Kind("dense"),
    "BlockDiagonalCausalWithOffsetPaddedKeysMask": _Kind("causal"),
    "BlockDiagonalCausalWithOffsetGappyKeysMask": _Kind("causal"),
}


def from_xformers(bias: Any, q_len: int | None = None, k_len: int | None = None) -> Pattern:
    """The pairs that `memory_efficient_attention` of xFormers attends to with this `attn_bias`.

    bias            LowerTriangularMask, LowerTriangularFromBottomRightMask and its LocalAttention variant,
                    LocalAttentionFromBottomRightMask, or a BlockDiagonal mask: dense, causal or local, with padded or
                    gappy keys. Biases with weights and paged biases are refused
    q_len, k_len    required only by LowerTriangularMask, which is aligned at the top left; k_len is q_len by default.
                    Other biases have their own lengths, or work for any

    Tensors of xFormers are [batch, length, heads, head_dim]: pass layout="bshd" to `keyhole.attention`.
    """
    name = type(bias).__name__
    kind = _KINDS.get(name)
    if kind is None or getattr(bias, "causal_diagonal", None) is not None:
        raise TypeError(
            f"from_xformers: found {name}{' with a causal_diagonal' if kind else ''}; accepted are "
            f"{', '.join(_KINDS)}; convert any other mask with "
            "keyhole.from_dense(bias.materialize((q_len, k_len)) == 0)"
        )
    if kind.is_block_diagonal:
        return _block_diagonal(bias, kind, q_len, k_len)
    if kind.from_bottom_right:
        return _mask_of(bias, kind)
    if q_len is None:
        raise TypeError(
            f"from_xformers: {name} is aligned at the top left, and patterns at the bottom right; pass q_len, and "
            "k_len if it differs"
        )
    q_len = length_of("from_xformers", "q_len", q_len)
    k_len = q_len if k_len is None else length_of("from_xformers", "k_len", k_len)
    return imported("from_xformers", [[_mask_of(bias, kind)]], q_len, k_len, batch=1, heads=1)


def _mask_of(bias: Any, kind: _Kind) -> Pattern:
    if kind.mask == "window":
        return window(bias.window_left, bias.window_right)
    if kind.mask == "local":
        return causal() & window(bias._window_size - 1)
    return causal() if kind.mask == "causal" else dense()


def _block_diagonal(bias: Any, kind: _Kind, q_len: int | None, k_len: int | None) -> Pattern:
    q_starts, q_lengths = _sequences("q", bias.q_seqinfo, q_len)
    k_starts, k_lengths = _sequences("k", bias.k_seqinfo, k_len)
    if len(q_lengths) != len(k_lengths):
        raise ValueError(
            f"from_xformers: {len(q_lengths)} sequences of queries and {len(k_lengths)} of keys; expected equal numbers"
        )
    mask = _mask_of(bias, kind)
    has_gaps = sum(k_lengths) != k_starts[-1] or sum(q_lengths) != q_starts[-1]
    if not has_gaps and (kind.from_bottom_right or kind.mask == "dense" or q_lengths == k_lengths):
        return packed(q_lengths, k_lengths, mask)
    return _at_own_positions(mask, kind.from_bottom_right, (q_starts, q_lengths), (k_starts, k_lengths))


def _sequences(side: str, info: Any, length: int | None) -> tuple[list[int], list[int]]:
    """The start of each sequence followed by the total length, and the length of each sequence."""
    starts = [int(start) for start in info.seqstart_py]
    lengths = getattr(info, "seqlen_py", None)
    if length is not None and length_of("from_xformers", f"{side}_len", length) != starts[-1]:
        raise ValueError(f"from_xformers: {side}_len is {length}, and the bias was made for {starts[-1]}")
    if lengths is None:
        return starts, [end - begin for begin, end in itertools.pairwise(starts)]
    return starts, [int(n) for n in lengths]


def _at_own_positions(
    mask: Pattern, from_bottom_right: bool, queries: tuple[Sequence[int], ...], keys: tuple[Sequence[int], ...]
) -> Pattern:
    """Gives each sequence its own range of positions, apart from the others, and the keys in gaps a range without
    queries."""
    import numpy as np

    q_positions, k_positions = np.zeros(queries[0][-1], np.int64), np.zeros(keys[0][-1], np.int64)
    first, spans = 0, []
    in_gap = np.ones(len(k_positions), np.bool_)
    (q_starts, q_lengths), (k_starts, k_lengths) = queries, keys
    for q_start, q_count, k_start, k_count in zip(q_starts[:-1], q_lengths, k_starts[:-1], k_lengths, strict=True):
        span = 2 * q_count + k_count
        first_key = first + q_count
        first_query = first_key + (k_count - q_count if from_bottom_right else 0)
        q_positions[q_start : q_start + q_count] = np.arange(first_query, first_query + q_count)
        k_positions[k_start : k_start + k_count] = np.arange(first_key, first_key + k_count)
        in_gap[k_start : k_start + k_count] = False
        spans.append(span)
        first += span
    k_positions[in_gap] = first + np.arange(in_gap.sum())
    spans.append(max(int(in_gap.sum()), 1))
    return at(q_positions, k_positions, mask & documents(spans))
