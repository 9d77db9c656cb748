# python/keyhole/imports/rows.py
"""Shared by all imports: from rows and columns to positions, and from one pattern per head to one pattern."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..leaves import at, per_batch, per_head
from ..pattern import Pattern, as_integer, made_for

__all__ = ["imported", "joined", "length_of"]


def imported(
    name: str, entries: Sequence[Sequence[Pattern]], q_len: int, k_len: int, batch: int, heads: int
) -> Pattern:
    """The imported pattern, for calls of these sizes. In entries[batch][head], query i is at position i.

    A pattern puts the last query at the position of the last key. That is the same only if q_len is k_len; otherwise
    `at` sets the positions. A batch or heads of 1 serves any number. `entries` may have a single batch entry, or a
    single head, if all are equal.
    """
    rows = joined(entries)
    return made_for(name, q_len, k_len, batch, heads, rows if q_len == k_len else at(range(q_len), range(k_len), rows))


def joined(entries: Sequence[Sequence[Pattern]]) -> Pattern:
    """Joins entries[batch][head] into one pattern, with per_head and per_batch only where they differ.

    >>> from keyhole import causal, dense
    >>> joined([[causal(), causal()], [causal(), causal()]])
    keyhole.parse('causal')
    >>> joined([[causal(), dense()], [causal(), dense()]])
    keyhole.parse('per_head(causal, dense)')
    """
    rows = [heads[0] if all(head == heads[0] for head in heads) else per_head(*heads) for heads in entries]
    return rows[0] if all(row == rows[0] for row in rows) else per_batch(*rows)


def length_of(name: str, parameter: str, value: Any, least: int = 0) -> int:
    """`value` as an int that is `least` or more; Python and NumPy integers are accepted."""
    number = as_integer(value, f"{name}: {parameter}")
    if number < least:
        raise ValueError(f"{name}: {parameter} is {number}; expected {least} or more")
    return number
