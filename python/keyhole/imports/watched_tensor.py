# python/keyhole/imports/watched_tensor.py
"""Detects whether a torch function fn(b, h, q_idx, kv_idx) depends on b or h: it is called with tensors that propagate
where a value came from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["reads_index", "uses_of"]

_aten = torch.ops.aten
_functorch = torch._C._functorch
# Their result has the shape, dtype and device of the first argument, and does not depend on its values.
_BORROWING = {
    *(_aten.new_ones, _aten.new_zeros, _aten.new_full, _aten.new_empty, _aten.new_empty_strided),
    *(_aten.ones_like, _aten.zeros_like, _aten.full_like, _aten.empty_like),
}
# Results that reveal no values of a tensor; and tensors, which are watched themselves. An int that is a value comes out
# of an op, which is watched too.
_HARMLESS = (torch.Tensor, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, int, type(None))


class _LostError(Exception):
    pass


class _Trace(TorchFunctionMode):
    """One traced call of a function. The trace is lost when a value leaves torch, or when a tensor is written in place:
    then it is unknown what the result depends on.
    """

    def __init__(self, ignores_others: bool = False) -> None:
        super().__init__()
        self._ignores_others = ignores_others  # values of tensors that were not computed from b or h may leave torch
        self.is_lost = self.is_over = False
        self.reads_index = False  # it was lost in an operation on b or h

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """torch functions of Python, which may return strings, arrays and pointers."""
        may_leave = self._ignores_others and not _watched_in((args, kwargs))
        with self.lost_on_error((args, kwargs)):
            # A pointer gives access to values without an op, and so does setting a property.
            if not may_leave and (func is torch.Tensor.data_ptr or getattr(func, "__name__", "") == "__set__"):
                raise _LostError
            result = func(*args, **(kwargs or {}))
            if not may_leave and not all(isinstance(part, _HARMLESS) for part in tree_leaves(result)):
                raise _LostError
        return result

    @contextlib.contextmanager
    def lost_on_error(self, values: Any) -> Iterator[None]:
        """Records an exception that an operation on `values` raises, because the function may catch it."""
        try:
            yield
        except BaseException:
            self.is_lost = True
            self.reads_index |= bool(_watched_in(values))
            raise

    def __deepcopy__(self, memo: dict[int, Any]) -> _Trace:
        return self  # copies of tensors belong to the same trace


class _Watched(torch.Tensor):
    """A tensor computed from b or h. It has no storage, so every access to its values goes through this class."""

    _value: torch.Tensor
    _sources: frozenset[str]
    _trace: _Trace

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, value: torch.Tensor, sources: frozenset[str], trace: _Trace) -> _Watched:
        self = torch.Tensor._make_wrapper_subclass(
            cls, value.shape, strides=value.stride(), dtype=value.dtype, device=value.device
        )
        self._value, self._sources, self._trace = value, sources, trace
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every op on a watched tensor, whether called from Python or from C++."""
        kwargs = kwargs or {}
        trace = _watched_in((args, kwargs))[0]._trace
        if trace.is_over:  # the function has kept the tensor for later calls
            return func(*tree_map(_unwatched, args), **tree_map(_unwatched, kwargs))
        with trace.lost_on_error((args, kwargs)):
            if not isinstance(func, torch._ops.OpOverload) or func._schema.is_mutable:
                raise _LostError
            result = func(*tree_map(_unwatched, args), **tree_map(_unwatched, kwargs))
            if not all(isinstance(part, torch.Tensor) for part in tree_leaves(result)):
                raise _LostError
        read = (args[1:], kwargs) if func.overloadpacket in _BORROWING else (args, kwargs)
        sources = frozenset().union(*(tensor._sources for tensor in _watched_in(read)))
        return tree_map(lambda part: cls(part, sources, trace), result) if sources else result

    def __hash__(self) -> int:
        self._trace.is_lost = self._trace.reads_index = True
        return super().__hash__()


def _watched_in(values: Any) -> list[_Watched]:
    return [part for part in map(_without_vmap, tree_leaves(values)) if isinstance(part, _Watched)]


def _without_vmap(part: Any) -> Any:
    while isinstance(part, torch.Tensor) and _functorch.is_batchedtensor(part):
        part = _functorch.get_unwrapped(part)
    return part


def _unwatched(part: Any) -> Any:
    return part._value if isinstance(part, _Watched) else part


def uses_of(evaluate: Callable[[Any, Any], Any], device: Any) -> tuple[bool, bool]:
    """Whether evaluate(b, h) depends on b, and whether it depends on h. True for both if the trace was lost."""
    trace, sources = _traced(evaluate, device, _Trace(), "bh")
    return trace.is_lost or "b" in sources, trace.is_lost or "h" in sources


def reads_index(evaluate: Callable[[Any, Any], Any], device: Any, index: str, b: int, h: int) -> bool:
    """Whether evaluate(b, h) reads `index`, "b" or "h". False if it fails for another reason first."""
    trace, sources = _traced(evaluate, device, _Trace(ignores_others=True), index, b, h)
    return trace.reads_index or index in sources


def _traced(
    evaluate: Callable[[Any, Any], Any], device: Any, trace: _Trace, watched: str, b: int = 0, h: int = 0
) -> tuple[_Trace, frozenset[str]]:
    """Calls evaluate(b, h) once, and returns the trace and the indices that the result was computed from."""
    values = {name: torch.tensor(value, device=device) for name, value in (("b", b), ("h", h))}
    try:
        with trace:
            answer = evaluate(
                *(
                    _Watched(value, frozenset(name), trace) if name in watched else value
                    for name, value in values.items()
                )
            )
    except Exception:  # most likely raised by the trace; assume so
        trace.is_lost = True
        return trace, frozenset()
    finally:
        trace.is_over = True
    return trace, answer._sources if isinstance(answer, _Watched) else frozenset()
