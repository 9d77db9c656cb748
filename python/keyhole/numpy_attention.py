# python/keyhole/numpy_attention.py
"""Attention over NumPy arrays, on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from .lists import KeyLists, TileLists, refuse_lists
from .normalizer import ALL_KEYS
from .pattern import Pattern
from .plan import Plan, plan_for

__all__ = ["attention", "attention_backward", "merge"]

Array = np.ndarray[Any, Any]
TensorTuple = tuple[int, int, tuple[int, ...], tuple[int, ...], int]

# NumPy has no bfloat16 of its own; the package ml_dtypes adds one, under this name.
_DTYPES = {"float16": 0, "bfloat16": 1, "float32": 2, "float64": 3}
_INDEXER_DTYPES = {**_DTYPES, "float8_e4m3fn": 4}  # the last one, too, is of ml_dtypes
_INDEX_DTYPES = {"int32": 0, "int64": 1}
_HOST = -1


def attention(
    q: Array,
    k: Array,
    v: Array,
    lists: Any,
    *,
    scale: float | None,
    layout: str,
    softcap: float,
    sink: Array | None,
    return_lse: bool,
    backend: str,
    function: str = "attention",
    out: Array | None = None,
    alpha: float = 1.0,
    top_k: int = ALL_KEYS,
) -> Array | tuple[Array, Array]:
    """keyhole.attention for NumPy arrays. `function` is the public function, which errors name; gather_attention takes
    only indices as lists.
    """
    q, k, v = (_heads_first(_checked(function, what, x, 4), layout) for what, x in _named(q=q, k=k, v=v))
    batch, heads, q_len, _ = q.shape
    shape = (batch, heads, q_len, v.shape[3])
    lse = np.empty((batch, heads, q_len), _lse_dtype(q)) if return_lse else None
    sink = _sink(function, sink)
    lists = _readable_lists(function, lists)
    given = None if out is None else _given_out(function, out, shape, q, layout)
    result = given if given is not None and _is_free(given, q, k, v, sink) else _empty(q, shape, layout)
    _core.forward(
        _tensor(q), _tensor(k), _tensor(v), _followed(lists, q, k), _tensor(result), _optional(lse), None,
        _optional(sink), scale, softcap, alpha, top_k, backend, 0, 0,
    )  # fmt: skip
    if out is None:
        out = _heads_first(result, layout)
    elif given is not None and result is not given:
        given[...] = result
    return (out, lse) if lse is not None else out


def attention_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    lists: Any,
    *,
    scale: float | None,
    layout: str,
    softcap: float,
    sink: Array | None,
    backend: str,
    function: str = "attention_backward",
    alpha: float = 1.0,
    top_k: int = ALL_KEYS,
) -> tuple[Array, ...]:
    """keyhole.attention_backward."""
    dout, q, k, v, out = (
        _heads_first(_checked(function, what, x, 4), layout) for what, x in _named(dout=dout, q=q, k=k, v=v, out=out)
    )
    lse = _checked(function, "lse", lse, 3)
    dq, dk, dv = (_empty(x, x.shape, layout) for x in (q, k, v))
    sink = _sink(function, sink)
    dsink = None if sink is None else np.empty_like(sink)
    lists = _readable_lists(function, lists)
    _core.backward(
        _tensor(dout), None, _tensor(q), _tensor(k), _tensor(v), _tensor(out), _tensor(lse), None,
        _followed(lists, q, k), _tensor(dq), _tensor(dk), _tensor(dv), _optional(sink), _optional(dsink), scale,
        softcap, alpha, top_k, True, backend, 0, 0,
    )  # fmt: skip
    gradients = tuple(_heads_first(x, layout) for x in (dq, dk, dv))
    return gradients if dsink is None else (*gradients, dsink)


def merge(out: Array, lse: Array, other_out: Array, other_lse: Array, *, layout: str) -> tuple[Array, Array]:
    """keyhole.merge for NumPy arrays."""
    outs = [_heads_first(_checked("merge", n, x, 4), layout) for n, x in _named(out=out, other_out=other_out)]
    lses = [_checked("merge", n, x, 3) for n, x in _named(lse=lse, other_lse=other_lse)]
    into_out, into_lse = _empty(outs[0], outs[0].shape, layout), lses[0].copy()
    into_out[...] = outs[0]
    _core.merge(_tensor(into_out), _tensor(into_lse), _tensor(outs[1]), _tensor(lses[1]), 0)
    return _heads_first(into_out, layout), into_lse


def _readable_lists(function: str, lists: Any) -> Any:
    """`lists` with its arrays in a form that kernels can read. The caller keeps the result alive during the call."""
    if function.startswith("gather_") and not isinstance(lists, KeyLists):
        return _checked(function, "indices", lists, 4)
    if isinstance(lists, np.ndarray):
        if lists.dtype.name not in _INDEX_DTYPES or lists.ndim != 4:
            refuse_lists(function, lists)
        return _readable(lists, is_index=True)
    if isinstance(lists, KeyLists):
        arrays = _readable_arrays(function, "KeyLists", lists.indices, lists.counts)
        return (*arrays, lists.keys_per_entry, lists.causal)
    if isinstance(lists, TileLists):
        arrays = _readable_arrays(function, "TileLists", lists.tiles, lists.counts, lists.bitmap_of, lists.bitmaps)
        return (*lists.tile, *arrays)
    if not isinstance(lists, (Plan, Pattern, str)):
        refuse_lists(function, lists)
    return lists


def _readable_arrays(function: str, kind: str, *arrays: Any) -> tuple[Array | None, ...]:
    if not isinstance(arrays[0], np.ndarray):
        raise TypeError(
            f"{function}: the {kind} are {_kind_of(arrays[0])}, and q is a NumPy array; pass torch tensors only, or "
            "NumPy arrays only"
        )
    return tuple(None if array is None else _readable(array, is_index=True) for array in arrays)


def _followed(lists: Any, q: Array, k: Array) -> Any:
    """The result of _readable_lists in the form that _core takes."""
    if isinstance(lists, (np.ndarray, tuple)):
        return _tensors_in(lists)
    return plan_for(lists, q.shape[2], k.shape[2], q.shape[0], q.shape[1]).core


def _tensors_in(lists: Any) -> Any:
    """An array, or a tuple with arrays in it, in the form that _core takes. Anything else is left as it is."""
    if isinstance(lists, tuple):
        return tuple(_tensors_in(part) for part in lists)
    return _tensor(lists) if isinstance(lists, np.ndarray) else lists


def _named(**arrays: Any) -> list[tuple[str, Any]]:
    return list(arrays.items())


def _checked(function: str, name: str, array: Any, rank: int, may_be_e4m3: bool = False) -> Array:
    """`array` after checks, or a copy of it if kernels cannot read its memory layout."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{function}: {name} has type {_kind_of(array)}; pass NumPy arrays only, or torch tensors only")
    is_index = name in ("indices", "keys")
    dtypes = _INDEX_DTYPES if is_index else _INDEXER_DTYPES if may_be_e4m3 else _DTYPES
    if array.dtype.name not in dtypes:
        raise TypeError(f"{function}: {name} has dtype {array.dtype}; accepted are {', '.join(dtypes)}")
    if array.ndim != rank:
        of_rank_4 = "[batch, heads, lists, entries]" if is_index else "[batch, heads, length, head_dim]"
        wanted = of_rank_4 if rank == 4 else "[batch, heads, length]"
        raise ValueError(f"{function}: {name} has shape {list(array.shape)}; expected {rank} dimensions, {wanted}")
    return _readable(array, is_index)


