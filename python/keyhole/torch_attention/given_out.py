# python/keyhole/torch_attention/given_out.py
"""Checks for out=, the caller's tensor for the result, and whether kernels can write into it directly."""

from __future__ import annotations

from typing import Any

import torch

from .refusals import refuse_other

__all__ = ["check_out", "is_free_for_kernels"]

Tensor = torch.Tensor


def check_out(function: str, out: Any, q: Tensor, v: Tensor, *learned: Tensor | None, layout: str) -> None:
    """Checks `out`, which has the user's layout. q and v are heads first and have the dtype that the kernel gets."""
    if not isinstance(out, Tensor):
        refuse_other(function, "out", out)
    batch, heads, length, _ = q.shape
    wanted = (batch, heads, length, v.shape[3]) if layout == "bhsd" else (batch, length, heads, v.shape[3])
    if tuple(out.shape) != wanted:
        raise ValueError(f"{function}: out has shape {list(out.shape)}; expected {list(wanted)}, that of the result")
    if out.dtype != q.dtype:
        raise TypeError(f"{function}: out is {out.dtype}; expected {q.dtype}, that of the result")
    if out.device != q.device:
        raise ValueError(f"{function}: out is on {out.device}; expected {q.device}, where q is")
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (out, q, v, *learned)):
        raise RuntimeError(
            f"{function}: out= gives no gradients, and a tensor requires them; call under torch.no_grad(), pass "
            "detached tensors, or omit out="
        )


def is_free_for_kernels(out: Tensor, *others: Tensor | None) -> bool:
    """Whether kernels can write into `out`: it is strided, and its elements overlap neither each other nor `others`."""
    if type(out) is not Tensor or out.layout is not torch.strided or out.is_neg() or out.stride(-1) != 1:
        return False
    reach = 0  # the largest offset in the dimensions with smaller strides
    for stride, size in sorted(zip(out.stride(), out.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return False
            reach += stride * (size - 1)
    first, last = _extent(out)
    extents = [_extent(tensor) for tensor in others if tensor is not None]
    return all(last < their_first or their_last < first for their_first, their_last in extents)


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The addresses of its first and last byte."""
    if tensor.numel() == 0:
        return 0, -1
    begin = tensor.data_ptr()
    reach = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    return begin, begin + (reach + 1) * tensor.element_size() - 1
