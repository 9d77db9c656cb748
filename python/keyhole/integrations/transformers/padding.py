# python/keyhole/integrations/transformers/padding.py
"""Padding: from the two-dimensional attention_mask of a tokenizer to a pattern."""

from __future__ import annotations

from functools import lru_cache

import torch

from ...imports.rows import joined
from ...leaves import dense, sinks, tiles
from ...pattern import Pattern
from .layout import Layout

__all__ = ["padding_of"]

_MOST_RUNS = 8  # of consecutive keys; with more, the keys are listed one by one


def padding_of(attention_mask: torch.Tensor | None, layout: Layout) -> Pattern | None:
    """The pattern of the keys that are not padding, per batch entry; None if there is no padding.

    The first key of the cache is at position 0. Keys past the end of the mask are not written yet and count as padding.
    """
    if attention_mask is None:
        return None
    kept = attention_mask[:, layout.kv_offset : layout.kv_offset + layout.kv_length] != 0
    spans = _spans(kept)
    if spans is None:
        rows = kept.tolist()
        return joined([[_listed(row, layout)] for row in rows])
    if all(span == (0, layout.kv_length) for span in spans):
        return None
    return _spans_pattern(tuple((begin, None if end == layout.kv_length else end) for begin, end in spans))


def _spans(kept: torch.Tensor) -> list[tuple[int, int]] | None:
    """(begin, end) of the kept keys of each entry, or None if one has gaps. Makes one small copy from the device."""
    batch, length = kept.shape
    if length == 0:
        return [(0, 0)] * batch
    count = kept.sum(dim=1)
    begin = kept.int().argmax(dim=1)
    end = length - kept.flip(1).int().argmax(dim=1)
    spans = []
    for row_count, row_begin, row_end in torch.stack([count, begin, end], dim=1).tolist():
        if row_count == 0:
            row_begin = row_end = 0
        elif row_end - row_begin != row_count:
            return None
        spans.append((row_begin, row_end))
    return spans


# The padding of a prompt is the same in every step of generation.
@lru_cache(maxsize=256)
def _spans_pattern(spans: tuple[tuple[int, int | None], ...]) -> Pattern:
    return joined([[_span_pattern(begin, end)] for begin, end in spans])


def _span_pattern(begin: int, end: int | None) -> Pattern:
    if end == begin:
        return ~dense()
    if end is None:
        return ~sinks(begin) if begin > 0 else dense()
    return sinks(end) & ~sinks(begin) if begin > 0 else sinks(end)


def _listed(kept: list[bool], layout: Layout) -> Pattern:
    """The pattern of kept keys with gaps between them."""
    runs: list[list[int]] = []
    for key, is_kept in enumerate(kept):
        if is_kept and runs and runs[-1][1] == key:
            runs[-1][1] = key + 1
        elif is_kept:
            runs.append([key, key + 1])
    if len(runs) > _MOST_RUNS:
        keys = [key for key, is_kept in enumerate(kept) if is_kept]
        return tiles(max(layout.offset + layout.q_length, 1), 1, [0, len(keys)], keys)
    pattern = ~dense()
    for begin, end in runs:
        pattern = pattern | _span_pattern(begin, None if end == layout.kv_length else end)
    return pattern
