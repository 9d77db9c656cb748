# python/keyhole/torch_attention/flops.py
"""FLOP formulas of our ops for torch's FlopCounterMode: the work of the pairs that attend, as plan.explain() counts it.
Loaded only if torch.utils.flop_counter is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import flop_counter
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from .. import _core
from ..lists import KeyLists, TileLists
from . import ops
from .encoded import lists_of

__all__ = ["update_counters"]

Tensor = torch.Tensor


def _count_forward(q: Tensor, k: Tensor, v: Tensor, lists: list[Tensor], tile: list[int], *_: Any, **__: Any) -> int:
    """Two products: q.k and weights.v."""
    return 2 * _pairs(q, k, lists, tile) * (q.shape[3] + v.shape[3])


def _count_backward(
    dout: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, support: Tensor,
    lists: list[Tensor], tile: list[int], *_: Any, **__: Any,
) -> int:  # fmt: skip
    """Five products: q.k again, dq and dk with q's head_dim; dout.v and dv with v's."""
    return 2 * _pairs(q, k, lists, tile) * (3 * q.shape[3] + 2 * v.shape[3])


_FORMULAS = {
    ops.attention_forward.overloadpacket: _count_forward,
    ops.attention_backward.overloadpacket: _count_backward,
}
for _op, _formula in _FORMULAS.items():
    flop_counter.register_flop_formula(_op, get_raw=True)(_formula)


def update_counters() -> None:
    """Adds our formulas to the active counters: each has copied the registry, perhaps before we registered ours."""
    for mode in _get_current_dispatch_mode_stack():
        counter = getattr(mode, "counter", None)
        if isinstance(counter, flop_counter.FlopCounterMode):
            counter.flop_registry.update(_FORMULAS)


def _pairs(q: Tensor, k: Tensor, lists: list[Tensor], tile: list[int]) -> int:
    """The pairs over all heads and batch entries. All entries of indices and tile lists count, even padding, because
    reading them would mean waiting for the GPU. A plan without bytes, while a compiler is tracing, counts as dense.
    """
    batch, heads, q_len, _ = q.shape
    rows = batch * heads * q_len
    parts: list[Tensor] = [getattr(part, "keyhole_encoded", part) for part in lists]
    if parts[0].dtype == torch.uint8 and not all(map(_has_values, parts)):
        return rows * k.shape[2]
    with _disable_current_modes():  # the bytes of a plan are a real tensor, even if q is fake
        followed = lists_of(parts, tile, q, k)
    if isinstance(followed, TileLists):
        return rows * followed.tiles.shape[3] * followed.tile[1]
    if isinstance(followed, KeyLists):
        return rows * followed.indices.shape[3] * followed.keys_per_entry
    if isinstance(followed, Tensor):
        return rows * followed.shape[3]
    return _pairs_of_plan(followed) * batch * heads // _heads_of_plan(followed)


def _has_values(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and not tensor.is_meta


def _pairs_of_plan(plan: _core.Plan) -> int:
    return int(plan.explain(*plan.usual_tile(), 1, 1)["pairs"])


def _heads_of_plan(plan: _core.Plan) -> int:
    """The number of heads, over all batch entries, that the plan was made for: 1 if all have the same pattern."""
    _, _, batch, heads, _ = plan.shape()
    return max(batch * heads, 1)
