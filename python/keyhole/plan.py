# python/keyhole/plan.py
"""Plan: a pattern compiled for a shape; and the cache that makes one only once."""

from __future__ import annotations

import hashlib
import os
import struct
import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

from . import _core, pictures
from .cache import Cache
from .lists import refuse_lists
from .pattern import Pattern, PatternLike, as_integer, as_pattern, from_recipe
from .recipe import Recipe, decode_value, encode_value
from .report import Report

if TYPE_CHECKING:
    import torch

__all__ = ["Plan", "PlanLike", "plan", "plan_cache", "plan_for"]

# The encoded form: mark, digest of what follows it, recipe. What differs in any way has another mark.
_MARK = b"khpl\x01\r\n\0"
_DIGEST_BYTES = 32
_HEADER = struct.Struct(f"{len(_MARK)}s{_DIGEST_BYTES}s")
_MOST_BYTES = 1 << 33

# Digest -> plan, for every plan that was encoded and is alive: who has the bytes finds the plan without compiling.
_encoded_plans: weakref.WeakValueDictionary[bytes, Plan] = weakref.WeakValueDictionary()


class Plan:
    """A pattern compiled for a shape: made once by `keyhole.plan(...)`, followed by every call.

    >>> import keyhole
    >>> plan = keyhole.plan("causal & window(255)", 1024)
    >>> plan
    keyhole.plan('causal & window(255)', 1024)
    >>> plan == keyhole.plan(keyhole.causal() & keyhole.window(255), 1024)
    True

    Plans compare, hash and pickle by pattern and shape. They are safe to use from several threads.
    """

    __slots__ = (
        "__weakref__",
        "_digest",
        "_encoded",
        "_recipe",
        "_tensor",
        "batch",
        "core",
        "heads",
        "k_len",
        "offset",
        "pattern",
        "q_len",
    )

    core: _core.Plan  # the C++ plan
    as_tensor: torch.Tensor  # torch_attention/plan_tensors.py: what tensor() gives, as torch.compile can follow it
    _tensor: torch.Tensor
    pattern: Pattern | None  # None: loaded from a file whose pattern came from arrays
    q_len: int
    k_len: int
    batch: int
    heads: int  # query heads
    offset: int  # the position of query 0

    def __init__(self, core: _core.Plan, pattern: Pattern | None) -> None:
        """Use `keyhole.plan(...)` or `Plan.load(...)`."""
        self.core = core
        self.pattern = pattern
        self.q_len, self.k_len, self.batch, self.heads, self.offset = core.shape()
        self._recipe: Recipe | None = None
        self._encoded: bytes | None = None
        self._digest: bytes | None = None

    @property
    def recipe(self) -> Recipe:
        """("plan", pattern, q_len, k_len, batch, heads, offset), or ("plan file", bytes) when there is no pattern."""
        if self._recipe is None:
            if self.pattern is None:
                self._recipe = ("plan file", self.core.to_bytes())
            else:
                shape = (self.q_len, self.k_len, self.batch, self.heads, self.offset)
                self._recipe = ("plan", self.pattern.recipe, *shape)
        return self._recipe

    @property
    def digest(self) -> bytes:
        """32 bytes that name this plan: the same in every process, different for every other plan."""
        if self._digest is None:
            self._digest = hashlib.blake2b(encode_value(self.recipe), digest_size=_DIGEST_BYTES).digest()
        return self._digest

    def encode(self) -> bytes:
        """The plan as bytes: its digest, then what it was made of. `Plan.decode` reads them, in any process.

        >>> import keyhole
        >>> plan = keyhole.plan("causal", 16)
        >>> keyhole.Plan.decode(plan.encode()) is plan
        True
        """
        if self._encoded is None:
            self._encoded = _HEADER.pack(_MARK, self.digest) + encode_value(self.recipe)
        _encoded_plans[self.digest] = self
        return self._encoded

    @staticmethod
    def decode(data: bytes | bytearray | memoryview) -> Plan:
        """The plan that `encode` wrote. Where one of its digest is alive, that one: the digest is its name, and the
        rest is not looked at. Else it is compiled again; bytes that are not a plan, or not all of it, are a
        ValueError, and nothing in them is executed.

        >>> Plan.decode(b"something else")
        Traceback (most recent call last):
        ...
        ValueError: not an encoded plan: 14 bytes that do not begin with the mark of one; Plan.encode() writes them
        """
        view = memoryview(data).cast("B")
        if len(view) < _HEADER.size or bytes(view[: len(_MARK)]) != _MARK:
            raise ValueError(
                f"not an encoded plan: {len(view)} bytes that do not begin with the mark of one; "
                "Plan.encode() writes them"
            )
        digest = bytes(view[len(_MARK) : _HEADER.size])
        found = _encoded_plans.get(digest)
        return found if found is not None else _decoded(digest, view[_HEADER.size :])

    def tensor(self) -> torch.Tensor:
        """What `encode` gives, in a tensor on the CPU: what the ops of `torch.ops.keyhole` take, as `[it]`."""
        from .torch_attention.plan_tensors import tensor_of

        return tensor_of(self)

    def explain(
        self,
        *,
        tile: tuple[int, int] | None = None,
        head_dim: int = 128,
        element_bytes: int = 4,
        gpu: int | None = None,
    ) -> Report:
        """What the plan costs in tiles of `tile`, per call with this head_dim and element size, and what would run on
        the CPU or, with its number, on a GPU. Without a tile: in tiles of 128 x 128, or of a shape that a plan from a
        file has lists for, where it cannot have these.

        >>> import keyhole
        >>> report = keyhole.plan("causal & window(255)", 1024).explain()
        >>> report.pairs, report.all_pairs
        (229504, 1048576)
        >>> report.runs[0]
        'cpu.forward.f32, tiles 32x32'
        """
        row = self.core.explain(*(tile or self.core.usual_tile()), head_dim, element_bytes)
        if gpu is not None and gpu < 0:
            raise ValueError(f"explain: gpu is {gpu}; GPUs are numbered from 0, and None stands for the CPU")
        row["runs"] = self.core.runs(head_dim, element_bytes, -1 if gpu is None else gpu)
        return Report.of(row)

    def show(self, path: str | os.PathLike[str] | None = None, *, batch: int = 0, head: int = 0) -> None:
        """Prints a picture; with a path that ends in .svg or .html, writes it there instead.

        >>> import keyhole
        >>> keyhole.plan("causal", 3).show()
        causal   3 x 3, 6 of 9 pairs (66.7%)
        # . .
        # # .
        # # #
        """
        pictures.show(self._drawn_pattern(), self.core.shape(), path, batch, head, str(self))

    def _repr_svg_(self) -> str | None:
        return None if self.pattern is None else pictures.svg(self.pattern, self.core.shape())

    def _repr_html_(self) -> str | None:
        return None if self.pattern is None else pictures.svg_with_report(self.pattern, self.core.shape(), str(self))

    def _drawn_pattern(self) -> Pattern:
        if self.pattern is None:
            raise ValueError(f"show: {self!r} was loaded from a file that does not hold the arrays of its pattern")
        return self.pattern

    def verify(self) -> None:
        """Checks every list compiled so far; a RuntimeError names the first that breaks a rule."""
        self.core.verify()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan; the path holds the old file or the new one, never half of one."""
        self.core.save(os.fspath(path))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Plan:
        """A plan that `save` or `keyhole plan --save` wrote."""
        return _with_its_pattern(_core.load_plan(os.fspath(path)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return self is other or self.recipe == other.recipe

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        if self.pattern is None or self.pattern.recipe[0] != "text":
            return f"<keyhole.Plan {self.core.pattern_text()}, {self.q_len} x {self.k_len}>"
        text = f"{self.core.pattern_text()!r}, {self.q_len}"
        if self.k_len != self.q_len:
            text += f", {self.k_len}"
        for name, default in (("batch", 1), ("heads", 1), ("offset", self.k_len - self.q_len)):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return f"keyhole.plan({text})"

    def __str__(self) -> str:
        return str(self.explain())

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan.decode, (self.encode(),)

    def __copy__(self) -> Plan:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return self


PlanLike: TypeAlias = Plan | Pattern | str

plan_cache: Cache[Plan] = Cache(capacity=64)


def plan(
    pattern: PatternLike,
    q_len: int,
    k_len: int | None = None,
    *,
    batch: int = 1,
    heads: int = 1,
    offset: int | None = None,
) -> Plan:
    """Compiles `pattern` for q_len queries and k_len keys (q_len unless given), or takes it from the cache.

    batch, heads    of the queries; patterns that are the same for all of them keep one list for all
    offset          the position of query 0; k_len - q_len unless given: the last query is the last key

    >>> import keyhole
    >>> keyhole.plan("causal", 1, 1000).explain().pairs  # one new token after 999 others
    1000
    """
    k_len = q_len if k_len is None else k_len
    if not type(q_len) is type(k_len) is type(batch) is type(heads) is int:  # one comparison where all are right
        q_len, k_len = as_integer(q_len, "plan: q_len"), as_integer(k_len, "plan: k_len")
        batch, heads = as_integer(batch, "plan: batch"), as_integer(heads, "plan: heads")
    offset = k_len - q_len if offset is None else as_integer(offset, "plan: offset")
    return _cached(as_pattern(pattern), q_len, k_len, batch, heads, offset)


def plan_for(what: PlanLike, q_len: int, k_len: int, batch: int, heads: int, offset: int | None = None) -> Plan:
    """The plan that a call with tensors of this shape follows. A plan is taken as it is: the kernels check it.

    A pattern that is the same for all heads and batch entries has one plan for any number of them.
    """
    if isinstance(what, Plan):
        return what
    if not isinstance(what, (Pattern, str)):
        refuse_lists("attention", what)
    pattern = as_pattern(what)
    if not pattern.core.depends_on_heads(q_len, k_len):
        batch = heads = 1
    return _cached(pattern, q_len, k_len, batch, heads, k_len - q_len if offset is None else offset)


def _cached(pattern: Pattern, q_len: int, k_len: int, batch: int, heads: int, offset: int) -> Plan:
    key = (pattern.key, q_len, k_len, batch, heads, offset)
    found = plan_cache.get(key)
    if found is None:
        made = Plan(_core.make_plan(pattern.core, q_len, k_len, batch, heads, offset), pattern)
        found = plan_cache.put(key, made)
    return found


def _with_its_pattern(core: _core.Plan) -> Plan:
    try:
        return Plan(core, Pattern(core.pattern_text()))
    except ValueError:  # the text of a pattern from arrays names only their hash
        return Plan(core, None)


def _decoded(digest: bytes, body: memoryview) -> Plan:
    if len(body) > _MOST_BYTES:
        raise ValueError(f"an encoded plan of {len(body)} bytes; at most {_MOST_BYTES} are read")
    data = bytes(body)
    if hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest() != digest:
        raise ValueError("an encoded plan is damaged: its digest does not fit; encode the plan again")
    recipe = decode_value(data)
    try:
        found = _from_recipe(recipe)
    except TypeError as error:  # a value of the wrong kind is the fault of the bytes, not of the caller
        raise ValueError(f"an encoded plan is not valid: {error}") from None
    _encoded_plans[digest] = found
    return found


def _from_recipe(recipe: Any) -> Plan:
    if not isinstance(recipe, tuple) or not recipe:
        raise ValueError("an encoded plan holds no recipe")
    name, *arguments = recipe
    if name == "plan file" and len(arguments) == 1:
        return _with_its_pattern(_core.plan_from_bytes(arguments[0]))
    if name != "plan" or len(arguments) != 6:
        raise ValueError(f"an encoded plan holds {str(name)[:40]!r} with {len(arguments)} arguments")
    return _cached(from_recipe(arguments[0]), *arguments[1:])
