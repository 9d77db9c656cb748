# python/keyhole/torch_attention/attn_masks.py
"""Patterns from the boolean masks that torch's scaled_dot_product_attention takes."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch

from ..leaves import dense, mask, per_batch, per_head, sinks
from ..pattern import Pattern
from .encoded import Anchored
from .read_masks import ReadMasks

__all__ = ["pattern_of_mask"]

Tensor = torch.Tensor

_MOST_RUNS = 64  # of consecutive attended keys, in a mask that is the same for all queries

_read_masks: ReadMasks[Anchored] = ReadMasks()


def pattern_of_mask(attn_mask: Tensor, target: tuple[int, ...]) -> Anchored:
    """The pattern of a boolean mask that broadcasts to `target`, [..., heads, q_len, k_len]."""
    if attn_mask.is_floating_point():
        raise NotImplementedError(
            f"scaled_dot_product_attention: attn_mask is {attn_mask.dtype}, an additive mask, and patterns have no "
            "weights; pass a boolean mask (True attends): attn_mask == 0 for a mask of 0 and -inf. For biases such as "
            "ALiBi use torch's function"
        )
    if attn_mask.dtype != torch.bool:
        raise TypeError(
            f"scaled_dot_product_attention: attn_mask is {attn_mask.dtype}; expected torch.bool, True attends"
        )
    return _read_masks.read(attn_mask, target, lambda: Anchored(_pattern_of(attn_mask, target), 0))


def _pattern_of(attn_mask: Tensor, target: tuple[int, ...]) -> Pattern:
    missing = len(target) - attn_mask.dim()
    sizes = (1,) * missing + tuple(attn_mask.shape)
    if missing < 0 or any(size not in (1, wanted) for size, wanted in zip(sizes, target, strict=True)):
        raise ValueError(
            f"scaled_dot_product_attention: attn_mask has shape {list(attn_mask.shape)}, which does not broadcast to "
            f"{list(target)}"
        )
    if attn_mask.is_meta:
        raise TypeError(
            "scaled_dot_product_attention: attn_mask is on meta, where tensors have no values to make a pattern of; "
            "pass a mask with values or is_causal=True, or call keyhole.attention with a pattern"
        )
    if 0 in target:  # no pairs: any pattern will do
        return dense()
    rows = attn_mask.detach().cpu().reshape(sizes)
    if any(size > 1 for size in sizes[:-3]):
        rows = rows.expand(*target[:-3], *sizes[-3:])
    rows = rows.reshape(-1, *sizes[-3:]).expand(-1, -1, -1, target[-1])  # [batch or 1, heads or 1, q_len or 1, k_len]
    return _for_each(per_batch, [_for_each(per_head, [_of_rows(head, target[-2]) for head in entry]) for entry in rows])


def _for_each(operator_: Any, patterns: list[Pattern]) -> Pattern:
    return patterns[0] if len(patterns) == 1 else operator_(*patterns)


def _of_rows(rows: Tensor, q_len: int) -> Pattern:
    """The pattern of rows [q_len, k_len]; or of [1, k_len] for all queries: padding, which needs few runs of keys."""
    if rows.shape[0] == 1:
        row = rows[0].int()
        outside = row.new_zeros(1)  # on the CPU like row, whatever the default device
        edges = torch.diff(row, prepend=outside, append=outside).nonzero().flatten().tolist()
        if len(edges) <= 2 * _MOST_RUNS:
            runs = [
                sinks(end) & ~sinks(begin) if begin else sinks(end)
                for begin, end in zip(edges[::2], edges[1::2], strict=True)
            ]
            return functools.reduce(operator.or_, runs) if runs else ~dense()
    return mask(rows.expand(q_len, -1).numpy())
