# python/keyhole/integrations/transformers/mask.py
"""Mask: what `make_mask` hands to the layers. To the models, which ask masks for their shape, it looks like a tensor
[batch, 1, q_length, kv_length]; it holds no numbers, but a pattern, padding, and the plans made of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from ...imports import from_cu_seqlens, from_dense
from ...leaves import at
from ...pattern import Pattern
from ...plan import Plan, plan
from .layout import Layout
from .own_pattern import Sequences, placed

__all__ = ["Mask"]

_QUESTIONS = {  # what may be asked of a mask; everything else computes with it
    getattr(torch.Tensor, name).__get__
    for name in ("shape", "ndim", "dtype", "device", "layout", "requires_grad", "is_meta", "grad_fn")
} | {torch.Tensor.dim, torch.Tensor.size, torch.Tensor.numel, torch.Tensor.__repr__, torch.Tensor.__hash__}


class Mask(torch.Tensor):
    """Without memory; moving it changes nothing, and computing with it is an error."""

    _layout: Layout
    _pattern: Pattern
    _padding: Pattern | None
    _sequences: Sequences | None
    _plans: dict[Any, Plan]

    @staticmethod
    def make(
        layout: Layout, pattern: Pattern, padding: Pattern | None = None, sequences: Sequences | None = None
    ) -> Mask:
        """`pattern` and `padding` speak of keys that count from 0 in the cache; `sequences` are packed into an entry."""
        shape = (layout.batch, 1, layout.q_length, layout.kv_length)
        self: Mask = torch.Tensor._make_subclass(Mask, torch.empty(shape, dtype=torch.bool, device="meta"))
        self._layout, self._pattern, self._padding, self._sequences = layout, pattern, padding, sequences
        self._plans = {}
        return self

    @staticmethod
    def from_matrix(layout: Layout, matrix: torch.Tensor) -> Mask:
        """A mask that the model or the user made: [batch or 1, heads or 1, q_length, kv_length] of bools, or of numbers
        that are 0 where a pair attends and hugely negative elsewhere.
        """
        if matrix.ndim != 4:
            raise ValueError(f"keyhole: attention_mask has shape {list(matrix.shape)}; expected [batch, heads, q, k]")
        matrix = matrix[..., : layout.kv_length]
        if matrix.dtype != torch.bool:
            limit = torch.finfo(matrix.dtype).min / 4
            if not ((matrix == 0) | (matrix <= limit)).all():
                raise NotImplementedError(
                    "keyhole: the attention_mask adds numbers to scores, and there are no biases here; masks of bools, "
                    "or of 0 and -inf, there are"
                )
            matrix = matrix == 0
        pattern = from_dense(matrix)
        if layout.q_length == layout.kv_length and layout.offset != 0:
            pattern = at(range(layout.q_length), range(layout.kv_length), pattern)
        return Mask.make(layout, pattern)

    def plan(self, found: Layout, heads: int, own: Pattern | None, kwargs: dict[str, Any]) -> Plan:
        """The plan of a layer with so many query heads, and maybe a pattern of its own; `found` is its tensors' layout."""
        layout = self._layout
        if (found.batch, found.q_length, found.kv_length) != (layout.batch, layout.q_length, layout.kv_length):
            raise ValueError(
                f"keyhole: the mask was made for {layout.batch} x {layout.q_length} queries and {layout.kv_length} keys, "
                f"but this layer has {found.batch} x {found.q_length} and {found.kv_length}"
            )
        offsets = kwargs.get("cu_seq_lens_q")
        key = (heads, own, None if offsets is None else id(offsets))
        if key not in self._plans:
            self._plans[key] = self._new_plan(heads, own, kwargs)
        return self._plans[key]

    def _new_plan(self, heads: int, own: Pattern | None, kwargs: dict[str, Any]) -> Plan:
        layout = self._layout
        ends = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")  # of sequences packed for FlashAttention
        if own is not None:
            pattern = placed(own, layout, self._sequences, ends)
        elif ends[0] is not None:
            pattern = self._pattern & from_cu_seqlens(*ends, "dense")
        else:
            pattern = self._pattern
        if self._padding is not None:
            pattern = _both(pattern, self._padding)
        return plan(pattern, layout.q_length, layout.kv_length, batch=layout.batch, heads=heads, offset=layout.offset)

    def __getitem__(self, index: Any) -> Mask:
        """All of it; some models cut masks to the length of the keys, which this one has already."""
        if torch.empty(self.shape, device="meta")[index].shape != self.shape:
            raise NotImplementedError(f"keyhole: a part {index} of a mask {list(self.shape)}; a mask has no parts here")
        return self

    def to(self, *_: Any, **__: Any) -> Mask:
        return self

    contiguous = to

    def __deepcopy__(self, memo: dict[int, Any]) -> Mask:
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _QUESTIONS:
            raise NotImplementedError(
                f"keyhole: this model computes with its attention mask ({getattr(func, '__name__', func)}), and keyhole's "
                'has no numbers; use attn_implementation="eager" or "sdpa"'
            )
        return super().__torch_function__(func, types, args, kwargs or {})


@lru_cache(maxsize=256)
def _both(pattern: Pattern, padding: Pattern) -> Pattern:
    """Kept: while generating, neither changes from step to step, and a pattern that was hashed once is found fast."""
    return pattern & padding
