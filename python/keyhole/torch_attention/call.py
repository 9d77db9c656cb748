# python/keyhole/torch_attention/call.py
"""attention and merge for torch tensors: settles dtypes and layout, then takes the cheapest path to a kernel.

eager, no gradient            kernels.forward. The plainest calls do not come here: keyhole.attention serves them with
                              _core.forward_if_plain
eager, with gradients         autograd.Attention
compilers, exporters, modes   torch.ops.keyhole
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from .. import _core
from ..lists import KeyLists, TileLists, refuse_lists
from ..normalizer import ALL_KEYS
from ..pattern import Pattern
from ..plan import Plan, plan_for
from . import kernels, ops
from .autograd import Attention
from .encoded import core_plan, parts_of
from .given_out import check_out, is_free_for_kernels
from .refusals import refuse_forward_mode, refuse_learned, refuse_other, refuse_transforms, refuse_unreadable
from .tensors import INDEX_DTYPES, Lists, current_stream, empty_out

__all__ = ["PLAIN_TYPES", "attention", "check_transforms", "fake_if_needed", "merge"]

Tensor = torch.Tensor
PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter))

# Looked up once: every call uses them, and finding them in torch._C costs as much as calling them.
_STRIDED = torch.strided
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_num_dispatch_modes = torch._C._len_torch_dispatch_stack
_transform_level = torch._C._functorch.maybe_current_level
_is_tracing = torch._C._is_tracing

# What _core.forward_if_plain, the fast path of keyhole.attention, needs from torch. It takes calls in which q, k and v
# have a type of "tensors", all "questions" return None, False or 0, and no level of forward mode is entered.
_PLAIN_CALLS: dict[str, Any] = {
    "tensors": tuple(PLAIN_TYPES),
    "plans": Plan,
    "patterns": Pattern,
    "questions": (
        _num_dispatch_modes,
        _is_any_autocast_enabled,
        _transform_level,
        _is_tracing,
    ),
    "forward_ad": forward_ad,
    "is_grad_enabled": _is_grad_enabled,
    "plan_for": plan_for,
    "empty_out": empty_out,
    "num_threads": torch.get_num_threads,
    "current_stream": current_stream,
}
_core.know_plain_calls(**_PLAIN_CALLS)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lists: Any,
    scale: float | None = None,
    layout: str = "bhsd",
    softcap: float = 0.0,
    sink: Tensor | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
    backend: str = "auto",
    function: str = "attention",
    out: Tensor | None = None,
    alpha: float = 1.0,
    top_k: int = ALL_KEYS,
) -> Any:
    """See keyhole.attention. `function` is the public function, which errors name; gather_attention takes only indices.

    Under autocast q, k and v are cast as for torch's scaled_dot_product_attention: floats other than fp64 become the
    autocast dtype. `sink` is always fp32. Gradients of lse are exact up to the rounding of q's dtype. They cost copies
    of v, out and dout, so detach an lse that needs no gradient.
    """
    if not (isinstance(k, Tensor) and isinstance(v, Tensor) and q.dim() == k.dim() == v.dim() == 4):
        _check_tensors(function, q=q, k=k, v=v)
    tensors = _tensors_of(function, lists)
    if isinstance(scale, Tensor) or isinstance(softcap, Tensor):
        refuse_learned(function, scale=scale, softcap=softcap)
    q, k, v, sink = _prepare(function, q, k, v, sink, layout)
    given = out
    if out is not None:
        check_out(function, out, q, v, k, sink, layout=layout)
        given = _heads_first(out, layout)
    if _needs_op(function, q, k, v, sink) or (
        tensors and not all(type(tensor) in PLAIN_TYPES for tensor in tensors.values())
    ):
        refuse_unreadable(function, q=q, k=k, v=v, sink=sink, **tensors)
        if not _is_compiling() and "torch.utils.flop_counter" in sys.modules:
            from . import flops

            flops.update_counters()
        deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
        parts, tile = parts_of(lists)
        if not tensors:
            parts = [fake_if_needed(q, parts[0]), *parts[1:]]
        result, lse, _ = ops.attention_forward(
            q, k, v, parts, tile, sink, scale, softcap, alpha, top_k, deterministic, backend
        )
    else:
        try:
            followed = lists if tensors else core_plan(lists, q, k)
            into = given if given is not None and is_free_for_kernels(given, q, k, v, sink) else None
            options = (scale, softcap, alpha, top_k)
            result, lse = _run(q, k, v, followed, sink, options, deterministic, backend, return_lse, into)
        except Exception:  # our errors for sparse, nested and other unreadable tensors are clearer than torch's
            refuse_unreadable(function, q=q, k=k, v=v, sink=sink, **tensors)
            raise
    if out is None:
        out = _heads_first(result, layout) if layout != "bhsd" else result
    elif result is not given:
        given.copy_(result)
    elif not out.is_inference():
        increment_version(out)  # torch does not see what a kernel writes
    return (out, lse) if return_lse else out


def merge(
    out: Tensor, lse: Tensor, other_out: Tensor, other_lse: Tensor, *, layout: str = "bhsd"
) -> tuple[Tensor, Tensor]:
    """See keyhole.merge. Differentiable with respect to all four tensors."""
    _check_tensors("merge", out=out, lse=lse, other_out=other_out, other_lse=other_lse)
    refuse_unreadable("merge", out=out, lse=lse, other_out=other_out, other_lse=other_lse)
    check_transforms("merge", out, lse, other_out, other_lse)
    out, lse = ops.merge(_heads_first(out, layout), lse, _heads_first(other_out, layout), other_lse)
    return _heads_first(out, layout), lse


def _tensors_of(function: str, lists: Any) -> dict[str, Tensor]:
    """The tensors of indices, key lists or tile lists, by name; patterns and plans have none."""
    if isinstance(lists, KeyLists):
        if not isinstance(lists.indices, Tensor):
            refuse_other(function, "indices", lists.indices)
        return {"indices": lists.indices} | ({} if lists.counts is None else {"counts": lists.counts})
    if function == "gather_attention":
        _check_tensors(function, indices=lists)
        if lists.dtype not in INDEX_DTYPES:
            raise TypeError(f"{function}: indices are {lists.dtype}; accepted are int32 and int64")
    if isinstance(lists, Tensor):
        if lists.dtype not in INDEX_DTYPES or lists.dim() != 4:
            refuse_lists(function, lists)
        return {"indices": lists}
    if isinstance(lists, TileLists):
        if not isinstance(lists.tiles, Tensor):
            refuse_other(function, "tiles", lists.tiles)
        named = {"tiles": lists.tiles, "counts": lists.counts, "bitmap_of": lists.bitmap_of, "bitmaps": lists.bitmaps}
        return {name: tensor for name, tensor in named.items() if tensor is not None}
    return {}


def _prepare(
    function: str, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, layout: str
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """q, k, v and sink as kernels take them: heads first, and cast under autocast."""
    if layout != "bhsd":
        if not (q.layout is k.layout is v.layout is _STRIDED):  # torch cannot transpose some other layouts
            refuse_unreadable(function, q=q, k=k, v=v)
        q, k, v = _heads_first(q, layout), _heads_first(k, layout), _heads_first(v, layout)
    if _is_any_autocast_enabled() and (q.is_cuda or q.is_cpu) and torch.is_autocast_enabled(q.device.type):
        q, k, v = _autocast(q), _autocast(k), _autocast(v)
    if sink is not None:
        if not isinstance(sink, Tensor):
            refuse_other(function, "sink", sink)
        if sink.dtype != torch.float32:
            if not sink.is_floating_point():  # a quantized tensor cannot be cast
                refuse_unreadable(function, sink=sink)
            sink = sink.float()
        sink = sink.resolve_neg()  # z.conj().imag, for example, is stored with the opposite sign
    return q, k, v, sink


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lists: Lists,
    sink: Tensor | None,
    options: tuple[float | None, float, float, int],
    deterministic: bool,
    backend: str,
    with_lse: bool,
    into: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """out and lse in eager mode. `options`: scale, softcap, alpha, top_k."""
    if _is_grad_enabled() and (
        q.requires_grad or k.requires_grad or v.requires_grad or (sink is not None and sink.requires_grad)
    ):
        deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
        return Attention.apply(q, k, v, sink, lists, *options, deterministic, backend)
    return kernels.forward(q, k, v, lists, sink, *options, backend, with_lse, into)


def _check_tensors(function: str, **tensors: Any) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            refuse_other(function, name, tensor)
        rank, expected = 4, "[batch, heads, length, head_dim], or with layout='bshd' [batch, length, heads, head_dim]"
        if name.endswith("lse"):
            rank, expected = 3, "[batch, heads, length]"
        elif name == "indices":
            expected = "[batch, heads, lists, entries]"
        if tensor.dim() != rank:
            raise ValueError(f"{function}: {name} has {tensor.dim()} dimensions; expected {rank}: {expected}")


def _heads_first(tensor: Tensor, layout: str) -> Tensor:
    """Converts between the user's layout and [batch, heads, length, head_dim]. The same swap serves both directions."""
    if layout == "bshd":
        return tensor.transpose(1, 2)
    if layout != "bhsd":
        raise ValueError(
            f"layout is {layout!r}; accepted are 'bhsd' and 'bshd' (b batch, h heads, s sequence, d head_dim)"
        )
    return tensor


