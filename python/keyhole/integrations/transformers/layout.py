# python/keyhole/integrations/transformers/layout.py
"""The token positions of the queries and keys of a call: what a cache has dropped, what it holds, what is new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """Query i is token q_offset + i, key j is token kv_offset + j.

    tokens   0 ......... kv_offset ........ q_offset ................
             dropped     |<-------- kv_length keys -------->|
                                            |<- q_length -->|
    """

    batch: int
    q_length: int
    kv_length: int
    q_offset: int = 0
    kv_offset: int = 0

    @staticmethod
    def of(query: Any, key: Any) -> Layout:
        """The layout of tensors [batch, heads, length, head_dim], with offsets of 0."""
        return Layout(query.shape[0], query.shape[2], key.shape[2])

    @property
    def offset(self) -> int:
        """The position of query 0, if the first key is at position 0."""
        return self.q_offset - self.kv_offset

    @property
    def seen(self) -> int:
        """The number of keys that hold tokens; a static cache has room for more."""
        return min(self.offset + self.q_length, self.kv_length)
