# python/keyhole/torch_attention/ops.py
"""torch.ops.keyhole: attention and merge for compilers, exporters, modes and transforms.

Ops are functional and return a fixed number of tensors. They take their lists as tensors (encoded.py), so that a
compiled graph serves every pattern and every selection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from . import kernels
from .encoded import lists_of
from .refusals import no_second_derivative, refuse_tangents, refuse_vmap_of
from .tensors import empty_in_order_of, empty_support

__all__ = ["TAGS", "attention_backward", "attention_forward", "library", "merge", "register"]

Tensor = torch.Tensor
Run: TypeAlias = Callable[..., Any]

library = torch.library.Library("keyhole", "DEF")
_LISTS = "Tensor[] lists, int[] tile"
_OPTIONS = "Tensor? sink, float? scale, float softcap, float alpha, int top_k, bool deterministic, str backend"
# The first call with a plan copies it to the GPU, which must not happen during CUDA graph capture. Users who capture by
# hand make a call before. Inductor (mode="reduce-overhead") does not, so this tag keeps our ops out of its graphs. The
# oldest torch that we support does not have the tag.
TAGS = tuple(getattr(torch.Tag, name) for name in ("cudagraph_unsafe",) if hasattr(torch.Tag, name))
library.define(
    f"attention_forward(Tensor q, Tensor k, Tensor v, {_LISTS}, {_OPTIONS}) -> (Tensor, Tensor, Tensor)", tags=TAGS
)
library.define(
    "attention_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"Tensor support, {_LISTS}, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=TAGS,
)
library.define("merge(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b) -> (Tensor, Tensor)")


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lists: list[Tensor],
    tile: list[int],
    sink: Tensor | None,
    scale: float | None,
    softcap: float,
    alpha: float,
    top_k: int,
    deterministic: bool,  # only used by the backward pass
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    followed = lists_of(lists, tile, q, k)
    out, lse, support = kernels.forward_with_support(q, k, v, followed, sink, scale, softcap, alpha, top_k, backend)
    return out, lse, _no_support(q) if support is None else support


def _no_support(q: Tensor) -> Tensor:
    """What softmax returns in place of a support, because ops return a fixed number of tensors."""
    return q.new_empty(0, dtype=torch.int32)


def _backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    support: Tensor,
    lists: list[Tensor],
    tile: list[int],
    sink: Tensor | None,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    followed = lists_of(lists, tile, q, k)
    given = support if support.dim() == 4 else None
    return _all_four(kernels.backward(dout, dlse, q, k, v, out, lse, given, followed, sink, *options))


def _all_four(gradients: tuple[Tensor, Tensor, Tensor, Tensor | None]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Without a sink its gradient is an empty tensor, because ops return a fixed number of tensors."""
    dq, dk, dv, dsink = gradients
    return dq, dk, dv, dq.new_empty(0, dtype=torch.float32) if dsink is None else dsink


def _fake_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lists: list[Tensor],
    tile: list[int],
    sink: Tensor | None,
    scale: float | None,
    softcap: float,
    alpha: float,
    top_k: int,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    support = empty_support(q) if kernels.has_support(alpha, top_k) else _no_support(q)
    return *kernels.empty_results(q, v), support


def _fake_backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    support: Tensor,
    lists: list[Tensor],
    tile: list[int],
    sink: Tensor | None,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _all_four(kernels.empty_gradients(q, k, v, sink))


def _fake_merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    return empty_in_order_of(out_a, *out_a.shape[1:]), lse_a.new_empty(lse_a.shape)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, lists, tile, sink, *options = inputs
    ctx.save_for_backward(q, k, v, *output, sink, *lists)
    ctx.tile = tile
    ctx.options = options
    ctx.set_materialize_grads(False)  # None instead of zeros if lse gets no gradient


def _differentiate(ctx: Any, dout: Tensor | None, dlse: Tensor | None, _: Any) -> tuple[Any, ...]:
    q, k, v, out, lse, support, sink, *lists = ctx.saved_tensors
    if dout is None:
        dout = torch.zeros_like(out)
    dq, dk, dv, dsink = attention_backward(dout, dlse, q, k, v, out, lse, support, lists, ctx.tile, sink, *ctx.options)
    # The gradient of a list of tensors is a list. torch takes an empty list of ints for a list of tensors.
    of_lists, of_tile = [None] * len(lists), None if ctx.tile else list[None]()
    return dq, dk, dv, of_lists, of_tile, None if sink is None else dsink, *[None] * len(ctx.options)


def _keep_for_merge(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.set_materialize_grads(False)


def _differentiate_merge(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    """The merged out is the sum of both, weighted by exp(lse_x - lse). These weights are also the derivatives of lse. A
    row that attends to nothing in both has weights 0.
    """
    out_a, lse_a, out_b, lse_b, out, lse = ctx.saved_tensors
    gradients = []
    for part, part_lse in ((out_a, lse_a), (out_b, lse_b)):
        weight = torch.exp(part_lse - torch.where(lse == -torch.inf, 0, lse))
        pull = torch.zeros_like(lse) if dlse is None else dlse
        dpart = None
        if dout is not None:
            dpart = (dout * weight.unsqueeze(-1)).to(part.dtype)
            pull = pull + (dout.to(lse.dtype) * (part.to(lse.dtype) - out)).sum(-1)
        gradients += [dpart, torch.where(weight == 0, 0, weight * pull)]
    return tuple(gradients)


def register(name: str, run: Run, fake: Run, differentiate: Run, keep: Run | None = None) -> None:
    """Registers kernels, fakes and gradients of an op, and what it refuses."""
    function = "attention" if name.startswith("attention_") else name.removesuffix("_forward").removesuffix("_backward")
    for key in ("CPU", "CUDA"):
        library.impl(name, run, key)
    torch.library.register_fake(f"keyhole::{name}", fake, lib=library)
    torch.library.register_autograd(f"keyhole::{name}", differentiate, setup_context=keep, lib=library)
    torch.library.register_vmap(f"keyhole::{name}", refuse_vmap_of(function), lib=library)
    library.impl(name, _without_tangents(name, function), "ADInplaceOrView", with_keyset=True)


def _without_tangents(name: str, function: str) -> Run:
    """A kernel that refuses tangents and redispatches. It runs after autograd, which would drop tangents silently."""

    def go_on(keyset: torch._C.DispatchKeySet, *arguments: Any) -> Any:
        refuse_tangents(function, *arguments)
        with torch._C._AutoDispatchBelowADInplaceOrView():
            op = getattr(torch.ops.keyhole, name).default
            return op.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *arguments)

    return go_on


register("attention_forward", _forward, _fake_forward, _differentiate, _keep_for_backward)
register("attention_backward", _backward, _fake_backward, no_second_derivative)
register("merge", kernels.merge, _fake_merge, _differentiate_merge, _keep_for_merge)

attention_forward = torch.ops.keyhole.attention_forward.default
attention_backward = torch.ops.keyhole.attention_backward.default
merge = torch.ops.keyhole.merge.default
