# python/keyhole/torch_attention/kernels.py
"""Forward, backward and merge on torch tensors: allocates the results and calls the library."""

from __future__ import annotations

import torch

from .. import _core
from ..normalizer import ALL_KEYS
from .tensors import (
    Lists,
    empty_gradient,
    empty_in_order_of,
    empty_lse,
    empty_out,
    empty_support,
    index_view,
    lists_view,
    place_of,
)

__all__ = ["backward", "empty_gradients", "empty_results", "forward", "forward_with_support", "has_support", "merge"]

Tensor = torch.Tensor
_FOLDED_COLUMNS = 8  # one would do; eight keep the rows of 16-bit tensors aligned to 16 bytes
_MOST_HEAD_DIM = 576


def empty_results(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for out and lse."""
    return empty_out(q, v), empty_lse(q)


def has_support(alpha: float, top_k: int) -> bool:
    """Whether only some keys have weight, so that the forward pass can tell the backward pass which."""
    return alpha != 1.0 or top_k != ALL_KEYS


def empty_gradients(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Memory for dq, dk, dv and, where there is a sink, dsink."""
    dsink = None if sink is None else torch.empty_like(sink)
    return empty_gradient(q), empty_gradient(k), empty_gradient(v), dsink


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lists: Lists,
    sink: Tensor | None,
    scale: float | None,
    softcap: float,
    alpha: float,
    top_k: int,
    backend: str,
    with_lse: bool,
    into: Tensor | None = None,
    support: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """out, written to `into` if given, and lse if `with_lse`. Writes `support` if given."""
    threads, stream = place_of(q)
    out = empty_out(q, v) if into is None else into
    lse = empty_lse(q) if with_lse else None
    _core.forward(
        q, k, v, lists_view(lists), out, lse, None if support is None else index_view(support), sink, scale, softcap,
        alpha, top_k, backend, threads, stream,
    )  # fmt: skip
    return out, lse


def forward_with_support(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lists: Lists,
    sink: Tensor | None,
    scale: float | None,
    softcap: float,
    alpha: float,
    top_k: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """out, lse and, where only some keys have weight, which."""
    support = empty_support(q) if has_support(alpha, top_k) else None
    out, lse = forward(q, k, v, lists, sink, scale, softcap, alpha, top_k, backend, True, support=support)
    assert lse is not None
    return out, lse, support


def backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    support: Tensor | None,
    lists: Lists,
    sink: Tensor | None,
    scale: float | None,
    softcap: float,
    alpha: float,
    top_k: int,
    deterministic: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """dq, dk, dv and, with a sink, dsink. `dlse` is the gradient of lse, or None."""
    dq, dk, dv, dsink = empty_gradients(q, k, v, sink)
    whole_dv = dv
    if dlse is not None and not has_support(alpha, top_k):
        dout, v, out = _fold(dout, dlse, v, out, lse)
        whole_dv = torch.empty_like(v)
        dlse = None
    _core.backward(
        dout, None if dlse is None else dlse.contiguous(), q, k, v, out, lse,
        None if support is None else index_view(support), lists_view(lists), dq, dk, whole_dv, sink, dsink, scale,
        softcap, alpha, top_k, deterministic, backend, *place_of(q),
    )  # fmt: skip
    if whole_dv is not dv:
        dv.copy_(whole_dv[..., : dv.shape[3]])
    return dq, dk, dv, dsink


def _fold(dout: Tensor, dlse: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Folds the gradient of lse into dout, v and out, for softmax's kernels, which only know the gradient of out.

    The gradient of a score is p * (dout . v - delta + dlse), where delta = dout . out. That of a sink logit is the same
    without dout . v. One extra column with v = 0, dout = 1 and out = -dlse leaves dout . v unchanged and turns delta
    into delta - dlse, because the kernels compute delta from the out that they are given. A row that attends to nothing
    has lse = -inf whatever the scores, so its gradient is 0, even if the incoming one is NaN.
    """
    if v.shape[3] + _FOLDED_COLUMNS > _MOST_HEAD_DIM:
        raise NotImplementedError(
            f"attention: the gradient of lse needs {_FOLDED_COLUMNS} columns in addition to the {v.shape[3]} of v, and "
            f"kernels take at most {_MOST_HEAD_DIM}; detach lse, or split v along head_dim and call once for each part"
        )
    column = torch.where(lse == -torch.inf, 0, -dlse).to(out.dtype).unsqueeze(-1)
    rest = _FOLDED_COLUMNS - 1
    v = torch.cat([v, v.new_zeros(*v.shape[:3], _FOLDED_COLUMNS)], -1)
    dout = torch.cat([dout, torch.ones_like(column), dout.new_zeros(*dout.shape[:3], rest)], -1)
    out = torch.cat([out, column, out.new_zeros(*out.shape[:3], rest)], -1)
    return dout, v, out


def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """The merged out and lse, in new tensors."""
    _, stream = place_of(out_a)
    out = empty_in_order_of(out_a, *out_a.shape[1:]).copy_(out_a)
    lse = lse_a.clone(memory_format=torch.contiguous_format)
    _core.merge(out, lse, out_b, lse_b, stream)
    return out, lse
