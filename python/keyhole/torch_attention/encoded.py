# python/keyhole/torch_attention/encoded.py
"""Lists as tensors: the arguments of registered ops, and what an exported program contains.

    [plan]                                  a pattern or plan, as bytes on the CPU
    [plan, kept, sequences]                 a pattern, and the two tensors of Restricted, with an empty one-dimensional
                                            tensor for each that is not given
    [indices]
    [indices, counts]                       key lists, again with an empty tensor if there are no counts; `tile` holds
                                            [keys_per_entry, causal]
    [tiles, counts, bitmap_of, bitmaps]     tile lists, again with empty tensors; `tile` holds [rows, columns]

A plan is `Plan.encode()`. A pattern is encoded without lengths, so that a compiled graph serves every length:

    8 bytes    a mark
    32 bytes   the digest of what follows
    rest       encode_value(("pattern", recipe, offset)); offset is None for alignment at the bottom right

An op looks the digest up among the live patterns of this process. If it is not there (another process, an exported
program), the pattern is made again from its recipe. The bytes are untrusted input: they are checked, and nothing in
them is executed.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _core
from ..cache import Cache
from ..lists import KeyLists, TileLists
from ..pattern import Pattern, as_pattern, from_recipe
from ..plan import Plan, plan_for
from ..recipe import decode_value, encode_value
from .tensors import INDEX_DTYPES, Lists

__all__ = [
    "NO_TILE",
    "Anchored",
    "Restricted",
    "core_plan",
    "encode",
    "is_indices",
    "key_list_parts",
    "key_lists_of",
    "lists_of",
    "parts_of",
    "plan_of",
]

_MARK = b"khpt\x01\r\n\0"
_DIGEST_BYTES = 32
_HEADER = struct.Struct(f"{len(_MARK)}s{_DIGEST_BYTES}s")


class Anchored:
    """A pattern whose query 0 is at position `offset`, whatever the lengths."""

    __slots__ = ("__weakref__", "_tensor", "offset", "pattern")

    as_tensor: torch.Tensor
    _tensor: torch.Tensor

    def __init__(self, pattern: Pattern, offset: int) -> None:
        self.pattern = pattern
        self.offset = offset


@dataclass
class Restricted:
    """`pattern` inside each packed sequence, and without the keys that are not kept. Compiled graphs take it: their ops
    make the plan when the graph runs and the tensors have values. Tensors on the CPU are read without synchronising.

    pattern     a pattern or its text; the last query is at the position of the last key
    kept        [batch, k_len], bool: False for padding. None: there is none
    sequences   [batch, k_len], int32 or int64: equal for the tokens of a sequence, which are beside each other. Query i
                belongs to the sequence of key i, so q_len is k_len. None: one sequence
    """

    pattern: Any
    kept: torch.Tensor | None = None
    sequences: torch.Tensor | None = None


_alive: weakref.WeakValueDictionary[bytes, Pattern | Anchored] = weakref.WeakValueDictionary()
_decoded: Cache[Pattern | Anchored] = Cache(capacity=64)  # keeps decoded patterns alive, which have no other owner


def core_plan(what: Any, q: torch.Tensor, k: torch.Tensor) -> _core.Plan:
    """The plan for a call with these tensors, [batch, heads, length, head_dim]."""
    if type(what) is Plan:
        return what.core
    batch, heads, q_len, _ = q.shape
    if type(what) is Anchored:
        return plan_for(what.pattern, q_len, k.shape[2], batch, heads, what.offset).core
    if type(what) is Restricted:
        from .restricted import restrict  # imported here because plain calls do not need it

        what = restrict(as_pattern(what.pattern), what.kept, what.sequences, q, k)
    return plan_for(what, q_len, k.shape[2], batch, heads).core


def plan_of(encoded: torch.Tensor, q_len: int, k_len: int, batch: int, heads: int) -> _core.Plan:
    """The plan of an encoded pattern or plan for these sizes."""
    what = _follows(encoded)
    if isinstance(what, Anchored):
        return plan_for(what.pattern, q_len, k_len, batch, heads, what.offset).core
    return plan_for(what, q_len, k_len, batch, heads).core


# The tile argument where the lists have none. Not []: AOTInductor packages (torch 2.10) pass that as None.
NO_TILE = (0, 0)


def is_indices(tensor: torch.Tensor) -> bool:
    """Whether an argument of an op holds key indices, and not an encoded pattern or plan."""
    return tensor.dtype in INDEX_DTYPES and tensor.dim() == 4


def key_list_parts(lists: KeyLists) -> tuple[torch.Tensor, torch.Tensor | None, list[int]]:
    """The indices, counts and `tile` of key lists."""
    return lists.indices, lists.counts, [lists.keys_per_entry, int(lists.causal)]


def key_lists_of(indices: torch.Tensor, counts: torch.Tensor | None, tile: Sequence[int]) -> KeyLists:
    """The reverse of `key_list_parts`. The tensors are untrusted input."""
    return KeyLists(indices, counts=counts, keys_per_entry=tile[0], causal=bool(tile[1]))


def parts_of(lists: Any) -> tuple[list[torch.Tensor], list[int]]:
    """The arguments `lists` and `tile` of registered ops. A pattern's tensor is shared and must not be modified."""
    if isinstance(lists, torch.Tensor):
        return [lists], list(NO_TILE)
    if isinstance(lists, KeyLists):
        indices, counts, tile = key_list_parts(lists)
        return [indices, indices.new_empty(0) if counts is None else counts], tile
    if isinstance(lists, TileLists):
        tensors = (lists.tiles, lists.counts, lists.bitmap_of, lists.bitmaps)
        return [lists.tiles.new_empty(0) if x is None else x for x in tensors], list(lists.tile)
    from .plan_tensors import tensor_of  # imported here because it loads torch's compiler

    if isinstance(lists, Restricted):
        plan = tensor_of(lists.pattern)
        return [plan, *(plan.new_empty(0) if x is None else x for x in (lists.kept, lists.sequences))], list(NO_TILE)
    return [tensor_of(lists)], list(NO_TILE)


