# python/keyhole/imports/rows.py
"""What all imports share: rows and columns that count from 0, and one pattern out of many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..leaves import at, per_batch, per_head
from ..pattern import Pattern, as_integer, made_for

__all__ = ["imported", "joined", "length_of"]


def imported(
    name: str, entries: Sequence[Sequence[Pattern]], q_len: int, k_len: int, batch: int, heads: int
) -> Pattern:
    """entries[batch][head] say what row q and column k attend to; as one pattern of positions, for these sizes alone.

    The last query stands where the last key does. Where there are as many queries as keys, rows are positions. A batch
    or heads of 1 serve any number; `entries` may have fewer than there are, where they do not differ.
    """
    rows = joined(entries)
    return made_for(name, q_len, k_len, batch, heads, rows if q_len == k_len else at(range(q_len), range(k_len), rows))


def joined(entries: Sequence[Sequence[Pattern]]) -> Pattern:
    """One pattern of entries[batch][head], which differs between heads and batch entries only where they do.

    >>> from keyhole import causal, dense
    >>> joined([[causal(), causal()], [causal(), causal()]])
    keyhole.parse('causal')
    >>> joined([[causal(), dense()], [causal(), dense()]])
    keyhole.parse('per_head(causal, dense)')
    """
    rows = [heads[0] if all(head == heads[0] for head in heads) else per_head(*heads) for heads in entries]
    return rows[0] if all(row == rows[0] for row in rows) else per_batch(*rows)


def length_of(name: str, parameter: str, value: Any, least: int = 0) -> int:
    """A length: an int, of Python or of NumPy, that is `least` or more."""
    number = as_integer(value, f"{name}: {parameter}")
    if number < least:
        raise ValueError(f"{name}: {parameter} is {number}; expected {least} or more")
    return number
