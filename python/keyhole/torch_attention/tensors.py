# python/keyhole/torch_attention/tensors.py
"""Torch tensors in the form that the library takes, memory for its results, and the place where it runs."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from .. import _core
from ..lists import KeyLists, TileLists

__all__ = [
    "DTYPES",
    "INDEX_DTYPES",
    "MEMORY",
    "Lists",
    "current_stream",
    "empty_gradient",
    "empty_in_order_of",
    "empty_lse",
    "empty_out",
    "empty_support",
    "index_view",
    "lists_view",
    "place_of",
]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # in the order of _core's
INDEX_DTYPES = {torch.int32: 0, torch.int64: 1}
_core.know_torch(torch.Tensor, DTYPES, getattr(torch.Tensor, "__dlpack_c_exchange_api__", None))

# None in a build of torch without CUDA, where no tensor can be on a GPU. The public
# torch.cuda.current_stream().cuda_stream makes two Python objects and takes ten times as long.
current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def _empty_functions() -> tuple[Any, Any]:
    """Two functions (shape, strides, dtype) -> tensor, for the CPU and for the current GPU. Code that torch.compile
    generates allocates with them. They bypass torch's dispatcher, and take two thirds of the time of torch.empty_like
    on a GPU and half of it on the CPU. (None, None) if this torch does not have them as we know them. Only the first is
    tried, because trying the second would touch a GPU."""
    try:
        on_cpu, on_gpu = torch._C._dynamo.guards._empty_strided_cpu, torch._C._dynamo.guards._empty_strided_cuda
        made = on_cpu((2, 3), (3, 1), torch.bfloat16)
        is_as_known = (made.shape, made.stride(), made.dtype) == ((2, 3), (3, 1), torch.bfloat16)
        return (on_cpu, on_gpu) if is_as_known else (None, None)
    except (AttributeError, TypeError, RuntimeError):
        return None, None


def _bytes_on_gpu(size: int, ordinal: int) -> torch.Tensor:
    """Memory on a GPU that may not be the current one, of that GPU's current stream."""
    return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", ordinal))


_empty_on_cpu, _empty_on_gpu = _empty_functions()
# How _core allocates: results of plain calls, and the workspaces of all calls on a GPU, which ask for them in the midst
# of a call.
MEMORY: dict[str, Any] = {
    "empty_on_cpu": _empty_on_cpu,
    "empty_on_gpu": _empty_on_gpu,
    "current_gpu": getattr(torch._C, "_cuda_getDevice", None),
    "bytes_on_gpu": _bytes_on_gpu,
    "byte": torch.uint8,
}
_core.know_torch_memory(**MEMORY)


# A plan, indices [batch, heads, lists, entries], lists of keys, or tile lists.
Lists: TypeAlias = _core.Plan | torch.Tensor | KeyLists | TileLists


def lists_view(lists: Lists) -> Any:
    """Lists in the form that _core takes. The tuples do not keep the tensors alive: the caller must."""
    if isinstance(lists, torch.Tensor):
        return index_view(lists)
    if isinstance(lists, KeyLists):
        return (index_view(lists.indices), _optional_view(lists.counts), lists.keys_per_entry, lists.causal)
    if isinstance(lists, TileLists):
        tensors = (lists.tiles, lists.counts, lists.bitmap_of, lists.bitmaps)
        return (*lists.tile, *map(_optional_view, tensors))
    return lists


def _optional_view(indices: torch.Tensor | None) -> tuple[Any, ...] | None:
    return None if indices is None else index_view(indices)


def index_view(indices: torch.Tensor) -> tuple[Any, ...]:
    """The tuple of an integer tensor, which may have any strides."""
    return (
        indices.data_ptr(), INDEX_DTYPES[indices.dtype], indices.shape, indices.stride(), indices.get_device()
    )  # fmt: skip


def empty_in_order_of(like: torch.Tensor, heads: int, length: int, head_dim: int) -> torch.Tensor:
    """An uninitialised tensor [batch, heads, length, head_dim]. If `like` is stored in the order [batch, length, heads,
    head_dim], so is the result: for q from `x.view(b, s, h, d).transpose(1, 2)`, `out.transpose(1, 2).reshape(b, s,
    -1)` copies nothing. Fake implementations call this too, so they predict the strides that are allocated.
    """
    shape = (like.shape[0], heads, length, head_dim)
    if like.stride(1) >= like.stride(2):
        return like.new_empty(shape)
    row = max(heads, 1) * head_dim  # positive even without elements, like torch's own strides
    return like.new_empty_strided(shape, (max(length, 1) * row, head_dim, row, 1))


def _empty_contiguous(like: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor like `like`. Its strides would not do: an expanded tensor without elements counts
    as contiguous and has strides of 0."""
    return torch.empty_like(like, memory_format=torch.contiguous_format)


def empty_out(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Memory for [batch, q_heads, q_len, v_head_dim]."""
    if q.is_contiguous() and q.shape[3] == v.shape[3]:
        return _empty_contiguous(q)  # the same result in half the time
    return empty_in_order_of(q, q.shape[1], q.shape[2], v.shape[3])


def empty_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """Memory for the gradient of a tensor."""
    if tensor.is_contiguous():
        return _empty_contiguous(tensor)
    return empty_in_order_of(tensor, tensor.shape[1], tensor.shape[2], tensor.shape[3])


def empty_lse(q: torch.Tensor) -> torch.Tensor:
    """Memory for [batch, heads, length]: fp32, and fp64 where the inputs are."""
    return q.new_empty(q.shape[:3], dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)


def empty_support(q: torch.Tensor) -> torch.Tensor:
    """Memory for the keys that have weight: int32 [batch, heads, length, entries]."""
    return q.new_empty((*q.shape[:3], _core.SUPPORT_KEYS), dtype=torch.int32)


def place_of(tensor: torch.Tensor) -> tuple[int, int]:
    """(threads, stream): torch's number of threads on the CPU, and torch's current stream on a GPU. The library makes
    that GPU current by itself.
    """
    if tensor.is_cuda:
        return 0, current_stream(tensor.get_device())
    if not tensor.is_cpu:
        raise NotImplementedError(f"attention: q is on {tensor.device}; Keyhole runs on the CPU and on CUDA devices")
    return torch.get_num_threads(), 0
