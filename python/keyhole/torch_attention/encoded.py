# python/keyhole/torch_attention/encoded.py
"""Patterns and plans as tensors of bytes on the CPU: what registered ops take, and what an exported program carries.

A plan is `Plan.encode()`. A pattern has the lengths left open, so that a compiled graph serves every length:

    8 bytes    a mark
    32 bytes   the digest of what follows
    rest       encode_value(("pattern", recipe, offset)); offset is None where the last query is the last key

An op finds the digest among what is alive in this process. Where it is not there (another process, an exported
program) the recipe is cooked again. Bytes may come from a stranger: they are checked, and they run nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import weakref
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .. import _core
from ..cache import Cache
from ..pattern import Pattern, from_recipe
from ..plan import Plan, plan_for
from ..recipe import decode_value, encode_value

__all__ = ["Anchored", "core_plan", "plan_of", "tensor_of"]

_MARK = b"khpt\x01\r\n\0"
_DIGEST_BYTES = 32
_HEADER = struct.Struct(f"{len(_MARK)}s{_DIGEST_BYTES}s")


class Anchored:
    """A pattern whose query 0 stands at position `offset` whatever the lengths."""

    __slots__ = ("__weakref__", "_tensor", "offset", "pattern")

    as_tensor: torch.Tensor
    _tensor: torch.Tensor

    def __init__(self, pattern: Pattern, offset: int) -> None:
        self.pattern = pattern
        self.offset = offset


Follows: TypeAlias = Pattern | Plan | Anchored

_alive: weakref.WeakValueDictionary[bytes, Pattern | Anchored] = weakref.WeakValueDictionary()
_decoded: Cache[Pattern | Anchored] = Cache(capacity=64)  # those that nobody else in this process holds


def core_plan(what: Any, q: torch.Tensor, k: torch.Tensor) -> _core.Plan:
    """The plan that a call with these tensors, [batch, heads, length, head_dim], follows."""
    if type(what) is Plan:
        return what.core
    batch, heads, q_len, _ = q.shape
    if type(what) is Anchored:
        return plan_for(what.pattern, q_len, k.shape[2], batch, heads, what.offset).core
    return plan_for(what, q_len, k.shape[2], batch, heads).core


def tensor_of(what: Any) -> torch.Tensor:
    """The bytes of a pattern, its text, or a plan. The tensor is shared: nobody may write into it."""
    if isinstance(what, str):
        return _tensor_of_text(what)
    if not isinstance(what, (Pattern, Plan, Anchored)):
        raise TypeError(
            f"attention: expected a pattern, its text or a plan as fourth argument, found {type(what).__name__}"
        )
    return what.as_tensor


def plan_of(encoded: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> _core.Plan:
    """What an op follows: the reverse of `tensor_of`, for tensors of this shape."""
    if encoded.dtype != torch.uint8 or not encoded.is_cpu or encoded.dim() != 1 or not encoded.is_contiguous():
        raise ValueError(
            f"attention: plan is a tensor of {encoded.dtype} with shape {list(encoded.shape)} on {encoded.device}; "
            "expected the one that tensor() of a pattern or plan gives: bytes on the CPU"
        )
    if encoded.numel() < _HEADER.size:
        raise ValueError(
            f"attention: plan has {encoded.numel()} bytes; an encoded pattern or plan begins with {_HEADER.size}"
        )
    mark, digest = _HEADER.unpack(ctypes.string_at(encoded.data_ptr(), _HEADER.size))
    if mark != _MARK:
        return core_plan(Plan.decode(encoded.numpy().data), q, k)
    found = _alive.get(digest)
    return core_plan(_decode(digest, encoded) if found is None else found, q, k)


def _decode(digest: bytes, encoded: torch.Tensor) -> Pattern | Anchored:
    body = encoded.numpy()[_HEADER.size :].tobytes()
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
        raise ValueError("an encoded pattern is damaged: its digest does not fit; call tensor() of the pattern again")
    match decode_value(body):
        case ("pattern", tuple(recipe), None | int() as offset):
            pass
        case _:
            raise ValueError("an encoded pattern holds no recipe")
    try:
        pattern = from_recipe(recipe)
    except TypeError as error:  # a value of the wrong kind is the fault of the bytes, not of the caller
        raise ValueError(f"an encoded pattern is not valid: {error}") from None
    found = pattern if offset is None else Anchored(pattern, offset)
    _alive[digest] = found
    return _decoded.put(digest, found)


def _encode(what: Pattern | Anchored) -> bytes:
    pattern, offset = (what.pattern, what.offset) if isinstance(what, Anchored) else (what, None)
    body = encode_value(("pattern", pattern.recipe, offset))
    digest = hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()
    _alive[digest] = what
    return _HEADER.pack(_MARK, digest) + body


class _Tensors(dict):  # type: ignore[type-arg]
    """Always empty; asked for the tensor of a pattern or plan, it makes that.

    torch.compile does not follow the code that encodes a pattern, and would give up on it. It does read properties
    whose getter is written in C, when it traces and again for every check of a compiled graph, and takes the tensor
    they give as an input of the graph. `dict.__getitem__` is written in C and asks `__missing__`.
    """

    @torch.compiler.disable
    def __missing__(self, what: Follows) -> torch.Tensor:
        tensor = getattr(what, "_tensor", None)
        if tensor is None:
            data = what.encode() if isinstance(what, Plan) else _encode(what)
            # Kept beyond this call: it must not become a fake tensor, or one of inference mode, that others cannot use.
            with _disable_current_modes(), torch.inference_mode(False):
                tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            torch._dynamo.mark_dynamic(tensor, 0)  # another pattern has another size, and needs no other graph
            what._tensor = tensor
        return tensor


for _kind in (Pattern, Plan, Anchored):
    _kind.as_tensor = property(_Tensors().__getitem__)  # type: ignore[assignment]


@torch.compiler.assume_constant_result
def _tensor_of_text(text: str) -> torch.Tensor:
    """A text is a constant of the graph: torch.compile checks that it is still the same."""
    return tensor_of(Pattern(text))