def _readable(array: Array, is_index: bool) -> Array:
    """`array`, or a copy of it if kernels cannot read its memory layout. Indices may have any stride in a row, too."""
    return array if _is_readable(array, is_index) else np.array(array, array.dtype.newbyteorder("="), order="C")


def _is_readable(array: Array, is_index: bool) -> bool:
    size = array.dtype.itemsize
    return (
        array.dtype.isnative
        and array.flags.aligned
        and all(n <= 1 or (s >= 0 and s % size == 0) for n, s in zip(array.shape, array.strides, strict=True))
        and (array.shape[-1] <= 1 or array.strides[-1] == size or is_index)
    )


def _given_out(function: str, out: Any, shape: tuple[int, ...], q: Array, layout: str) -> Array:
    """The caller's out= after checks, as [batch, heads, length, head_dim]."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"{function}: out has type {_kind_of(out)}; expected a NumPy array, as q is")
    batch, heads, length, dim = shape
    wanted = shape if layout == "bhsd" else (batch, length, heads, dim)
    if out.shape != wanted:
        raise ValueError(f"{function}: out has shape {list(out.shape)}; expected {list(wanted)}, that of the result")
    if out.dtype.name != q.dtype.name:
        raise TypeError(f"{function}: out has dtype {out.dtype}; expected {q.dtype}, that of the result")
    if not out.flags.writeable:
        raise ValueError(f"{function}: out is read-only; pass a writable array, or omit out=")
    return _heads_first(out, layout)


def _is_free(out: Array, *others: Array | None) -> bool:
    """Whether a kernel may write into `out` while it reads the others: no overlap, neither inside nor with them."""
    return (
        _is_readable(out, is_index=False)
        and all(n <= 1 or stride > 0 for n, stride in zip(out.shape, out.strides, strict=True))
        and not any(other is not None and np.may_share_memory(out, other) for other in others)
    )


def _kind_of(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _sink(function: str, sink: Any) -> Array | None:
    if sink is None:
        return None
    if not isinstance(sink, np.ndarray):
        raise TypeError(f"{function}: sink has type {_kind_of(sink)}; expected a NumPy array, as q is")
    if not np.issubdtype(sink.dtype, np.floating) and sink.dtype.name != "bfloat16":
        raise TypeError(f"{function}: sink has dtype {sink.dtype}; expected float32")
    if sink.ndim != 1:
        raise ValueError(f"{function}: sink has shape {list(sink.shape)}; expected [q_heads]")
    return np.ascontiguousarray(sink, np.float32)


def _heads_first(array: Array, layout: str) -> Array:
    """Converts between the user's layout and [batch, heads, length, head_dim]. The same swap serves both directions."""
    if layout == "bhsd":
        return array
    if layout == "bshd":
        return np.swapaxes(array, 1, 2)
    raise ValueError(f"layout is {layout!r}; accepted are 'bhsd' and 'bshd'")


def _empty(like: Array, shape: tuple[int, ...], layout: str) -> Array:
    """An uninitialised array [batch, heads, length, head_dim], contiguous in the user's layout."""
    batch, heads, length, dim = shape
    if layout == "bhsd":
        return np.empty(shape, like.dtype)
    return np.swapaxes(np.empty((batch, length, heads, dim), like.dtype), 1, 2)


def _lse_dtype(q: Array) -> type[np.floating[Any]]:
    return np.float64 if q.dtype == np.float64 else np.float32


def _tensor(array: Array) -> TensorTuple:
    dtype = (_INDEX_DTYPES if array.dtype.kind == "i" else _INDEXER_DTYPES)[array.dtype.name]
    if array.size == 0:  # its strides may be 0, as if it were broadcast
        like = np.empty([max(size, 1) for size in array.shape], array.dtype)
        return 0, dtype, array.shape, _strides(like), _HOST
    return array.ctypes.data, dtype, array.shape, _strides(array), _HOST


def _strides(array: Array) -> tuple[int, ...]:
    return tuple(stride // array.dtype.itemsize for stride in array.strides)


def _optional(array: Array | None) -> TensorTuple | None:
    return None if array is None else _tensor(array)
