# python/keyhole/_arrays.py
"""Converts what users pass as arrays to the NumPy types that recipes keep.

Imported on first use, because importing NumPy takes longer than importing all of keyhole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["boolean_rows", "integers", "packed", "positions"]


def as_numpy(values: Any) -> np.ndarray[Any, Any]:
    """Converts lists, iterators, arrays, and tensors of frameworks that support NumPy. GPU tensors are copied."""
    if hasattr(values, "detach") and hasattr(values, "cpu"):  # np.asarray refuses torch tensors that need either
        values = values.detach().cpu()
    if isinstance(values, Iterable) and not hasattr(values, "__len__") and not hasattr(values, "__array__"):
        values = list(values)
    return np.asarray(values)


def integers(name: str, parameter: str, values: Any) -> npt.NDArray[np.int64]:
    """Integers, flattened. Other dtypes are a TypeError; numbers that do not fit into int64 are a ValueError."""
    array = as_numpy(values)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"{name}: {parameter} must be integers, found {array.dtype}")
    if array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name}: {parameter} has {array.max()}, which does not fit into int64")
    return np.ascontiguousarray(array, np.int64).reshape(-1)


def positions(name: str, **arrays: Any) -> list[npt.NDArray[np.int64]]:
    """Broadcasts arrays [length], [batch, length] or [batch, heads, length] to [batch, heads, length], with the same
    batch and heads for all. The lengths may differ."""
    found = []
    for parameter, values in arrays.items():
        array = as_numpy(values)
        if not 1 <= array.ndim <= 3:
            raise ValueError(
                f"{name}: {parameter} has shape {list(array.shape)}; "
                "expected [length], [batch, length] or [batch, heads, length]"
            )
        batch, heads = (*array.shape[:-1], 1, 1)[:2]
        found.append(integers(name, parameter, array).reshape(batch, heads, array.shape[-1]))
    try:
        sizes = np.broadcast_shapes(*(x.shape[:2] for x in found))
    except ValueError:
        sizes_found = " and ".join(f"{p} {list(x.shape[:2])}" for p, x in zip(arrays, found, strict=True))
        raise ValueError(f"{name}: batch and heads are those of {sizes_found}; they must be equal, or 1") from None
    return [np.broadcast_to(x, (*sizes, x.shape[2])) for x in found]


def boolean_rows(name: str, parameter: str, values: Any) -> npt.NDArray[np.bool_]:
    """A matrix of bools, or of numbers that are 0 or 1."""
    array = as_numpy(values)
    if array.shape == (0,):  # the list [], which in a pattern's text is a matrix of 0 x 0
        array = array.reshape(0, 0)
    if array.ndim != 2:
        raise ValueError(f"{name}: {parameter} has shape {list(array.shape)}; expected [q_len, k_len]")
    if array.dtype == np.bool_ or array.size == 0:
        return array.astype(np.bool_)
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"{name}: {parameter} must be bools, found {array.dtype}; write rows != 0, or rows > -inf")
    if ((array != 0) & (array != 1)).any():
        raise ValueError(f"{name}: {parameter} has entries other than 0 and 1; write rows != 0")
    return array.astype(np.bool_)


def packed(rows: npt.NDArray[np.bool_]) -> bytes:
    """Eight pairs per byte, lowest bit first; rows follow one another without padding."""
    return np.packbits(rows, axis=None, bitorder="little").tobytes()
