# python/keyhole/torch_attention/tensors.py
"""Torch tensors as the library sees them: pointer, dtype, shape, strides, device; and memory for its results."""

from __future__ import annotations

from typing import Any

import torch

__all__ = [
    "as_rows",
    "check_place",
    "empty_in_order_of",
    "empty_lse",
    "index_view",
    "stream_of",
    "threads_of",
    "view",
]

_DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}  # _core.DType
_INDEX_DTYPES = {torch.int32: 0, torch.int64: 1}

# None in a build of torch without CUDA, where no tensor can be on a GPU. The public way,
# torch.cuda.current_stream().cuda_stream, makes two Python objects and takes ten times as long.
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def view(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The tuple that _core takes. It does not keep the tensor alive."""
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise TypeError(
            f"attention: a tensor is {tensor.dtype}; accepted are float16, bfloat16, float32 and, on the CPU, float64"
        )
    return (tensor.data_ptr(), dtype, tensor.shape, tensor.stride(), tensor.get_device())


def index_view(indices: torch.Tensor) -> tuple[Any, ...]:
    """The same of indices, which may have any strides."""
    dtype = _INDEX_DTYPES.get(indices.dtype)
    if dtype is None:
        raise TypeError(f"gather_attention: indices are {indices.dtype}; accepted are int32 and int64")
    return (indices.data_ptr(), dtype, indices.shape, indices.stride(), indices.get_device())


def as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy where its last dimension is not contiguous: kernels read whole rows of head_dim elements,
    and any other stride. Expanded gradients (those of a sum, say) come here with stride 0 everywhere.
    """
    if tensor.stride(-1) == 1 or tensor.shape[-1] <= 1:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)  # contiguous() keeps the strides of what has no elements


def empty_in_order_of(like: torch.Tensor, heads: int, length: int, head_dim: int) -> torch.Tensor:
    """Memory for [batch, heads, length, head_dim], with the heads inside of the length where `like` has them so: then
    `x.view(b, s, h, d).transpose(1, 2)` comes back in the order of x, and `out.transpose(1, 2).reshape(b, s, -1)`
    copies nothing. Fake implementations call this too, so what they promise is what is allocated.
    """
    shape = (like.shape[0], heads, length, head_dim)
    if like.is_contiguous() and shape == like.shape:
        return torch.empty_like(like)  # the same, in half the time
    if like.stride(1) >= like.stride(2):
        return like.new_empty(shape)
    row = max(heads, 1) * head_dim  # without elements too, strides are positive, as torch's own
    return like.new_empty_strided(shape, (max(length, 1) * row, head_dim, row, 1))


def empty_lse(q: torch.Tensor) -> torch.Tensor:
    """Memory for [batch, heads, length]: fp32, and fp64 where the inputs are."""
    return q.new_empty(q.shape[:3], dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)


def check_place(q: torch.Tensor) -> None:
    if not (q.is_cpu or q.is_cuda):
        raise NotImplementedError(f"attention: q is on {q.device}; Keyhole runs on the CPU and on CUDA devices")


def stream_of(tensor: torch.Tensor) -> int:
    """The current stream of the tensor's device; 0 on the CPU. The library itself makes that device current."""
    device = tensor.get_device()
    return 0 if device < 0 else _current_stream(device)


def threads_of(tensor: torch.Tensor) -> int:
    """torch.set_num_threads is obeyed; on a GPU the number means nothing."""
    return torch.get_num_threads() if tensor.get_device() < 0 else 0
