# python/keyhole/integrations/transformers/padding.py
"""Padding: the two-dimensional attention_mask of a tokenizer as patterns of keys."""

from __future__ import annotations

from functools import lru_cache

import torch

from ...imports.rows import joined
from ...leaves import dense, sinks, tiles
from ...pattern import Pattern
from .layout import Layout

__all__ = ["padding_of"]

_MOST_RUNS = 8  # more pieces than this are listed key by key


def padding_of(attention_mask: torch.Tensor | None, layout: Layout) -> Pattern | None:
    """The keys that are not padding, for each batch entry; None where none is.

    Keys count from 0 in the cache. What lies behind the mask's end is not written yet, and counts as padding.
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
    """(begin, end) of the kept keys of each entry, or None where one has holes. One small copy from the device."""
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


# While generating, a prompt's padding stays what it is: the same pattern, step after step.
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
    """Keys with holes between them."""
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
