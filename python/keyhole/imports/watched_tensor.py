# python/keyhole/imports/watched_tensor.py
"""Tensors that stand for b and h in a function fn(b, h, q_idx, kv_idx) of torch, and tell what depends on them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["is_seen_to_look", "uses_of"]

_aten = torch.ops.aten
# What these give has the shape, the type and the device of their first argument, and nothing of its values.
_BORROWING = {
    *(_aten.new_ones, _aten.new_zeros, _aten.new_full, _aten.new_empty, _aten.new_empty_strided),
    *(_aten.ones_like, _aten.zeros_like, _aten.full_like, _aten.empty_like),
}
# What a tensor tells without a look at its values, and tensors, which are watched themselves. Numbers that are values
# come out of an op, where they are noticed.
_HARMLESS = (torch.Tensor, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, int, type(None))


class _LostError(Exception):
    pass


class _Flight(TorchFunctionMode):
    """One call of a function. It is lost when a value leaves torch, or is written over another: nobody can tell then
    what the answer depends on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_lost = self.is_over = False
        self.is_seen = False  # it was lost by what was done to b or h

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Functions of Python, which may give texts, arrays and pointers."""
        with self.lost_unless_done((args, kwargs)):
            # A pointer leads to the values past every op, and so do properties that are set.
            if func is torch.Tensor.data_ptr or getattr(func, "__name__", "") == "__set__":
                raise _LostError
            result = func(*args, **(kwargs or {}))
            if not all(isinstance(part, _HARMLESS) for part in tree_leaves(result)):
                raise _LostError
        return result

    @contextlib.contextmanager
    def lost_unless_done(self, values: Any) -> Iterator[None]:
        """Notes what is raised over these arguments: a function may catch it, and go on."""
        try:
            yield
        except BaseException:
            self.is_lost = True
            self.is_seen |= bool(_watched_in(values))
            raise

    def __deepcopy__(self, memo: dict[int, Any]) -> _Flight:
        return self  # copies of tensors are on the same flight


class _Watched(torch.Tensor):
    """A tensor computed from b or h. It has no storage: all that is done to its values comes by here."""

    _value: torch.Tensor
    _sources: frozenset[str]
    _flight: _Flight

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, value: torch.Tensor, sources: frozenset[str], flight: _Flight) -> _Watched:
        self = torch.Tensor._make_wrapper_subclass(
            cls, value.shape, strides=value.stride(), dtype=value.dtype, device=value.device
        )
        self._value, self._sources, self._flight = value, sources, flight
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Ops, from wherever they are called."""
        kwargs = kwargs or {}
        flight = _watched_in((args, kwargs))[0]._flight
        if flight.is_over:  # the function kept the tensor for later calls
            return func(*tree_map(_unwatched, args), **tree_map(_unwatched, kwargs))
        with flight.lost_unless_done((args, kwargs)):
            if not isinstance(func, torch._ops.OpOverload) or func._schema.is_mutable:
                raise _LostError
            result = func(*tree_map(_unwatched, args), **tree_map(_unwatched, kwargs))
            if not all(isinstance(part, torch.Tensor) for part in tree_leaves(result)):
                raise _LostError
        read = (args[1:], kwargs) if func.overloadpacket in _BORROWING else (args, kwargs)
        sources = frozenset().union(*(tensor._sources for tensor in _watched_in(read)))
        return tree_map(lambda part: cls(part, sources, flight), result) if sources else result

    def __hash__(self) -> int:
        self._flight.is_lost = self._flight.is_seen = True
        return super().__hash__()


def _watched_in(values: Any) -> list[_Watched]:
    return [part for part in tree_leaves(values) if isinstance(part, _Watched)]


def _unwatched(part: Any) -> Any:
    return part._value if isinstance(part, _Watched) else part


def uses_of(ask: Callable[[Any, Any], Any], device: Any) -> tuple[bool, bool]:
    """Whether ask(b, h) depends on b and on h; True for both where nobody can tell."""
    flight, sources = _fly(ask, device, "bh")
    return flight.is_lost or "b" in sources, flight.is_lost or "h" in sources


def is_seen_to_look(ask: Callable[[Any, Any], Any], device: Any, index: str) -> bool:
    """Whether ask(b, h) was caught looking at "b" or at "h"; False where it fails over something else."""
    flight, sources = _fly(ask, device, index)
    return flight.is_seen or index in sources


def _fly(ask: Callable[[Any, Any], Any], device: Any, watched: str) -> tuple[_Flight, frozenset[str]]:
    """Asks once, with b = h = 0, and tells what the answer was computed from."""
    zero = torch.zeros((), dtype=torch.int64, device=device)
    flight = _Flight()
    try:
        with flight:
            answer = ask(*(_Watched(zero, frozenset(name), flight) if name in watched else zero for name in "bh"))
    except Exception:  # whatever it did, it did not leave them alone
        flight.is_lost = True
        return flight, frozenset()
    finally:
        flight.is_over = True
    return flight, answer._sources if isinstance(answer, _Watched) else frozenset()