def _autocast(tensor: Tensor) -> Tensor:
    is_cast = tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(torch.get_autocast_dtype(tensor.device.type)) if is_cast else tensor


def check_transforms(function: str, *tensors: Tensor | None) -> None:
    """Refuses transforms that the registered ops do not support. In forward mode torch would silently assume zeros."""
    if _is_compiling():  # torch.compile traces torch.func.jvp; inside it, tangents of the tensors cannot be inspected
        if forward_ad._current_level >= 0:
            refuse_forward_mode(function)
    elif forward_ad._current_level >= 0 or _transform_level() is not None:
        refuse_transforms(function, *tensors)


def _needs_op(function: str, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> bool:
    """Whether the call must go through a registered op: under a compiler, an exporter or a dispatch mode (fake tensors,
    flop counters, selective checkpointing), or with a tensor subclass.
    """
    check_transforms(function, q, k, v, sink)
    return (
        _is_compiling()
        or _num_dispatch_modes() > 0
        or _is_tracing()
        or type(q) not in PLAIN_TYPES
        or type(k) not in PLAIN_TYPES
        or type(v) not in PLAIN_TYPES
        or (sink is not None and type(sink) not in PLAIN_TYPES)
        or q.is_meta
    )


def fake_if_needed(q: Tensor, plan: Tensor) -> Tensor:
    """The encoded plan as a fake tensor if q is one and its mode refuses real ones. Exporters take it as a constant."""
    if _is_compiling() or not isinstance(q, FakeTensor) or q.fake_mode.allow_non_fake_inputs:
        return plan
    fake = q.fake_mode.from_tensor(plan)
    fake.keyhole_encoded = plan  # for flops.py
    return fake
