# python/keyhole/torch_attention/kept_keys.py
"""Patterns of tensors with one value per batch entry and key: which keys are padding, and which sequence each belongs
to. Reading them copies them from their device.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from ..imports.rows import joined
from ..leaves import dense, sinks, tiles
from ..pattern import Pattern

__all__ = ["pattern_of_kept", "sequence_lengths"]

_MOST_RUNS = 8  # of consecutive keys; with more, the keys are listed one by one


def pattern_of_kept(kept: torch.Tensor, num_positions: int) -> Pattern | None:
    """The pattern of the keys where kept, [batch, k_len], is True; None if it is True everywhere.

    Key 0 is at position 0. `num_positions`: one more than the position of the last query.
    """
    k_len = kept.shape[1]
    spans = _spans(kept)
    if spans is None:
        return joined([[_listed(row, num_positions)] for row in kept.tolist()])
    if all(span == (0, k_len) for span in spans):
        return None
    return _spans_pattern(tuple((begin, None if end == k_len else end) for begin, end in spans))


def sequence_lengths(numbers: torch.Tensor) -> list[list[int]] | None:
    """The lengths of the sequences packed into each batch entry. Keys of a sequence have the same number in numbers,
    [batch, k_len]. None if a sequence is in two pieces.
    """
    rows = []
    for row in numbers:
        names, lengths = torch.unique_consecutive(row, return_counts=True)
        if len(torch.unique(names)) != len(names):
            return None
        rows.append(lengths.tolist())
    return rows


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


def _listed(kept: list[bool], num_positions: int) -> Pattern:
    """The pattern of kept keys with gaps between them."""
    runs: list[list[int]] = []
    for key, is_kept in enumerate(kept):
        if is_kept and runs and runs[-1][1] == key:
            runs[-1][1] = key + 1
        elif is_kept:
            runs.append([key, key + 1])
    if len(runs) > _MOST_RUNS:
        keys = [key for key, is_kept in enumerate(kept) if is_kept]
        return tiles(max(num_positions, 1), 1, [0, len(keys)], keys)
    pattern = ~dense()
    for begin, end in runs:
        pattern = pattern | _span_pattern(begin, None if end == len(kept) else end)
    return pattern
