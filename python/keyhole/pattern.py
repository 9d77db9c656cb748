# python/keyhole/pattern.py
"""Pattern: what attends to what. The leaves are in leaves.py."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeAlias

from . import _core, pictures
from .recipe import Recipe
from .way_out import way_to_pattern

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

__all__ = ["Pattern", "PatternLike", "as_integer", "as_pattern", "from_recipe", "parse"]

_NOTEBOOK_LENGTH = 64  # drawn for a pattern without a length of its own; each pair is still visible
_COUNTED_LENGTHS = (_NOTEBOOK_LENGTH, 1024, 4096)  # counting the pairs of longer ones takes more than milliseconds


class Pattern:
    """Which queries attend to which keys, as an expression in their positions.

    Make patterns by functions such as `keyhole.causal()`, from text, and by combining others with &, | and ~:

    >>> import keyhole
    >>> pattern = keyhole.causal() & (keyhole.window(2) | keyhole.sinks(1))
    >>> pattern == keyhole.parse("causal & (window(2) | sinks(1))")
    True
    >>> print(pattern.picture(6))
    # . . . . .
    # # . . . .
    # # # . . .
    # # # # . .
    # . # # # .
    # . . # # #

    Patterns are immutable. They compare, hash and pickle by content, including the content of arrays.
    """

    __slots__ = ("__weakref__", "_key", "_made_of", "_recipe", "_tensor", "core")

    core: _core.Pattern  # the C++ pattern
    as_tensor: torch.Tensor  # tensor(), as torch.compile can trace it: torch_attention/plan_tensors.py
    _tensor: torch.Tensor

    def __init__(self, text: str) -> None:
        """The pattern that `text` describes; the same as `keyhole.parse(text)`."""
        if not isinstance(text, str):
            raise TypeError(f"Pattern: expected a text such as 'causal & window(255)', found {type(text).__name__}")
        self.core = _core.parse(text)
        self._made_of: tuple[Any, ...] = ("text", self.core.text())
        self._recipe: Recipe | None = self._made_of
        self._key: str | Recipe | None = None

    @classmethod
    def _of(cls, core: _core.Pattern, made_of: tuple[Any, ...]) -> Pattern:
        """A pattern from its C++ pattern and what it was made of: a name and arguments, which may be patterns."""
        self = cls.__new__(cls)
        self.core = core
        self._made_of = made_of
        self._recipe = None
        self._key = None
        return self

    @staticmethod
    def parse(text: str) -> Pattern:
        """The pattern that `text` describes.

        >>> Pattern.parse("causal & window(3)")
        keyhole.parse('causal & window(3)')
        """
        return Pattern(text)

    @property
    def recipe(self) -> Recipe:
        """What the pattern was made of, in plain values; see recipe.py."""
        if self._recipe is None:
            self._recipe = ("text", self.core.text()) if self.core.reads_back() else _recipe_of(*self._made_of)
        return self._recipe

    @property
    def key(self) -> str | Recipe:
        """Two patterns are equal exactly if their keys are. The text where it is complete: str compares fastest."""
        if self._key is None:
            self._key = str(self.recipe[1]) if self.recipe[0] == "text" else self.recipe
        return self._key

    def tensor(self) -> torch.Tensor:
        """The pattern as bytes in a CPU tensor t. The ops of `torch.ops.keyhole` take it as their `lists`: [t]."""
        from .torch_attention.plan_tensors import tensor_of

        return tensor_of(self)

    def __and__(self, other: PatternLike) -> Pattern:
        return _combined("and", self, other)

    def __rand__(self, other: PatternLike) -> Pattern:
        return _combined("and", other, self)

    def __or__(self, other: PatternLike) -> Pattern:
        return _combined("or", self, other)

    def __ror__(self, other: PatternLike) -> Pattern:
        return _combined("or", other, self)

    def __invert__(self) -> Pattern:
        return Pattern._of(self.core.negation(), ("not", self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pattern):
            return NotImplemented
        return self is other or self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __bool__(self) -> bool:
        raise TypeError("a pattern has no truth value; combine patterns with &, | and ~, not with and, or and not")

    def __str__(self) -> str:
        return self.core.text()

    def __repr__(self) -> str:
        if self.recipe[0] == "text":
            return f"keyhole.parse({self.core.text()!r})"
        return f"<keyhole.Pattern {self.core.text()}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return from_recipe, (self.recipe,)

    def __copy__(self) -> Pattern:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Pattern:
        return self

    def mask(
        self, q_len: int, k_len: int | None = None, *, offset: int | None = None, batch: int = 0, head: int = 0
    ) -> npt.NDArray[np.bool_]:
        """The pairs that attend, as a boolean array [q_len, k_len].

        k_len is q_len by default. `offset` is the position of query 0, k_len - q_len by default. `batch` and `head`
        choose the batch entry and the head, for patterns that differ between them.

        >>> import keyhole
        >>> keyhole.causal().mask(2, 3).astype(int)
        array([[1, 1, 0],
               [1, 1, 1]])
        """
        import numpy as np

        k_len = q_len if k_len is None else k_len
        pairs = self.core.mask(q_len, k_len, offset, batch, head)
        return np.frombuffer(pairs, dtype=np.bool_).reshape(q_len, k_len)

    def picture(self, q_len: int, k_len: int | None = None) -> str:
        """The pairs as text, one line per query: '#' attends, '.' does not. For head 0 of batch entry 0.

        >>> import keyhole
        >>> print(keyhole.blocks(2).picture(4))
        # # . .
        # # . .
        . . # #
        . . # #
        """
        return self.core.picture(q_len, q_len if k_len is None else k_len).rstrip("\n")

    def show(
        self,
        q_len: int | None = None,
        k_len: int | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        batch: int = 0,
        head: int = 0,
    ) -> None:
        """Prints a picture; with a path that ends in .svg or .html, writes it there instead.

        q_len and k_len are by default the lengths that the pattern was made for, or 64. With q_len alone, k_len is
        q_len.

        >>> import keyhole
        >>> keyhole.parse("causal & window(1)").show(4)
        causal & window(1)   4 x 4, 7 of 16 pairs (43.8%)
        # . . .
        # # . .
        . # # .
        . . # #
        """
        pictures.show(self, self._shape(q_len, k_len), path, batch, head, explain="")

    def _repr_svg_(self) -> str | None:
        try:
            return pictures.svg(self, self._shape(None, None))
        except ValueError:  # `at` has lengths of its own; the notebook falls back to repr()
            return None

    def _repr_html_(self) -> str | None:
        try:
            return pictures.svg_with_report(self, self._shape(None, None), self._growth())
        except ValueError:  # as above
            return None

    def _growth(self) -> str:
        """A table of the pairs at several lengths. It shows how they grow, which the picture of one length cannot."""
        lines = [repr(self), "", f"{'length':>6}{'pairs':>12}   of all"]
        own = self.core.own_lengths()
        for q_len, k_len in [own] if own else [(length, length) for length in _COUNTED_LENGTHS]:
            try:
                pairs = self.count_pairs(q_len, k_len)
            except ValueError:  # another length than that of `at`
                continue
            lines.append(f"{q_len:>6}{pairs:>12}{pairs / max(q_len * k_len, 1):>9.1%}")
        if self.core.smallest_shape() != (1, 1):
            lines.append("of head 0 of batch entry 0")
        return "\n".join(lines)

    def _shape(self, q_len: int | None, k_len: int | None) -> pictures.Shape:
        if q_len is None:
            q_len, own_k_len = self.core.own_lengths() or (_NOTEBOOK_LENGTH, _NOTEBOOK_LENGTH)
            k_len = own_k_len if k_len is None else k_len
        k_len = q_len if k_len is None else k_len
        batch, heads = self.core.smallest_shape()
        return q_len, k_len, batch, heads, k_len - q_len

    def count_pairs(self, q_len: int, k_len: int | None = None) -> int:
        """The number of pairs that attend, for head 0 of batch entry 0.

        >>> import keyhole
        >>> keyhole.causal().count_pairs(1000)
        500500
        """
        return self.core.count_pairs(q_len, q_len if k_len is None else k_len)


PatternLike: TypeAlias = Pattern | str  # text is accepted wherever a pattern is


def parse(text: str) -> Pattern:
    """The pattern that `text` describes.

    >>> import keyhole
    >>> keyhole.parse("streaming(4, 64)") == keyhole.streaming(4, 64)
    True
    >>> keyhole.parse("cusal")
    Traceback (most recent call last):
    ...
    ValueError: unknown pattern "cusal"; did you mean "causal"?
      cusal
      ^~~~~
    """
    return Pattern(text)


def as_pattern(value: PatternLike, name: str = "pattern") -> Pattern:
    """`value` as a pattern: itself, or the pattern that its text describes."""
    if isinstance(value, Pattern):
        return value
    if isinstance(value, str):
        return Pattern(value)
    way = way_to_pattern(value)
    raise TypeError(f"{name}: expected a pattern or its text, found {type(value).__name__}{way and f'. {way}'}")


def as_integer(value: int, name: str) -> int:
    """`value` as a Python int. NumPy integers are accepted, bools are not."""
    if isinstance(value, int) and not isinstance(value, bool):  # also what torch.compile traces a changing size as
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: expected an int, found {type(value).__name__}")
    return value.__index__()


def from_recipe(recipe: Recipe) -> Pattern:
    """The pattern that a recipe describes. An invalid recipe is a ValueError or TypeError."""
    if not isinstance(recipe, tuple) or not recipe or not isinstance(recipe[0], str):
        raise ValueError(f"not a recipe of a pattern: {str(recipe)[:80]}")
    name, *arguments = recipe
    if name == "text" and len(arguments) == 1:
        return Pattern(arguments[0])  # type: ignore[arg-type]
    if name == "not" and len(arguments) == 1:
        return ~from_recipe(arguments[0])  # type: ignore[arg-type]
    if name == "made_for" and len(arguments) == 6:
        return made_for(*map(_argument_of, arguments))
    if name in ("and", "or") and len(arguments) == 1 and isinstance(arguments[0], tuple) and len(arguments[0]) > 1:
        first, *others = (from_recipe(part) for part in arguments[0])  # type: ignore[arg-type]
        for other in others:
            first = _combined(str(name), first, other)
        return first
    return make(str(name), *map(_argument_of, arguments))


def make(name: str, *arguments: Any) -> Pattern:
    """A pattern of the catalog. Lists are passed as bytes of int64, patterns as Pattern."""
    core = _core.make(name, tuple(map(_core_of, arguments)))
    return Pattern._of(core, (name, *arguments))


def made_for(made_by: str, q_len: int, k_len: int, batch: int, heads: int, pattern: Pattern) -> Pattern:
    """`pattern`, restricted to calls of these sizes; a batch or heads of 1 serves any number.

    `made_by` is the function that the user called. Errors and the pattern's text name it.
    """
    core = _core.made_for(made_by, q_len, k_len, batch, heads, pattern.core)
    return Pattern._of(core, ("made_for", made_by, q_len, k_len, batch, heads, pattern))


def _combined(name: str, a: PatternLike, b: PatternLike) -> Pattern:
    for side in (a, b):
        # A leaf that was not called, such as keyhole.causal, goes on to as_pattern: its error names the mistake.
        if not isinstance(side, (Pattern, str)) and not callable(side):
            return NotImplemented
    sign = "&" if name == "and" else "|"
    a, b = as_pattern(a, f"left of {sign}"), as_pattern(b, f"right of {sign}")
    return Pattern._of(_join(name, a.core, b.core), (name, (*_operands(name, a), *_operands(name, b))))


def _join(name: str, a: _core.Pattern, b: _core.Pattern) -> _core.Pattern:
    return a.conjunction(b) if name == "and" else a.disjunction(b)


def _operands(name: str, pattern: Pattern) -> tuple[Pattern, ...]:
    """The operands of `name`, flattened: both operators are associative, so a & (b & c) is made of a, b and c."""
    return pattern._made_of[1] if pattern._made_of[0] == name else (pattern,)


def _recipe_of(name: str, *arguments: Any) -> Recipe:
    if name in ("and", "or"):
        return name, tuple(pattern.recipe for pattern in _texts_joined(name, arguments[0]))
    return (name, *map(_plain, arguments))


def _texts_joined(name: str, operands: tuple[Pattern, ...]) -> list[Pattern]:
    """Joins neighbouring operands that are kept as text into one text, as if they had been written together."""
    joined: list[Pattern] = []
    for operand in operands:
        if joined and operand.recipe[0] == joined[-1].recipe[0] == "text":
            joined[-1] = Pattern(_join(name, joined[-1].core, operand.core).text())
        else:
            joined.append(operand)
    return joined


def _core_of(argument: Any) -> Any:
    """An argument in the form that _core takes."""
    if isinstance(argument, Pattern):
        return argument.core
    if isinstance(argument, tuple) and argument and isinstance(argument[0], Pattern):
        return tuple(pattern.core for pattern in argument)
    return argument


def _plain(argument: Any) -> Any:
    """An argument in the form that recipes keep."""
    if isinstance(argument, Pattern):
        return argument.recipe
    if isinstance(argument, tuple) and argument and isinstance(argument[0], Pattern):
        return tuple(pattern.recipe for pattern in argument)
    return argument


def _argument_of(value: Any) -> Any:
    """The reverse of _plain: recipes become patterns again."""
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return from_recipe(value)
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return tuple(from_recipe(part) for part in value)
    return value
