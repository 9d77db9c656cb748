# python/keyhole/recipe.py
"""Recipes: what a pattern was made of, as plain values that compare, hash and convert to bytes.

A recipe is a tuple that begins with a name:

    ("text", "causal & window(3)")            a pattern that its text describes completely
    ("csr", offsets, keys)                    an entry of the catalog; arrays are bytes of int64
    ("mask", (bits, q_len, k_len))            rows, eight pairs a byte, lowest bit first
    ("made_for", name, q_len, k_len, batch, heads, recipe)    an imported mask, and its sizes
    ("and", (recipe, recipe, ...)), ("or", ...), ("not", recipe)

A pattern that its text describes completely is kept as text, so that equal expressions have equal recipes however they
were made. The bytes of a recipe are untrusted input: decoding bounds depth and size, and executes nothing.
"""

from __future__ import annotations

import struct
from typing import TypeAlias, Union

__all__ = ["Recipe", "decode_value", "encode_value"]

Recipe: TypeAlias = tuple["Value", ...]
Value: TypeAlias = Union[int, str, bytes, Recipe, None]

_MAX_DEPTH = 256
_COUNT = struct.Struct("<Q")
_INTEGER = struct.Struct("<q")


def encode_value(value: Value) -> bytes:
    """The bytes of a recipe, or of any value inside one.

    >>> decode_value(encode_value(("csr", b"12345678", (None, -1))))
    ('csr', b'12345678', (None, -1))
    """
    if value is None:
        return b"n"
    if isinstance(value, int):
        return b"i" + _INTEGER.pack(value)
    if isinstance(value, str):
        data = value.encode()
        return b"s" + _COUNT.pack(len(data)) + data
    if isinstance(value, bytes):
        return b"b" + _COUNT.pack(len(value)) + value
    return b"t" + _COUNT.pack(len(value)) + b"".join(map(encode_value, value))


def decode_value(data: bytes) -> Value:
    """The value that `data` encodes. Invalid bytes are a ValueError.

    >>> decode_value(b"i123")
    Traceback (most recent call last):
    ...
    ValueError: the bytes of a recipe end too early: 8 are needed at byte 1, 3 are left
    """
    reader = _Reader(data)
    value = reader.value(depth=0)
    if reader.place != len(data):
        raise ValueError(f"a recipe of {reader.place} bytes is followed by {len(data) - reader.place} more")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.place:
            raise ValueError(
                f"the bytes of a recipe end too early: {count} are needed at byte {self.place}, "
                f"{len(self.data) - self.place} are left"
            )
        self.place += count
        return self.data[self.place - count : self.place]

    def value(self, depth: int) -> Value:
        if depth > _MAX_DEPTH:
            raise ValueError(f"a recipe is nested more than {_MAX_DEPTH} levels deep")
        kind = self.take(1)
        if kind == b"n":
            return None
        if kind == b"i":
            return int(_INTEGER.unpack(self.take(8))[0])
        if kind not in (b"s", b"b", b"t"):
            raise ValueError(f"a recipe has a value of unknown kind {kind!r} at byte {self.place - 1}")
        count = int(_COUNT.unpack(self.take(8))[0])
        if kind == b"b":
            return self.take(count)
        if kind == b"s":
            return self.take(count).decode()  # a UnicodeDecodeError is a ValueError
        if count > len(self.data) - self.place:  # every value has at least one byte
            raise ValueError(f"a recipe lists {count} values in {len(self.data) - self.place} bytes")
        return tuple(self.value(depth + 1) for _ in range(count))
