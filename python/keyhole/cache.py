# python/keyhole/cache.py
"""A bounded cache that evicts the least recently used entry. Safe to use from several threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Cache", "CacheInfo"]

Entry = TypeVar("Entry")


class CacheInfo(NamedTuple):
    """The result of `Cache.info()`."""

    hits: int
    misses: int
    size: int
    capacity: int


class Cache(Generic[Entry]):
    """At most `capacity` entries. An evicted entry lives on while there are references to it.

    >>> cache = Cache(capacity=2)
    >>> for key in ["a", "b", "a", "c"]:  # b is the least recently used, and is evicted
    ...     if cache.get(key) is None:
    ...         _ = cache.put(key, key.upper())
    >>> cache.get("b") is None
    True
    >>> cache.info()
    CacheInfo(hits=1, misses=4, size=2, capacity=2)
    """

    def __init__(self, capacity: int) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()
        self._capacity = capacity
        self._hits = self._misses = 0

    def get(self, key: Hashable) -> Entry | None:
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                self._misses += 1
                return None
            self._hits += 1
            self._entries.move_to_end(key)
            return found

    def put(self, key: Hashable, entry: Entry) -> Entry:
        """Keeps `entry` and returns it. If another thread has stored one meanwhile, that one is kept and returned."""
        with self._lock:
            kept = self._entries.setdefault(key, entry)
            self._entries.move_to_end(key)
            self._drop_surplus()
            return kept

    def info(self) -> CacheInfo:
        """Hits and misses so far, the number of entries, and the capacity."""
        with self._lock:
            return CacheInfo(self._hits, self._misses, len(self._entries), self._capacity)

    def clear(self) -> None:
        """Drops all entries and resets the counts."""
        with self._lock:
            self._entries.clear()
            self._hits = self._misses = 0

    def resize(self, capacity: int) -> None:
        """Changes the capacity, evicting entries if needed; 0 turns the cache off."""
        if isinstance(capacity, bool) or not isinstance(capacity, int):
            raise TypeError(f"resize: expected an int, found {type(capacity).__name__}")
        if capacity < 0:
            raise ValueError(f"resize: capacity is {capacity}; accepted are 0 and more")
        with self._lock:
            self._capacity = capacity
            self._drop_surplus()

    def _drop_surplus(self) -> None:
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
