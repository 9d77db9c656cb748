# python/keyhole/torch_attention/autograd.py
"""Gradients in eager mode, by an autograd.Function and without the dispatcher.

Registered ops with gradients (ops.py) cost several times as much per call. Only compilers, exporters and dispatch modes
need them.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _core
from . import kernels
from .encoded import lists_of, parts_of
from .refusals import no_second_derivative, refuse_batched_gradients
from .tensors import Lists

__all__ = ["Attention"]

Tensor = torch.Tensor


class Attention(torch.autograd.Function):
    """(out, lse) of (q, k, v, sink), for a plan, an index tensor, key lists or tile lists."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sink: Tensor | None,
        lists: Lists,
        scale: float | None,
        softcap: float,
        alpha: float,
        top_k: int,
        deterministic: bool,
        backend: str,
    ) -> tuple[Tensor, Tensor]:
        out, lse, support = kernels.forward_with_support(q, k, v, lists, sink, scale, softcap, alpha, top_k, backend)
        ctx.plan = lists if isinstance(lists, _core.Plan) else None  # keeps a plan alive that the cache evicts
        parts, ctx.tile = ([], []) if isinstance(lists, _core.Plan) else parts_of(lists)
        ctx.save_for_backward(q, k, v, sink, out, lse, support, *parts)  # torch then detects writes to lists as well
        ctx.options = (scale, softcap, alpha, top_k, deterministic, backend)
        ctx.set_materialize_grads(False)  # None instead of zeros if lse gets no gradient
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, sink, out, lse, support, *parts = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(out)
        lists = lists_of(parts, ctx.tile, q, k) if ctx.plan is None else ctx.plan
        # A Function within this one costs host time, which the GPU waits for. It is only needed if the caller asked for
        # a graph of the gradients (create_graph=True).
        gradients = _Gradients.apply if torch.is_grad_enabled() else kernels.backward
        try:
            dq, dk, dv, dsink = gradients(dout, dlse, q, k, v, out, lse, support, lists, sink, *ctx.options)
        except Exception:
            refuse_batched_gradients(dout, dlse)
            raise
        return dq, dk, dv, dsink, None, *[None] * len(ctx.options)


class _Gradients(torch.autograd.Function):
    """The backward pass as a Function of its own: differentiating it raises our error for second derivatives."""

    @staticmethod
    def forward(
        ctx: Any,
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
        *options: Any,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        return kernels.backward(dout, dlse, q, k, v, out, lse, support, lists, sink, *options)

    backward = staticmethod(no_second_derivative)
