# python/keyhole/integrations/transformers/traced_mask.py
"""TracedMask: the mask of a forward pass that torch.compile traces."""

from __future__ import annotations

from typing import Any

import torch

from ...pattern import Pattern
from ...torch_attention.encoded import Restricted
from ...torch_attention.kept_keys import pattern_of_kept, sequence_lengths
from .layer_mask import LayerMask
from .layout import Layout
from .mask import Mask
from .mask_functions import packed_pattern
from .padding import kept_of
from .read_traced import condition_of

__all__ = ["TracedMask", "make_traced_mask"]


def make_traced_mask(layout: Layout, function: Any, attention_mask: torch.Tensor | None) -> TracedMask | None:
    """The mask of a mask function and padding, or None if a trace cannot show it. Tensors are copied to the CPU here,
    once for all layers.
    """
    if layout.offset != layout.kv_length - layout.q_length:
        return None
    found = condition_of(function)
    if found is None:
        return None
    sequences = None if found.sequences is None else found.sequences.cpu()
    if sequences is not None:
        if not layout.q_length == layout.kv_length == sequences.shape[1]:
            return None
        if found.positions is not None:
            _check_positions(sequences, found.positions.cpu())
    kept = None if attention_mask is None else kept_of(attention_mask, layout).cpu()
    return TracedMask(layout, found.text, kept, sequences)


def _check_positions(sequences: torch.Tensor, positions: torch.Tensor) -> None:
    """Makes the graph raise an error if positions are not counted up by one in each sequence, as our patterns do it."""
    is_same = sequences.diff() == 0
    torch._assert_async(
        (~is_same | (positions.diff() == 1)).all(),
        "keyhole: the positions inside a packed sequence are not counted up by one; do not compile this model",
    )


class TracedMask(LayerMask):
    """A pattern as text, which is a constant of the graph; padding and packed sequences as tensors of the graph."""

    def __init__(self, layout: Layout, text: str, kept: torch.Tensor | None, sequences: torch.Tensor | None) -> None:
        super().__init__(layout)
        self.text, self.kept, self.sequences = text, kept, sequences

    def lists(self, own: Pattern | None) -> Any:
        """What keyhole.attention takes for a layer; `own` is the pattern that set_pattern gave it."""
        pattern = self.text if own is None else own
        if self.kept is None and self.sequences is None:
            return pattern
        return Restricted(pattern, self.kept, self.sequences)

    def untraced(self) -> Mask:
        """The same mask for code that is not compiled."""
        layout, pattern = self.layout, Pattern(self.text)
        sequences = None if self.sequences is None else sequence_lengths(self.sequences)
        if sequences is not None:
            pattern = pattern & packed_pattern(sequences)
        padding = None if self.kept is None else pattern_of_kept(self.kept, layout.offset + layout.q_length)
        return Mask(layout, pattern, padding, sequences)
