# python/keyhole/imports/watched_index.py
"""Numbers that stand for b and h in a function fn(b, h, q_idx, kv_idx) of NumPy, and notice when they are looked at."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

__all__ = ["Watch", "is_seen_to_look", "uses_of"]


class _UsedError(Exception):
    pass


class Watch:
    """Notices whether any of its numbers is looked at. That raises, too; but a function may catch it, and go on."""

    def __init__(self) -> None:
        self.is_used = False

    def index(self) -> Any:
        return _WatchedIndex(self)


class _WatchedIndex:
    """Has all that an int has, and no value: what an int does not have, both do not have."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "_watch").is_used = True
        if name == "__class__":  # isinstance asks for it, and takes no exception for an answer
            return _WatchedIndex
        raise _UsedError


def _use(self: _WatchedIndex, *_: Any, **__: Any) -> Any:
    object.__getattribute__(self, "_watch").is_used = True
    raise _UsedError


_OF_EVERY_OBJECT = {"__class__", "__delattr__", "__doc__", "__getattribute__", "__init__", "__init_subclass__"}
_OF_EVERY_OBJECT |= {"__new__", "__setattr__", "__subclasshook__"}
for _name in {*dir(int), "__array__", "__array_function__", "__array_ufunc__"} - _OF_EVERY_OBJECT:
    setattr(_WatchedIndex, _name, _use)


def uses_of(ask: Callable[[Any, Any], Any], batch: int, heads: int) -> tuple[bool, bool]:
    """Whether ask(b, h) looks at b and at h.

    It may look at one for some values of the other only, so that all of these are tried, unless it looks at neither.
    """

    def looks(b: int | None = None, h: int | None = None) -> bool:
        """At what is not given."""
        watch = Watch()
        try:
            ask(*(watch.index() if index is None else index for index in (b, h)))
        except Exception:  # whatever it did, it did not leave them alone
            return True
        return watch.is_used

    if not looks():
        return False, False
    return any(looks(h=h) for h in range(heads)), any(looks(b=b) for b in range(batch))


def is_seen_to_look(ask: Callable[[Any, Any], Any], index: str) -> bool:
    """Whether ask(b, h) was caught looking at "b" or at "h"; False where it fails over something else."""
    watch = Watch()
    with contextlib.suppress(Exception):
        ask(*(watch.index() if name == index else 0 for name in "bh"))
    return watch.is_used
