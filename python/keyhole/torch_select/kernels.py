# python/keyhole/torch_select/kernels.py
"""Selection on torch tensors: allocates the results and calls the library. Plans are compiled."""

from __future__ import annotations

from typing import Any

import torch

from .. import _core
from ..torch_attention.tensors import Lists, empty_gradient, index_view, lists_view, place_of

__all__ = [
    "E4M3",
    "empty_gradients",
    "empty_loss",
    "empty_scores",
    "empty_selection",
    "index_loss_backward",
    "index_loss_forward",
    "index_scores",
    "select_keys",
    "top_k",
]

Tensor = torch.Tensor
E4M3 = torch.float8_e4m3fn
_E4M3_OF_CORE = 4


def empty_scores(q: Tensor, k: Tensor) -> Tensor:
    """Memory for [batch, groups, q_len, entries]."""
    return q.new_empty((q.shape[0], k.shape[1], q.shape[2], k.shape[2]), dtype=_sum_dtype(q))


def empty_selection(like: Tensor, groups: int, k: int) -> tuple[Tensor, Tensor]:
    """Memory for the indices [batch, groups, q_len, k] and the counts [batch, groups, q_len]."""
    shape = (like.shape[0], groups, like.shape[2])
    return like.new_empty((*shape, k), dtype=torch.int32), like.new_empty(shape, dtype=torch.int32)


def empty_loss(index_q: Tensor, index_k: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for the loss [batch, groups, q_len] and the statistics of the backward pass."""
    shape = (index_q.shape[0], index_k.shape[1], index_q.shape[2])
    dtype = _sum_dtype(index_q)
    return index_q.new_empty(shape, dtype=dtype), index_q.new_empty((*shape, 2), dtype=dtype)


def empty_gradients(index_q: Tensor, index_k: Tensor, w: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for dq, dk and dw; the last one is empty without w, because ops return a fixed number of tensors."""
    dw = index_q.new_empty(0, dtype=torch.float32) if w is None else w.new_empty(w.shape)
    return empty_gradient(index_q), empty_gradient(index_k), dw


def index_scores(
    q: Tensor, k: Tensor, w: Tensor | None, k_scale: Tensor | None, visible: _core.Plan | None, backend: str
) -> Tensor:
    scores = empty_scores(q, k)
    kept_q, kept_k = _with_rows(q), _with_rows(k)
    _core.index_scores(_view(kept_q), _view(kept_k), w, k_scale, visible, scores, backend, *place_of(q))
    return scores


def top_k(
    scores: Tensor, k: int, visible: _core.Plan | None, always: _core.Plan | None, backend: str
) -> tuple[Tensor, Tensor]:
    indices, counts = empty_selection(scores, scores.shape[1], k)
    _core.top_k(
        scores, index_view(indices), index_view(counts.unsqueeze(-1)), k, visible, always, backend, *place_of(scores)
    )
    return indices, counts


def select_keys(
    q: Tensor,
    k: Tensor,
    w: Tensor | None,
    k_scale: Tensor | None,
    count: int,
    visible: _core.Plan | None,
    always: _core.Plan | None,
    backend: str,
) -> tuple[Tensor, Tensor]:
    indices, counts = empty_selection(q, k.shape[1], count)
    kept_q, kept_k = _with_rows(q), _with_rows(k)
    _core.select_keys(
        _view(kept_q), _view(kept_k), w, k_scale, index_view(indices), index_view(counts.unsqueeze(-1)), count, visible,
        always, backend, *place_of(q),
    )  # fmt: skip
    return indices, counts


def index_loss_forward(
    index_q: Tensor,
    index_k: Tensor,
    w: Tensor | None,
    k_scale: Tensor | None,
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    lists: Lists,
    keys_per_entry: int,
    rows: Tensor | None,
    scale: float | None,
    softcap: float,
    deterministic: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """The loss, and the statistics for the backward pass."""
    loss, stats = empty_loss(index_q, index_k)
    kept_q, kept_k = _with_rows(index_q), _with_rows(index_k)
    _core.index_loss_forward(
        _view(kept_q), _view(kept_k), w, k_scale, q, k, lse, lists_view(lists), keys_per_entry, loss, stats,
        _rows_view(rows), scale, softcap, deterministic, backend, *place_of(index_q),
    )  # fmt: skip
    return loss, stats


def index_loss_backward(
    dloss: Tensor,
    index_q: Tensor,
    index_k: Tensor,
    w: Tensor | None,
    k_scale: Tensor | None,
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    lists: Lists,
    stats: Tensor,
    keys_per_entry: int,
    rows: Tensor | None,
    scale: float | None,
    softcap: float,
    deterministic: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dw of the indexer."""
    if index_q.dtype == E4M3:
        raise NotImplementedError(
            "index_loss: the indexer is e4m3, which has no gradients; compute the loss of the tensors before "
            "keyhole.quantize_e4m3, and select with those after it"
        )
    dq, dk, dw = empty_gradients(index_q, index_k, w)
    _core.index_loss_backward(
        dloss, index_q, index_k, w, k_scale, q, k, lse, lists_view(lists), keys_per_entry, stats, dq, dk,
        None if w is None else dw, _rows_view(rows), scale, softcap, deterministic, backend, *place_of(index_q),
    )  # fmt: skip
    return dq, dk, dw


def _sum_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _rows_view(rows: Tensor | None) -> Any:
    return None if rows is None else index_view(rows.view(1, 1, 1, -1))


def _with_rows(x: Tensor) -> Tensor:
    """x, or a copy of it if it is e4m3 and its rows are not contiguous. _core copies other tensors by itself."""
    return x.contiguous() if x.dtype == E4M3 and x.shape[-1] > 1 and x.stride(-1) != 1 else x


def _view(x: Tensor) -> Any:
    """A tensor in the form that _core takes; it must live during the call. DLPack of older torch does not know e4m3, so
    such a tensor is passed as a tuple."""
    if x.dtype != E4M3:
        return x
    strides = torch.empty(x.shape, device="meta").stride() if x.numel() == 0 else x.stride()
    return x.data_ptr(), _E4M3_OF_CORE, tuple(x.shape), strides, x.get_device()
