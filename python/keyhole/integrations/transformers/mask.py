# python/keyhole/integrations/transformers/mask.py
"""Mask: the mask of a forward pass that is not compiled. It has a pattern, padding, and the plans made from them."""

from __future__ import annotations

from typing import Any

import torch

from ... import _core
from ...imports import from_cu_seqlens, from_dense
from ...leaves import at
from ...pattern import Pattern
from ...plan import Plan, plan
from . import kept
from .layer_mask import LayerMask
from .layout import Layout
from .own_pattern import Sequences, placed
from .padding import padding_of

__all__ = ["Mask"]


class Mask(LayerMask):
    """A mask that makes a plan for each kind of layer, once."""

    _pattern: Pattern
    _padding: Pattern | None
    _sequences: Sequences | None
    _plans: dict[Any, Plan]

    def __init__(
        self, layout: Layout, pattern: Pattern, padding: Pattern | None = None, sequences: Sequences | None = None
    ) -> None:
        """In `pattern` and `padding` the first key of the cache is at position 0. `sequences`: packed in each entry."""
        super().__init__(layout)
        self._pattern, self._padding, self._sequences = pattern, padding, sequences
        self._plans = {}

    @staticmethod
    def from_matrix(layout: Layout, matrix: torch.Tensor) -> Mask:
        """The Mask of a tensor that the model or the user made: [batch or 1, heads or 1, q_length or 1, kv_length or 1]
        of bools, or of floats that are 0 where a pair attends and hugely negative elsewhere.
        """
        if matrix.ndim != 4:
            raise ValueError(f"keyhole: attention_mask has shape {list(matrix.shape)}; expected [batch, heads, q, k]")
        matrix = matrix[..., : layout.kv_length]
        if matrix.dtype != torch.bool:
            limit = torch.finfo(matrix.dtype).min / 4
            if not ((matrix == 0) | (matrix <= limit)).all():
                raise NotImplementedError(
                    "keyhole: the attention_mask adds numbers to scores, and Keyhole has no additive biases; accepted "
                    'are masks of bools, or of 0 and -inf. For biases use attn_implementation="eager"'
                )
            matrix = matrix == 0
        _check_broadcasts(matrix, layout)
        if matrix.shape[1:3] == (1, 1) and layout.q_length > 1:  # the same keys for all queries: padding
            keys = matrix[:, 0, 0].expand(-1, layout.kv_length)
            return Mask(layout, kept.dense(), padding_of(keys, layout))
        pattern = from_dense(matrix.expand(-1, -1, layout.q_length, layout.kv_length))
        if layout.q_length == layout.kv_length and layout.offset != 0:
            pattern = at(range(layout.q_length), range(layout.kv_length), pattern)
        return Mask(layout, pattern)

    def plan(self, found: Layout, heads: int, own: Pattern | None, kwargs: dict[str, Any]) -> Plan:
        """The plan for a layer. `found` is the layout of its tensors, `own` the pattern that set_pattern gave it."""
        self.check_fits(found)
        offsets = kwargs.get("cu_seq_lens_q")
        key = (heads, own, None if offsets is None else id(offsets))
        if key not in self._plans:
            self._plans[key] = self._new_plan(heads, own, kwargs)
        return self._plans[key]

    def _new_plan(self, heads: int, own: Pattern | None, kwargs: dict[str, Any]) -> Plan:
        layout = self.layout
        ends = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")  # of sequences packed for FlashAttention
        if own is not None:
            pattern = placed(own, layout, self._sequences, ends)
        elif ends[0] is not None:
            pattern = self._pattern & from_cu_seqlens(*ends, "dense")
        else:
            pattern = self._pattern
        if self._padding is not None:
            pattern = kept.both(pattern, self._padding)
        if layout.q_length == 1:  # one decoding step. The next has another number of keys, so do not cache the plan
            shape = (layout.q_length, layout.kv_length, layout.batch, heads, layout.offset)
            return Plan(_core.make_plan(pattern.core, *shape), pattern)
        return plan(pattern, layout.q_length, layout.kv_length, batch=layout.batch, heads=heads, offset=layout.offset)

    def __repr__(self) -> str:
        return f"<keyhole mask {self._pattern}, {list(self.shape)}>"

    __str__ = __repr__


def _check_broadcasts(matrix: torch.Tensor, layout: Layout) -> None:
    wanted = {0: layout.batch, 2: layout.q_length, 3: layout.kv_length}
    if any(matrix.shape[d] not in (1, size) for d, size in wanted.items()):
        raise ValueError(
            f"keyhole: attention_mask has shape {list(matrix.shape)}, which does not broadcast to [{layout.batch}, "
            f"heads, {layout.q_length}, {layout.kv_length}]"
        )