def lists_of(parts: Sequence[torch.Tensor], tile: Sequence[int], q: torch.Tensor, k: torch.Tensor) -> Lists:
    """The reverse of `parts_of`, for q and k of this shape. The tensors are untrusted input."""
    has_tile = tuple(tile) not in ((), NO_TILE)
    if len(parts) == 2 and has_tile and len(tile) == 2:
        return key_lists_of(parts[0], _given(parts[1]), tile)
    if len(parts) == 4 and has_tile and len(tile) == 2:
        tiles, *rest = parts
        counts, bitmap_of, bitmaps = map(_given, rest)
        return TileLists(tiles, tile=(tile[0], tile[1]), counts=counts, bitmap_of=bitmap_of, bitmaps=bitmaps)
    if len(parts) == 3 and not has_tile:
        return core_plan(Restricted(_pattern_of(parts[0]), *map(_given, parts[1:])), q, k)
    if len(parts) != 1 or has_tile:
        raise ValueError(
            f"attention: {len(parts)} tensors as lists, and {list(tile)} as tile; expected [plan], [plan, kept, "
            "sequences] or [indices] and no tile ([0, 0]), [indices, counts] and [keys_per_entry, causal], or [tiles, "
            "counts, bitmap_of, bitmaps] and the rows and columns of a tile"
        )
    if is_indices(parts[0]):
        return parts[0]
    return core_plan(_follows(parts[0]), q, k)


def _given(part: torch.Tensor) -> torch.Tensor | None:
    return None if part.dim() == 1 and part.numel() == 0 else part


def _pattern_of(encoded: torch.Tensor) -> Pattern:
    found = _follows(encoded)
    if not isinstance(found, Pattern):
        raise ValueError("attention: the first of three lists is no pattern; expected tensor() of a pattern")
    return found


def _follows(encoded: torch.Tensor) -> Pattern | Anchored | Plan:
    """The reverse of `plan_tensors.tensor_of`."""
    if encoded.dtype != torch.uint8 or not encoded.is_cpu or encoded.dim() != 1 or not encoded.is_contiguous():
        raise ValueError(
            f"attention: lists is a tensor of {encoded.dtype} with shape {list(encoded.shape)} on {encoded.device}; "
            "expected the result of tensor() of a pattern or plan, bytes on the CPU, or key indices [batch, heads, "
            "lists, entries], int32 or int64"
        )
    if encoded.numel() < _HEADER.size:
        raise ValueError(
            f"attention: plan has {encoded.numel()} bytes; the header of an encoded pattern or plan alone has "
            f"{_HEADER.size}"
        )
    mark, digest = _HEADER.unpack(ctypes.string_at(encoded.data_ptr(), _HEADER.size))
    if mark != _MARK:
        return Plan.decode(encoded.numpy().data)
    found = _alive.get(digest)
    return _decode(digest, encoded) if found is None else found


def _decode(digest: bytes, encoded: torch.Tensor) -> Pattern | Anchored:
    body = encoded.numpy()[_HEADER.size :].tobytes()
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
        raise ValueError(
            "an encoded pattern is damaged: its digest does not match its bytes; call tensor() of the pattern again"
        )
    match decode_value(body):
        case ("pattern", tuple(recipe), None | int() as offset):
            pass
        case _:
            raise ValueError("an encoded pattern holds no recipe")
    try:
        pattern = from_recipe(recipe)
    except TypeError as error:  # a value of the wrong type comes from the bytes, not from the caller's arguments
        raise ValueError(f"an encoded pattern is not valid: {error}") from None
    found = pattern if offset is None else Anchored(pattern, offset)
    _alive[digest] = found
    return _decoded.put(digest, found)


def encode(what: Pattern | Anchored) -> bytes:
    """The bytes of a pattern. Ops of this process find it by their digest as long as it is alive."""
    pattern, offset = (what.pattern, what.offset) if isinstance(what, Anchored) else (what, None)
    body = encode_value(("pattern", pattern.recipe, offset))
    digest = hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()
    _alive[digest] = what
    return _HEADER.pack(_MARK, digest) + body
