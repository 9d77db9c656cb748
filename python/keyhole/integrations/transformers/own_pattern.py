# python/keyhole/integrations/transformers/own_pattern.py
"""Converts a layer's pattern from set_pattern, which uses token positions, to the positions of a call's keys."""

from __future__ import annotations

from typing import Any

from ... import _core
from ...imports import from_cu_seqlens
from ...imports.rows import joined
from ...leaves import at, packed, sinks
from ...pattern import Pattern
from .layout import Layout

__all__ = ["Sequences", "placed"]

Sequences = list[list[int]]  # the lengths of the sequences packed into each batch entry


def placed(own: Pattern, layout: Layout, sequences: Sequences | None, ends: tuple[Any, Any]) -> Pattern:
    """`own` for this layout, with the first key at position 0. In packed sequences it applies inside each one. `ends`
    are the cu_seq_lens of queries and keys, or None.
    """
    if ends[0] is not None:
        return from_cu_seqlens(*ends, own)
    if sequences is not None:
        return joined([[packed(lengths, lengths, own)] for lengths in sequences])
    if layout.kv_offset > 0:
        _check_dropped(own, layout)
        queries = range(layout.q_offset, layout.q_offset + layout.q_length)
        own = at(queries, range(layout.kv_offset, layout.kv_offset + layout.kv_length), own)
    if layout.seen < layout.kv_length:  # the rest of a static cache is not written yet
        own = own & sinks(layout.seen)
    return own


def _check_dropped(own: Pattern, layout: Layout) -> None:
    """A sliding-window cache has dropped the keys before kv_offset. Raises if the pattern attends to them."""
    dropped = _core.make_plan(own.core, layout.q_length, layout.kv_offset, layout.batch, 1, layout.q_offset)
    if dropped.explain(128, 128, 1, 1)["pairs"] > 0:
        raise ValueError(
            f"keyhole: {own} attends to tokens before {layout.kv_offset}, which the cache of this layer's sliding "
            "window has dropped; pass past_key_values=DynamicCache(), which keeps all tokens"
        )
