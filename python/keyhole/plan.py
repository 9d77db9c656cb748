# python/keyhole/plan.py
"""Plan: a pattern compiled for a shape; and the cache of plans."""

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

# The encoded form: mark, digest of the recipe, recipe. A change of the format changes the mark.
_MARK = b"khpl\x01\r\n\0"
_DIGEST_BYTES = 32
_HEADER = struct.Struct(f"{len(_MARK)}s{_DIGEST_BYTES}s")
_MOST_BYTES = 1 << 33

# Digest -> plan, for every plan that was encoded and is alive: decoding its bytes finds it without compiling.
_encoded_plans: weakref.WeakValueDictionary[bytes, Plan] = weakref.WeakValueDictionary()


class Plan:
    """A pattern compiled for a shape. `keyhole.plan(...)` makes it once, and any number of calls use it.

    >>> import keyhole
    >>> plan = keyhole.plan("causal & window(255)", 1024)
    >>> plan
    keyhole.plan('causal & window(255)', 1024)
    >>> plan == keyhole.plan(keyhole.causal() & keyhole.window(255), 1024)
    True

    Plans compare, hash and pickle by pattern and shape. Several threads may use one plan.
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
    as_tensor: torch.Tensor  # tensor(), as torch.compile can trace it: torch_attention/plan_tensors.py
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
        """("plan", pattern, q_len, k_len, batch, heads, offset), or ("plan file", bytes) if there is no pattern."""
        if self._recipe is None:
            if self.pattern is None:
                self._recipe = ("plan file", self.core.to_bytes())
            else:
                shape = (self.q_len, self.k_len, self.batch, self.heads, self.offset)
                self._recipe = ("plan", self.pattern.recipe, *shape)
        return self._recipe

    @property
    def digest(self) -> bytes:
        """32 bytes that identify this plan: the same in every process, different for every other plan."""
        if self._digest is None:
            self._digest = hashlib.blake2b(encode_value(self.recipe), digest_size=_DIGEST_BYTES).digest()
        return self._digest

    def encode(self) -> bytes:
        """The plan as bytes: its digest, then its pattern and shape. `Plan.decode` reads them, in any process.

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
        """The plan that `encode` wrote. If a plan with this digest is alive, that plan is returned, and the rest of the
        bytes is not read. Otherwise the plan is compiled again. Bytes that are not a complete plan are a ValueError.
        Nothing in them is executed.

        >>> Plan.decode(b"something else")
        Traceback (most recent call last):
        ...
        ValueError: not an encoded plan: 14 bytes that do not begin with its mark; pass what Plan.encode() returned
        """
        view = memoryview(data).cast("B")
        if len(view) < _HEADER.size or bytes(view[: len(_MARK)]) != _MARK:
            raise ValueError(
                f"not an encoded plan: {len(view)} bytes that do not begin with its mark; pass what Plan.encode() "
                "returned"
            )
        digest = bytes(view[len(_MARK) : _HEADER.size])
        found = _encoded_plans.get(digest)
        return found if found is not None else _decoded(digest, view[_HEADER.size :])

    def tensor(self) -> torch.Tensor:
        """The bytes of `encode` in a CPU tensor t. The ops of `torch.ops.keyhole` take it as their `lists`: [t]."""
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
        """The cost of a call with this plan, and the kernels that would run.

        tile        the tile shape to count with. By default 128 x 128; a plan from a file that cannot be compiled for
                    that shape is counted in one that its file holds
        head_dim, element_bytes
                    of q, k and v
        gpu         the number of the GPU to name kernels for; the CPU by default

        >>> import keyhole
        >>> report = keyhole.plan("causal & window(255)", 1024).explain()
        >>> report.pairs, report.all_pairs
        (229504, 1048576)
        >>> report.runs[0]
        'cpu.forward.f32, tiles 32x32'
        """
        row = self.core.explain(*(tile or self.core.usual_tile()), head_dim, element_bytes)
        if gpu is not None and gpu < 0:
            raise ValueError(f"explain: gpu is {gpu}; accepted are 0 and more, and None for the CPU")
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
        """Checks all lists compiled so far. A RuntimeError names the first rule that does not hold."""
        self.core.verify()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to a file. The write is atomic: the path holds the old file or the complete new one."""
        self.core.save(os.fspath(path))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Plan:
        """Reads a plan that `save` or `keyhole plan --save` wrote."""
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
    """Compiles `pattern` for q_len queries and k_len keys, or takes the plan from the cache. k_len is q_len by default.

    batch, heads    the number of batch entries and query heads. Those that have the same pattern share their lists
    offset          the position of query 0. By default k_len - q_len: the last query is at the last key's position

    >>> import keyhole
    >>> keyhole.plan("causal", 1, 1000).explain().pairs  # one new token after 999
    1000
    """
    k_len = q_len if k_len is None else k_len
    if not type(q_len) is type(k_len) is type(batch) is type(heads) is int:  # the common case pays one comparison
        q_len, k_len = as_integer(q_len, "plan: q_len"), as_integer(k_len, "plan: k_len")
        batch, heads = as_integer(batch, "plan: batch"), as_integer(heads, "plan: heads")
    offset = k_len - q_len if offset is None else as_integer(offset, "plan: offset")
    return _cached(as_pattern(pattern), q_len, k_len, batch, heads, offset)


def plan_for(what: PlanLike, q_len: int, k_len: int, batch: int, heads: int, offset: int | None = None) -> Plan:
    """The plan for a call with tensors of this shape. A Plan is returned as it is; the library checks that it fits.

    A pattern that is the same for all heads and batch entries has one plan, for any number of them.
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
    except ValueError:  # a pattern from arrays: its text holds their hash, not their values
        return Plan(core, None)


def _decoded(digest: bytes, body: memoryview) -> Plan:
    if len(body) > _MOST_BYTES:
        raise ValueError(f"an encoded plan of {len(body)} bytes; accepted are at most {_MOST_BYTES}")
    data = bytes(body)
    if hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest() != digest:
        raise ValueError("an encoded plan is damaged: its digest does not match its bytes; encode the plan again")
    recipe = decode_value(data)
    try:
        found = _from_recipe(recipe)
    except TypeError as error:  # a value of the wrong type comes from the bytes, not from the caller's arguments
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
