# python/keyhole/torch_select/call.py
"""Selection for torch tensors: checks and casts, then a kernel directly, or a registered op where somebody observes the
call or needs a gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _core
from ..lists import KeyLists
from ..pattern import Pattern, as_pattern
from ..plan import Plan, plan_for
from ..torch_attention.call import PLAIN_TYPES, check_transforms, fake_if_needed
from ..torch_attention.encoded import NO_TILE, key_list_parts
from ..torch_attention.refusals import refuse_learned, refuse_other, refuse_unreadable
from ..torch_attention.tensors import INDEX_DTYPES
from . import kernels, ops

__all__ = ["index_loss", "index_scores", "select_keys", "top_k"]

Tensor = torch.Tensor
Shape = tuple[int, int, int, int]  # batch, groups, q_len, entries

_QUERIES = "[batch, index_heads, q_len, head_dim]"
_ENTRIES = "[batch, groups, entries, head_dim]"
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def index_scores(q: Tensor, k: Tensor, w: Any, k_scale: Any, visible: Any, backend: str) -> Tensor:
    """See keyhole.index_scores."""
    function = "index_scores"
    w, k_scale = _indexer(function, q, k, w, k_scale)
    visible = _pattern(function, "visible", visible)
    if _needs_op(function, q, k, w, k_scale) or _needs_gradient(q, k, w, k_scale):
        refuse_unreadable(function, q=q, k=k, w=w, k_scale=k_scale)
        return ops.index_scores(q, k, w, k_scale, _encoded(q, visible), backend)  # type: ignore[no-any-return]
    try:
        shape = _shape(q, k)
        return kernels.index_scores(q, k, w, k_scale, _plan(visible, shape), backend)
    except Exception:  # our errors for sparse, nested and other unreadable tensors are clearer than torch's
        refuse_unreadable(function, q=q, k=k, w=w, k_scale=k_scale)
        raise


def top_k(scores: Tensor, k: int, visible: Any, always: Any, return_counts: bool, backend: str) -> Any:
    """See keyhole.top_k."""
    function = "top_k"
    _check(function, "scores", scores, "[batch, groups, q_len, entries]", _FLOATS)
    visible, always = _pattern(function, "visible", visible), _pattern(function, "always", always)
    if _needs_op(function, scores):
        refuse_unreadable(function, scores=scores)
        result = ops.top_k(scores, k, _encoded(scores, visible), _encoded(scores, always), backend)
    else:
        try:
            shape = tuple(scores.shape)
            result = kernels.top_k(scores, k, _plan(visible, shape), _plan(always, shape), backend)
        except Exception:
            refuse_unreadable(function, scores=scores)
            raise
    return result if return_counts else result[0]


def select_keys(
    q: Tensor,
    k: Tensor,
    w: Any,
    k_scale: Any,
    count: int,
    visible: Any,
    always: Any,
    return_counts: bool,
    backend: str,
) -> Any:
    """See keyhole.select_keys."""
    function = "select_keys"
    w, k_scale = _indexer(function, q, k, w, k_scale)
    visible, always = _pattern(function, "visible", visible), _pattern(function, "always", always)
    if _needs_op(function, q, k, w, k_scale):
        refuse_unreadable(function, q=q, k=k, w=w, k_scale=k_scale)
        result = ops.select_keys(q, k, w, k_scale, count, _encoded(q, visible), _encoded(q, always), backend)
    else:
        try:
            shape = _shape(q, k)
            plans = _plan(visible, shape), _plan(always, shape)
            result = kernels.select_keys(q, k, w, k_scale, count, *plans, backend)
        except Exception:
            refuse_unreadable(function, q=q, k=k, w=w, k_scale=k_scale)
            raise
    return result if return_counts else result[0]


def index_loss(
    index_q: Tensor,
    index_k: Tensor,
    w: Any,
    k_scale: Any,
    q: Any,
    k: Any,
    lse: Any,
    keys: Any,
    keys_per_entry: int,
    rows: Any,
    scale: Any,
    softcap: Any,
    deterministic: bool,
    backend: str,
) -> Tensor:
    """See keyhole.index_loss."""
    function = "index_loss"
    w, k_scale = _indexer(function, index_q, index_k, w, k_scale, "index_")
    if k_scale is not None and k_scale.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{function}: k_scale requires a gradient, and gets none here; pass k_scale.detach(), or multiply index_k "
            "by it if it is not negative"
        )
    _check(function, "q", q, "[batch, q_heads, q_len, head_dim]", _FLOATS)
    _check(function, "k", k, "[batch, kv_heads, k_len, head_dim]", _FLOATS)
    _check(function, "lse", lse, "[batch, q_heads, q_len]", _FLOATS)
    _check_dtypes(function, "k", k, "q", q)
    _check_lse(function, lse, q)
    refuse_learned(function, scale=scale, softcap=softcap)
    rows = _rows(function, rows, index_q)
    q, k, lse = q.detach(), k.detach(), lse.detach()
    named = {"index_q": index_q, "index_k": index_k, "w": w, "k_scale": k_scale, "q": q, "k": k, "lse": lse}
    has_indices = isinstance(keys, (Tensor, KeyLists))
    if has_indices:
        named |= _indices(function, keys)
    tensors = (index_q, index_k, w, k_scale, q, k, lse)
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    options = (keys_per_entry, rows, scale, softcap, deterministic, backend)
    if _needs_op(function, *named.values(), rows) or _needs_gradient(*tensors):
        refuse_unreadable(function, **named)
        return ops.index_loss_forward(*tensors, *_parts(q, keys), *options)[0]  # type: ignore[no-any-return]
    try:
        sizes = (q.shape[0], index_k.shape[1], q.shape[2], k.shape[2])
        lists = keys if has_indices else _plan(keys, sizes)
        return kernels.index_loss_forward(*tensors, lists, *options)[0]
    except Exception:
        refuse_unreadable(function, **named)
        raise


def _indexer(
    function: str, q: Tensor, k: Any, w: Any, k_scale: Any, prefix: str = ""
) -> tuple[Tensor | None, Tensor | None]:
    """Checks the tensors of an indexer; w and k_scale as kernels take them."""
    dtypes = (*_FLOATS, kernels.E4M3)
    _check(function, f"{prefix}q", q, _QUERIES, dtypes)
    _check(function, f"{prefix}k", k, _ENTRIES, dtypes)
    _check_dtypes(function, f"{prefix}k", k, f"{prefix}q", q)
    sums = torch.float64 if q.dtype == torch.float64 else torch.float32
    found = []
    for name, tensor, shape in (
        ("w", w, "[batch, index_heads, q_len]"),
        ("k_scale", k_scale, "[batch, groups, entries]"),
    ):
        if tensor is not None:
            _check(function, name, tensor, shape, _FLOATS)
            tensor = tensor if tensor.dtype == sums else tensor.to(sums)
        found.append(tensor)
    return found[0], found[1]


def _indices(function: str, keys: Tensor | KeyLists) -> dict[str, Tensor]:
    """The tensors of key indices, by name."""
    dtypes = tuple(INDEX_DTYPES)
    if isinstance(keys, Tensor):
        _check(function, "keys", keys, "[batch, heads, q_len, entries]", dtypes)
        return {"keys": keys}
    _check(function, "keys.indices", keys.indices, "[batch, heads, q_len, entries]", dtypes)
    return {"keys.indices": keys.indices} | ({} if keys.counts is None else {"keys.counts": keys.counts})


def _check(function: str, name: str, tensor: Any, shape: str, dtypes: tuple[torch.dtype, ...]) -> None:
    if not isinstance(tensor, Tensor):
        refuse_other(function, name, tensor)
    rank = shape.count(",") + 1
    if tensor.dim() != rank:
        raise ValueError(f"{function}: {name} has {tensor.dim()} dimensions; expected {rank}: {shape}")
    if tensor.dtype not in dtypes:
        refuse_unreadable(function, **{name: tensor})  # quantized tensors have a way out of their own
        names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
        raise TypeError(f"{function}: {name} is {tensor.dtype}; accepted are {', '.join(names)}")


def _check_dtypes(function: str, name: str, tensor: Tensor, beside: str, other: Tensor) -> None:
    if tensor.dtype != other.dtype:
        raise ValueError(
            f"{function}: {name} is {tensor.dtype} and {beside} {other.dtype}; expected the same dtype: pass "
            f"{name}.to({beside}.dtype)"
        )


def _check_lse(function: str, lse: Tensor, q: Tensor) -> None:
    expected = torch.float64 if q.dtype == torch.float64 else torch.float32
    if lse.dtype != expected:
        raise ValueError(
            f"{function}: lse is {lse.dtype} and q {q.dtype}; expected {expected}, which keyhole.attention(..., "
            "return_lse=True) returns"
        )


def _rows(function: str, rows: Any, like: Tensor) -> Tensor | None:
    """int32 [n] on the device of `like`."""
    if rows is None:
        return None
    if not isinstance(rows, Tensor):
        rows = torch.as_tensor(rows, device=like.device)
    if rows.dim() != 1 or (rows.numel() and rows.dtype not in INDEX_DTYPES):
        raise ValueError(
            f"{function}: rows is {rows.dtype} {list(rows.shape)}; expected the numbers of queries in ascending order, "
            "int32 or int64 [n]"
        )
    if rows.device != like.device:
        raise ValueError(f"{function}: rows is on {rows.device}; expected {like.device}, where index_q is")
    return rows.to(torch.int32).contiguous()


def _pattern(function: str, name: str, what: Any) -> Any:
    if what is None or isinstance(what, (Pattern, Plan, str)):
        return what
    return as_pattern(what, f"{function}: {name}")  # raises


def _plan(what: Any, shape: Any) -> _core.Plan | None:
    batch, groups, q_len, entries = shape
    return None if what is None else plan_for(what, q_len, entries, batch, groups).core


def _shape(q: Tensor, k: Tensor) -> Shape:
    return q.shape[0], k.shape[1], q.shape[2], k.shape[2]


def _encoded(like: Tensor, what: Any) -> Tensor | None:
    """A pattern as a tensor, for ops."""
    if what is None:
        return None
    from ..torch_attention.plan_tensors import tensor_of  # imported here because it loads torch's compiler

    return fake_if_needed(like, tensor_of(what))


def _parts(like: Tensor, keys: Any) -> tuple[Tensor | None, Tensor | None, list[int]]:
    """The lists of a loss, for ops."""
    if isinstance(keys, KeyLists):
        return key_list_parts(keys)
    return keys if isinstance(keys, Tensor) else _encoded(like, keys), None, list(NO_TILE)


def _needs_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _needs_op(function: str, *tensors: Tensor | None) -> bool:
    """Whether the call must go through a registered op: under a compiler, an exporter or a dispatch mode, or with a
    tensor subclass or a meta tensor."""
    check_transforms(function, *tensors)
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._is_tracing()
        or any(x is not None and (type(x) not in PLAIN_TYPES or x.is_meta) for x in tensors)
    )
