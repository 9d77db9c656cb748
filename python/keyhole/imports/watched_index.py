# python/keyhole/imports/watched_index.py
"""Detects whether a NumPy function fn(b, h, q_idx, kv_idx) reads b or h: it is called with stand-ins that record every
access.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Watch", "uses_of"]


class _UsedError(Exception):
    pass


class Watch:
    """Records whether any of its indices was read. Reading one also raises, but the function may catch that."""

    def __init__(self) -> None:
        self.is_used = False

    def index(self) -> Any:
        return _WatchedIndex(self)


class _WatchedIndex:
    """Stands for an int, without a value. Using any method of an int raises; methods that an int lacks are missing."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "_watch").is_used = True
        if name == "__class__":  # isinstance reads it, and does not expect an exception
            return _WatchedIndex
        raise _UsedError


def _use(self: _WatchedIndex, *_: Any, **__: Any) -> Any:
    object.__getattribute__(self, "_watch").is_used = True
    raise _UsedError


_OF_EVERY_OBJECT = {"__class__", "__delattr__", "__doc__", "__getattribute__", "__init__", "__init_subclass__"}
_OF_EVERY_OBJECT |= {"__new__", "__setattr__", "__subclasshook__"}
for _name in {*dir(int), "__array__", "__array_function__", "__array_ufunc__"} - _OF_EVERY_OBJECT:
    setattr(_WatchedIndex, _name, _use)


def uses_of(evaluate: Callable[[Any, Any], Any], batch: int, heads: int) -> tuple[bool, bool]:
    """Whether evaluate(b, h) reads b, and whether it reads h.

    It may read one only for some values of the other, so all of these are tried, unless it reads neither.
    """

    def reads(b: int | None = None, h: int | None = None) -> bool:
        """Whether the indices that are not given are read."""
        watch = Watch()
        try:
            evaluate(*(watch.index() if index is None else index for index in (b, h)))
        except Exception:  # most likely raised by a stand-in; assume so
            return True
        return watch.is_used

    if not reads():
        return False, False
    return any(reads(h=h) for h in range(heads)), any(reads(b=b) for b in range(batch))
