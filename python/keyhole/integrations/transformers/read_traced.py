# python/keyhole/integrations/transformers/read_traced.py
"""From the mask functions of transformers to patterns while torch.compile traces. The code of a function, and what it
holds, cannot be inspected then. So the function is called, with objects in place of positions that note what is done
with them: `k > q - 12` returns the condition window(11, inf).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["Condition", "condition_of"]


def condition_of(function: Any) -> Condition | None:
    """The condition that function(batch, head, query, key) states; None if these objects cannot tell."""
    try:
        with _Lookups():
            found = function(_Batch(), _Term(), _Position("q"), _Position("k"))
    except (AttributeError, TypeError):  # the function does with positions what they have no method for
        return None
    if not isinstance(found, Condition) or (found.positions is not None and found.sequences is None):
        return None
    return found


class _Term:
    """A value that depends on positions; nothing more is known of it."""

    def __bool__(self) -> bool:
        raise TypeError("a mask function branches on positions")

    def to(self, *_: Any) -> _Term:
        return self


def _unknown(self: _Term, *_: Any) -> _Term:
    return _Term()


# All of them: torch.compile gives up where an operator is missing, and its error cannot be caught.
_OPERATORS = "add radd sub rsub mul rmul floordiv rfloordiv mod rmod and rand or ror xor rxor lt le gt ge eq ne"
for _name in (*_OPERATORS.split(), "abs", "neg", "invert", "getitem"):
    setattr(_Term, f"__{_name}__", _unknown)


class Condition(_Term):
    """What a pair must meet.

    text        the text of a pattern
    sequences   [batch, k_len]: both tokens of a pair must have the same number here. None: no such condition
    positions   [batch, k_len]: the positions of the tokens in the pattern. None: they are counted from 0
    """

    device = None  # transformers moves conditions to the device of others

    def __init__(self, text: str, sequences: torch.Tensor | None = None, positions: torch.Tensor | None = None) -> None:
        self.text, self.sequences, self.positions = text, sequences, positions

    def __and__(self, other: Any) -> _Term:
        if not isinstance(other, Condition) or (self.sequences is not None and other.sequences is not None):
            return _Term()
        sequences = self.sequences if other.sequences is None else other.sequences
        if self.text == "dense":
            return Condition(other.text, sequences, other.positions)
        if other.text == "dense":
            return Condition(self.text, sequences, self.positions)
        if self.positions is not other.positions:
            return _Term()
        return Condition(f"({self.text}) & ({other.text})", sequences, self.positions)

    def __or__(self, other: Any) -> _Term:
        if not (isinstance(other, Condition) and self._is_pattern() and other._is_pattern()):
            return _Term()
        return Condition(f"({self.text}) | ({other.text})")

    def _is_pattern(self) -> bool:
        return self.sequences is None and self.positions is None


class _Batch(_Term):
    pass


class _Position(_Term):
    """The position of a query or a key, plus a number. `table`: the tensor in which it was looked up, if any."""

    def __init__(self, side: str, plus: int = 0, table: torch.Tensor | None = None) -> None:
        self.side, self.plus, self.table = side, plus, table

    # The first values of transformers' conjunctions and disjunctions.
    def new_ones(self, *_: Any, **__: Any) -> Condition:
        return Condition("dense")

    def new_zeros(self, *_: Any, **__: Any) -> Condition:
        return Condition("~dense")

    def __add__(self, other: Any) -> _Term:
        return _Position(self.side, self.plus + other, self.table) if isinstance(other, int) else _Term()

    def __sub__(self, other: Any) -> _Term:
        if isinstance(other, int):
            return _Position(self.side, self.plus - other, self.table)
        is_distance = self._is_opposite(other) and self.plus == other.plus
        return _Distance(self.table) if is_distance else _Term()

    def __le__(self, other: Any) -> _Term:
        return self._at_most(other, 0)

    def __lt__(self, other: Any) -> _Term:
        return self._at_most(other, -1)

    def __ge__(self, other: Any) -> _Term:
        if isinstance(other, int):
            return Condition("dense") if self.table is None and other <= self.plus else _Term()
        return other._at_most(self, 0) if isinstance(other, _Position) else _Term()

    def __gt__(self, other: Any) -> _Term:
        return other._at_most(self, -1) if isinstance(other, _Position) else _Term()

    def __eq__(self, other: object) -> Any:
        is_lookup = self.table is not None and self._is_opposite(other)
        return Condition("dense", sequences=self.table) if is_lookup and self.plus == other.plus else _Term()

    def _is_opposite(self, other: Any) -> bool:
        return isinstance(other, _Position) and self.side != other.side and self.table is other.table

    def _at_most(self, other: Any, plus: int) -> _Term:
        """The condition self <= other + plus."""
        if not self._is_opposite(other):
            return _Term()
        reach = other.plus + plus - self.plus
        if reach < 0:
            return _Term()
        if self.side == "q":
            return Condition(f"window({reach}, inf)", positions=self.table)
        return Condition("causal" if reach == 0 else f"window(inf, {reach})", positions=self.table)


class _Distance(_Term):
    """The difference of two positions, of which only the absolute value is used."""

    def __init__(self, table: torch.Tensor | None, is_absolute: bool = False) -> None:
        self.table, self.is_absolute = table, is_absolute

    def __abs__(self) -> _Distance:
        return _Distance(self.table, is_absolute=True)

    def __le__(self, other: Any) -> _Term:
        is_window = self.is_absolute and isinstance(other, int) and other >= 0
        return Condition(f"window({other})", positions=self.table) if is_window else _Term()


class _Lookups(TorchFunctionMode):
    """Sees what a mask function does with tensors and positions. A lookup, tensor[batch, q], gives a position: what it
    means is decided where it is compared with that of the other token.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not any(isinstance(x, _Term) or (isinstance(x, tuple) and _has_term(x)) for x in args):
            return function(*args, **(kwargs or {}))
        if function is torch.Tensor.__getitem__ and isinstance(args[1], tuple) and len(args[1]) == 2:
            batch, token = args[1]
            if isinstance(batch, _Batch) and isinstance(token, _Position) and token.table is None and token.plus == 0:
                return _Position(token.side, table=args[0])
        return _Term()


def _has_term(values: tuple[Any, ...]) -> bool:
    return any(isinstance(x, _Term) for x in values)
