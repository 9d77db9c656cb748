# python/keyhole/numpy_select.py
"""Selection over NumPy arrays, on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from .lists import KeyLists
from .numpy_attention import (
    Array,
    _checked,
    _kind_of,
    _lse_dtype,
    _optional,
    _readable_lists,
    _tensor,
    _tensors_in,
)
from .pattern import as_pattern
from .plan import Plan, plan_for

__all__ = ["index_loss", "index_loss_backward", "index_scores", "select_keys", "top_k"]


def index_scores(q: Any, k: Any, w: Any, k_scale: Any, visible: Any, backend: str) -> Array:
    """keyhole.index_scores for NumPy arrays."""
    q, k, w, k_scale = _indexer("index_scores", q, k, w, k_scale)
    scores = np.empty((q.shape[0], k.shape[1], q.shape[2], k.shape[2]), _lse_dtype(q))
    plan = _plan("index_scores", "visible", visible, scores.shape)
    _core.index_scores(*_tensors(q, k, w, k_scale), plan, _tensor(scores), backend, 0, 0)
    return scores


def top_k(scores: Any, k: int, visible: Any, always: Any, return_counts: bool, backend: str) -> Any:
    """keyhole.top_k for NumPy arrays."""
    scores = _checked("top_k", "scores", scores, 4)
    plans = _plans("top_k", visible, always, scores.shape)
    indices, counts = _empty_selection(scores.shape, k)
    _core.top_k(_tensor(scores), _tensor(indices), _tensor(counts), k, *plans, backend, 0, 0)
    return (indices, counts[..., 0]) if return_counts else indices


def select_keys(
    q: Any, k: Any, w: Any, k_scale: Any, count: int, visible: Any, always: Any, return_counts: bool, backend: str
) -> Any:
    """keyhole.select_keys for NumPy arrays."""
    q, k, w, k_scale = _indexer("select_keys", q, k, w, k_scale)
    shape = (q.shape[0], k.shape[1], q.shape[2], k.shape[2])
    plans = _plans("select_keys", visible, always, shape)
    indices, counts = _empty_selection(shape, count)
    _core.select_keys(*_tensors(q, k, w, k_scale), _tensor(indices), _tensor(counts), count, *plans, backend, 0, 0)
    return (indices, counts[..., 0]) if return_counts else indices


def index_loss(
    index_q: Any, index_k: Any, w: Any, k_scale: Any, q: Any, k: Any, lse: Any, keys: Any, keys_per_entry: int,
    rows: Any, scale: float | None, softcap: float, backend: str, function: str = "index_loss",
) -> tuple[Array, Array]:  # fmt: skip
    """The loss, and the statistics that the backward pass takes."""
    indexer, target, lists, rows = _loss_arguments(function, index_q, index_k, w, k_scale, q, k, lse, keys, rows)
    index_q, index_k, *_ = indexer
    loss = np.empty((index_q.shape[0], index_k.shape[1], index_q.shape[2]), _lse_dtype(index_q))
    stats = np.empty((*loss.shape, 2), loss.dtype)
    _core.index_loss_forward(
        *_tensors(*indexer), *_targets(*target), _tensors_in(lists), keys_per_entry, _tensor(loss), _tensor(stats),
        _optional(rows), scale, softcap, True, backend, 0, 0,
    )  # fmt: skip
    return loss, stats


def index_loss_backward(
    dloss: Any, index_q: Any, index_k: Any, w: Any, k_scale: Any, q: Any, k: Any, lse: Any, keys: Any,
    keys_per_entry: int, rows: Any, scale: float | None, softcap: float, backend: str,
) -> tuple[Array, ...]:  # fmt: skip
    """keyhole.index_loss_backward. The statistics of the forward pass are computed again."""
    function = "index_loss_backward"
    dloss = _checked(function, "dloss", dloss, 3)
    options = (keys_per_entry, rows, scale, softcap, backend, function)
    _, stats = index_loss(index_q, index_k, w, k_scale, q, k, lse, keys, *options)
    indexer, target, lists, rows = _loss_arguments(function, index_q, index_k, w, k_scale, q, k, lse, keys, rows)
    index_q, index_k, w, _ = indexer
    dq, dk = np.empty(index_q.shape, index_q.dtype), np.empty(index_k.shape, index_k.dtype)
    dw = None if w is None else np.empty(w.shape, w.dtype)
    _core.index_loss_backward(
        _tensor(dloss), *_tensors(*indexer), *_targets(*target), _tensors_in(lists), keys_per_entry, _tensor(stats),
        _tensor(dq), _tensor(dk), _optional(dw), _optional(rows), scale, softcap, True, backend, 0, 0,
    )  # fmt: skip
    return (dq, dk) if dw is None else (dq, dk, dw)


def _indexer(function: str, q: Any, k: Any, w: Any, k_scale: Any, prefix: str = "") -> tuple[Any, Any, Any, Any]:
    q, k = (_checked(function, prefix + name, x, 4, may_be_e4m3=True) for name, x in (("q", q), ("k", k)))
    _check_dtype(function, prefix + "k", k, q.dtype, f"{prefix}q is {q.dtype}")
    return q, k, _weights(function, "w", w, q), _weights(function, "k_scale", k_scale, q)


def _weights(function: str, name: str, array: Any, q: Array) -> Array | None:
    """w or k_scale as kernels take them: fp32, or fp64 where q is."""
    if array is None:
        return None
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{function}: {name} has type {_kind_of(array)}; expected a NumPy array, as q is")
    if not np.issubdtype(array.dtype, np.floating) and array.dtype.name != "bfloat16":
        raise TypeError(f"{function}: {name} has dtype {array.dtype}; expected {_lse_dtype(q).__name__}")
    shape = "[batch, index_heads, q_len]" if name == "w" else "[batch, groups, entries]"
    if array.ndim != 3:
        raise ValueError(f"{function}: {name} has shape {list(array.shape)}; expected 3 dimensions, {shape}")
    return np.ascontiguousarray(array, _lse_dtype(q))


def _loss_arguments(
    function: str, index_q: Any, index_k: Any, w: Any, k_scale: Any, q: Any, k: Any, lse: Any, keys: Any, rows: Any
) -> tuple[tuple[Any, Any, Any, Any], tuple[Array, Array, Array], Any, Array | None]:
    """The arrays of the indexer and of the attention, the lists (an array, a tuple of arrays and numbers, or a plan),
    and the rows [1, 1, 1, n]."""
    indexer = _indexer(function, index_q, index_k, w, k_scale, "index_")
    q, k = (_checked(function, name, x, 4) for name, x in (("q", q), ("k", k)))
    lse = _checked(function, "lse", lse, 3)
    _check_dtype(function, "k", k, q.dtype, f"q is {q.dtype}")
    _check_dtype(function, "lse", lse, _lse_dtype(q), f"q is {q.dtype}")
    if isinstance(keys, np.ndarray):
        lists: Any = _checked(function, "keys", keys, 4)
    elif isinstance(keys, KeyLists):
        lists = _readable_lists(function, keys)
    else:
        shape = (indexer[0].shape[0], indexer[1].shape[1], q.shape[2], k.shape[2])
        lists = _plan(function, "keys", keys, shape)
    return indexer, (q, k, lse), lists, None if rows is None else _rows(function, rows)


def _check_dtype(function: str, name: str, array: Array, dtype: Any, reason: str) -> None:
    if array.dtype != dtype:
        raise ValueError(
            f"{function}: {name} has dtype {array.dtype}; expected {np.dtype(dtype)}, as {reason}: pass "
            f"{name}.astype(...)"
        )


def _tensors(q: Array, k: Array, w: Array | None, k_scale: Array | None) -> tuple[Any, Any, Any, Any]:
    return _tensor(q), _tensor(k), _optional(w), _optional(k_scale)


def _targets(q: Array, k: Array, lse: Array) -> tuple[Any, Any, Any]:
    return _tensor(q), _tensor(k), _tensor(lse)


def _rows(function: str, rows: Any) -> Array:
    rows = np.asarray(rows)
    if rows.ndim != 1 or (rows.size and not np.issubdtype(rows.dtype, np.integer)):
        raise ValueError(
            f"{function}: rows is {rows.dtype} {list(rows.shape)}; expected the numbers of queries in ascending order, "
            "integers [n]"
        )
    return np.ascontiguousarray(rows, np.int32).reshape(1, 1, 1, -1)


def _plan(function: str, name: str, pattern: Any, shape: tuple[int, ...]) -> _core.Plan | None:
    """The plan of a pattern for [batch, groups, q_len, entries], from the cache."""
    if pattern is None and name != "keys":
        return None
    batch, groups, q_len, entries = shape
    what = pattern if isinstance(pattern, Plan) else as_pattern(pattern, f"{function}: {name}")
    return plan_for(what, q_len, entries, batch, groups).core


def _plans(
    function: str, visible: Any, always: Any, shape: tuple[int, ...]
) -> tuple[_core.Plan | None, _core.Plan | None]:
    return _plan(function, "visible", visible, shape), _plan(function, "always", always, shape)


def _empty_selection(shape: tuple[int, ...], k: int) -> tuple[Array, Array]:
    """Memory for the indices [batch, groups, q_len, k] and the counts [batch, groups, q_len, 1]."""
    return np.empty((*shape[:3], k), np.int32), np.empty((*shape[:3], 1), np.int32)
