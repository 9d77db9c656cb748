# python/keyhole/integrations/transformers/layer_mask.py
"""LayerMask: what `make_mask` returns and the layers receive. Models pass torch's BlockMask through unchanged, so it
is a subclass of that, without blocks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask

from .layout import Layout

__all__ = ["LayerMask"]


class LayerMask(BlockMask):
    """A mask that reports the shape [batch, 1, q_length, kv_length]. to() returns it unchanged; it cannot be sliced."""

    layout: Layout

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.layout.batch, 1, self.layout.q_length, self.layout.kv_length

    @property
    def ndim(self) -> int:
        return 4

    def check_fits(self, found: Layout) -> None:
        """Raises if a layer's tensors have other sizes. `found` is their layout."""
        layout = self.layout
        if (found.batch, found.q_length, found.kv_length) != (layout.batch, layout.q_length, layout.kv_length):
            raise ValueError(
                f"keyhole: the mask is for {layout.batch} x {layout.q_length} queries and {layout.kv_length} keys, but "
                f"this layer has {found.batch} x {found.q_length} and {found.kv_length}"
            )

    def __getitem__(self, index: Any) -> LayerMask:
        """The whole mask. Some models slice masks to the number of keys, which is the size of this one already."""
        if torch.empty(self.shape, device="meta")[index].shape != self.shape:
            raise NotImplementedError(
                f"keyhole: [{index}] of a mask with shape {list(self.shape)} is a part of it, and a mask has no parts "
                "here; index it as a whole"
            )
        return self

    def to(self, *_: Any, **__: Any) -> LayerMask:
        return self

    contiguous = to  # generate() calls it with static caches
