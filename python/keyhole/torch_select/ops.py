# python/keyhole/torch_select/ops.py
"""torch.ops.keyhole: selection for compilers, exporters, modes and gradients. Ops are functional and return a fixed
number of tensors. Patterns arrive as tensors (torch_attention/encoded.py), so that a compiled graph serves all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from .. import _core
from ..torch_attention.encoded import NO_TILE, is_indices, key_lists_of, plan_of
from ..torch_attention.ops import TAGS, library, register
from ..torch_attention.refusals import no_second_derivative_of
from ..torch_attention.tensors import Lists
from . import kernels

__all__ = ["index_loss_backward", "index_loss_forward", "index_scores", "select_keys", "top_k"]

Tensor = torch.Tensor

_INDEXER = "Tensor? w, Tensor? k_scale"
_CHOICE = "Tensor? visible, Tensor? always, str backend"
# keys: a pattern or a plan, or indices; counts and tile: those of KeyLists (torch_attention/encoded.py), else None and
# [0, 0].
_TARGET = "Tensor q, Tensor k, Tensor lse, Tensor keys, Tensor? counts, int[] tile"
_LOSS_OPTIONS = "int keys_per_entry, Tensor? rows, float? scale, float softcap, bool deterministic, str backend"
library.define(
    f"index_scores(Tensor q, Tensor k, {_INDEXER}, Tensor? visible, str backend) -> Tensor",
    tags=TAGS,
)
library.define(f"top_k(Tensor scores, int k, {_CHOICE}) -> (Tensor, Tensor)", tags=TAGS)
library.define(f"select_keys(Tensor q, Tensor k, {_INDEXER}, int top_k, {_CHOICE}) -> (Tensor, Tensor)", tags=TAGS)
library.define(
    f"index_loss_forward(Tensor index_q, Tensor index_k, {_INDEXER}, {_TARGET}, {_LOSS_OPTIONS}) -> (Tensor, Tensor)",
    tags=TAGS,
)
library.define(
    f"index_loss_backward(Tensor dloss, Tensor index_q, Tensor index_k, {_INDEXER}, {_TARGET}, Tensor stats, "
    f"{_LOSS_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    tags=TAGS,
)


def _index_scores(
    q: Tensor, k: Tensor, w: Tensor | None, k_scale: Tensor | None, visible: Tensor | None, backend: str
) -> Tensor:
    return kernels.index_scores(q, k, w, k_scale, _plan(visible, q, k), backend)


def _fake_index_scores(q: Tensor, k: Tensor, *_: Any) -> Tensor:
    return kernels.empty_scores(q, k)


def _top_k(
    scores: Tensor, k: int, visible: Tensor | None, always: Tensor | None, backend: str
) -> tuple[Tensor, Tensor]:
    batch, groups, q_len, entries = scores.shape
    seen, first = (None if x is None else plan_of(x, q_len, entries, batch, groups) for x in (visible, always))
    return kernels.top_k(scores, k, seen, first, backend)


def _fake_top_k(scores: Tensor, k: int, *_: Any) -> tuple[Tensor, Tensor]:
    return kernels.empty_selection(scores, scores.shape[1], k)


def _select_keys(
    q: Tensor,
    k: Tensor,
    w: Tensor | None,
    k_scale: Tensor | None,
    top_k: int,
    visible: Tensor | None,
    always: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor]:
    return kernels.select_keys(q, k, w, k_scale, top_k, _plan(visible, q, k), _plan(always, q, k), backend)


def _fake_select_keys(
    q: Tensor, k: Tensor, w: Tensor | None, k_scale: Tensor | None, top_k: int, *_: Any
) -> tuple[Tensor, Tensor]:
    return kernels.empty_selection(q, k.shape[1], top_k)


def _index_loss_forward(
    index_q: Tensor,
    index_k: Tensor,
    w: Tensor | None,
    k_scale: Tensor | None,
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    keys: Tensor,
    counts: Tensor | None,
    tile: Sequence[int],
    *options: Any,
) -> tuple[Tensor, Tensor]:
    lists = _lists(keys, counts, tile, index_k, q, k)
    return kernels.index_loss_forward(index_q, index_k, w, k_scale, q, k, lse, lists, *options)


def _fake_index_loss_forward(index_q: Tensor, index_k: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return kernels.empty_loss(index_q, index_k)


def _index_loss_backward(
    dloss: Tensor,
    index_q: Tensor,
    index_k: Tensor,
    w: Tensor | None,
    k_scale: Tensor | None,
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    keys: Tensor,
    counts: Tensor | None,
    tile: Sequence[int],
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    lists = _lists(keys, counts, tile, index_k, q, k)
    return kernels.index_loss_backward(dloss, index_q, index_k, w, k_scale, q, k, lse, lists, *rest)


def _fake_index_loss_backward(
    dloss: Tensor, index_q: Tensor, index_k: Tensor, w: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return kernels.empty_gradients(index_q, index_k, w)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    index_q, index_k, w, k_scale, q, k, lse, keys, counts, tile, keys_per_entry, rows, *options = inputs
    ctx.save_for_backward(index_q, index_k, w, k_scale, q, k, lse, keys, counts, output[1], rows)
    ctx.tile, ctx.keys_per_entry, ctx.options = tile, keys_per_entry, options
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, dloss: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    *tensors, stats, rows = ctx.saved_tensors
    dq, dk, dw = index_loss_backward(dloss, *tensors, ctx.tile, stats, ctx.keys_per_entry, rows, *ctx.options)
    has_w = tensors[2] is not None
    return dq, dk, dw if has_w else None, *[None] * (9 + len(ctx.options))


def _no_gradient_of_scores(ctx: Any, *gradients: Tensor) -> NoReturn:
    raise NotImplementedError(
        "index_scores: the scores have no gradient here; train an indexer with keyhole.index_loss, which needs no "
        "array of all scores, or call index_scores under torch.no_grad()"
    )


def _no_gradient_of_choice(ctx: Any, *gradients: Tensor) -> NoReturn:
    raise NotImplementedError("top_k, select_keys: which keys are chosen has no gradient; use keyhole.index_loss")


def _plan(encoded: Tensor | None, q: Tensor, k: Tensor) -> _core.Plan | None:
    """The plan for q [batch, heads, q_len, ...] and the groups and entries of k."""
    return None if encoded is None else plan_of(encoded, q.shape[2], k.shape[2], q.shape[0], k.shape[1])


def _lists(keys: Tensor, counts: Tensor | None, tile: Sequence[int], index_k: Tensor, q: Tensor, k: Tensor) -> Lists:
    if not is_indices(keys):
        return plan_of(keys, q.shape[2], k.shape[2], q.shape[0], index_k.shape[1])
    return keys if tuple(tile) == NO_TILE else key_lists_of(keys, counts, tile)


register("index_scores", _index_scores, _fake_index_scores, _no_gradient_of_scores)
register("top_k", _top_k, _fake_top_k, _no_gradient_of_choice)
register("select_keys", _select_keys, _fake_select_keys, _no_gradient_of_choice)
register("index_loss_forward", _index_loss_forward, _fake_index_loss_forward, _differentiate, _keep_for_backward)
register("index_loss_backward", _index_loss_backward, _fake_index_loss_backward, no_second_derivative_of("index_loss"))

index_scores = torch.ops.keyhole.index_scores.default
top_k = torch.ops.keyhole.top_k.default
select_keys = torch.ops.keyhole.select_keys.default
index_loss_forward = torch.ops.keyhole.index_loss_forward.default
index_loss_backward = torch.ops.keyhole.index_loss_backward.default
