# python/keyhole/integrations/transformers/padding.py
"""Padding: from the two-dimensional attention_mask of a tokenizer to a pattern."""

from __future__ import annotations

import torch

from ...pattern import Pattern
from ...torch_attention.kept_keys import pattern_of_kept
from .layout import Layout

__all__ = ["kept_of", "padding_of"]


def padding_of(attention_mask: torch.Tensor | None, layout: Layout) -> Pattern | None:
    """The pattern of the keys that are not padding, per batch entry; None if there is no padding.

    The first key of the cache is at position 0.
    """
    if attention_mask is None:
        return None
    return pattern_of_kept(kept_of(attention_mask, layout), layout.offset + layout.q_length)


def kept_of(attention_mask: torch.Tensor, layout: Layout) -> torch.Tensor:
    """[batch, kv_length], bool: the keys that are not padding. Keys past the end of the mask are not written yet and
    count as padding.
    """
    kept = attention_mask[:, layout.kv_offset : layout.kv_offset + layout.kv_length] != 0
    missing = layout.kv_length - kept.shape[1]
    return torch.nn.functional.pad(kept, (0, missing)) if missing > 0 else kept
