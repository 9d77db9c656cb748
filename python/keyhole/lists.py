# python/keyhole/lists.py
"""Lists that the program fills at run time: of keys, and of key tiles; and the error for invalid `lists` arguments."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from .pattern import as_integer
from .way_out import way_to_pattern

__all__ = ["KeyLists", "TileLists", "is_tensor", "refuse_lists"]

_MOST_ROWS = 1024  # rows, and columns, of a tile
_WORD = 64  # bits


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor. Does not import torch: a caller that has a tensor has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_array(value: Any) -> bool:
    """Whether `value` is a NumPy array. Does not import NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


class KeyLists:
    """Which keys each query attends to, where key indices alone do not say it. `attention` takes them in place of a
    pattern.

    indices     [batch, heads, lists, entries], int32 or int64, as in `gather_attention`; -1 is padding
    counts      [batch, heads, lists], int32 or int64: how many entries of each list are used; by default all. The
                others are not read. `select_keys(..., return_counts=True)` returns such counts
    keys_per_entry
                entry e names the keys e * keys_per_entry to (e + 1) * keys_per_entry - 1, as far as k has them
    causal      skip the keys after a query, also inside an entry. The last query is at the position of the last key.
                Every query then has a list of its own

    Pass NumPy arrays if q is one, or torch tensors on the device of q. They are not copied: every call reads their
    current contents. An entry that names no key, or a count that exceeds the entries, is a ValueError on the CPU. On a
    GPU such an entry is padding, and such a count means all entries, because reporting an error would mean waiting for
    the device.

    >>> import numpy as np
    >>> import keyhole
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 64, 32), dtype=np.float32)
    >>> own = np.arange(64)[None, None, :, None] // 4  # every query attends to the four keys of its own entry ...
    >>> lists = keyhole.KeyLists(own, keys_per_entry=4, causal=True)  # ... up to itself
    >>> lists
    <keyhole.KeyLists of [1, 1, 64, 1], 4 keys per entry, causal>
    >>> out = keyhole.attention(q, k, v, lists)
    >>> bool(np.allclose(out, keyhole.attention(q, k, v, "causal & blocks(4)"), atol=1e-6))
    True
    """

    indices: Any
    counts: Any
    keys_per_entry: int
    causal: bool

    def __init__(self, indices: Any, *, counts: Any = None, keys_per_entry: int = 1, causal: bool = False) -> None:
        rows = _Beside("KeyLists", "indices", indices, "[batch, heads, lists, entries]")
        rows.check("indices", indices, 4)
        if counts is not None:
            rows.check("counts", counts, 3)
        self.keys_per_entry = as_integer(keys_per_entry, "KeyLists: keys_per_entry")
        if self.keys_per_entry < 1:
            raise ValueError(f"KeyLists: keys_per_entry is {keys_per_entry}; accepted are 1 and more")
        if not isinstance(causal, bool):
            raise TypeError(f"KeyLists: causal is {_described(causal)}; accepted are True and False")
        self.indices, self.counts, self.causal = indices, counts, causal

    def __repr__(self) -> str:
        text = f"{list(self.indices.shape)}"
        if self.counts is not None:
            text += ", counts"
        if self.keys_per_entry != 1:
            text += f", {self.keys_per_entry} keys per entry"
        return f"<keyhole.KeyLists of {text}{', causal' if self.causal else ''}>"


class TileLists:
    """Which key tiles each query tile attends to, in arrays or tensors that the program fills at run time. `attention`
    takes them in place of a pattern. On a GPU they are never copied to the host, and a replayed CUDA graph uses their
    current contents.

    tiles       [batch, heads, ceil(q_len / rows), capacity], int32 or int64: indices of key tiles, in any order.
                - heads: as many as k has (the query heads of one kv head share lists), as many as q has, or 1
                - -1 is padding and may stand anywhere; a tile that is listed twice counts twice
    tile        (rows, columns): the number of queries and of keys in a tile, such as (128, 128) or (64, 64). Both must
                be multiples of the tile of the kernel that runs
    counts      [batch, heads, ceil(q_len / rows)], int32 or int64: how many entries of each list are used; by default
                all
    bitmap_of   like tiles, int32 or int64: the bitmap that masks each tile, or -1 if all pairs of the tile attend
    bitmaps     bool [n, rows, columns], True attends; or packed, int64 or uint64 [n, rows, ceil(columns / 64)], lowest
                bit first. Several tiles may share a bitmap

    Pass NumPy arrays if q is one, or torch tensors on the device of q. They are not copied: every call reads their
    current contents. The exception is bitmaps of bool, which are packed into a copy here. Lengths need not be multiples
    of the tile: the parts of a tile past the end do not attend. An entry that is not the index of a key tile is a
    ValueError on the CPU. On a GPU it counts as padding, because reporting an error would mean waiting for the device.

    >>> import numpy as np
    >>> import keyhole
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 256, 32), dtype=np.float32)
    >>> tiles = np.array([[0, -1], [0, 1]])  # the first 128 queries see the first 128 keys, the others all
    >>> lists = keyhole.TileLists(tiles[None, None], tile=(128, 128))
    >>> lists
    <keyhole.TileLists of tiles 128x128: [1, 1, 2, 2]>
    >>> out = keyhole.attention(q, k, v, lists)
    >>> first = [x[:, :, :128] for x in (q, k, v)]
    >>> bool(np.allclose(out[:, :, :128], keyhole.attention(*first, "dense"), atol=1e-6))
    True
    """

    tiles: Any
    tile: tuple[int, int]
    counts: Any
    bitmap_of: Any
    bitmaps: Any  # packed

    def __init__(
        self, tiles: Any, *, tile: tuple[int, int], counts: Any = None, bitmap_of: Any = None, bitmaps: Any = None
    ) -> None:
        self.tile = _checked_tile(tile)
        rows = _Beside("TileLists", "tiles", tiles, "[batch, heads, ceil(q_len / rows), capacity]")
        rows.check("tiles", tiles, 4)
        if counts is not None:
            rows.check("counts", counts, 3)
        if (bitmap_of is None) != (bitmaps is None):
            raise ValueError(
                "TileLists: only one of bitmap_of and bitmaps was passed; pass both, or neither if all pairs of every "
                "tile attend"
            )
        if bitmap_of is not None:
            rows.check("bitmap_of", bitmap_of, 4)
            rows.check_place("bitmaps", bitmaps)
            bitmaps = _packed(bitmaps, *self.tile)
        self.tiles, self.counts, self.bitmap_of, self.bitmaps = tiles, counts, bitmap_of, bitmaps

    def __repr__(self) -> str:
        text = f"tiles {self.tile[0]}x{self.tile[1]}: {list(self.tiles.shape)}"
        if self.counts is not None:
            text += ", counts"
        if self.bitmaps is not None:
            text += f", {len(self.bitmaps)} bitmap" + ("" if len(self.bitmaps) == 1 else "s")
        return f"<keyhole.TileLists of {text}>"


def refuse_lists(function: str, found: Any) -> NoReturn:
    """Raises the error for a `lists` argument that attention does not take."""
    is_of_integers = hasattr(found, "dtype") and str(found.dtype) in ("int32", "int64", "torch.int32", "torch.int64")
    error = ValueError if is_of_integers and found.ndim != 4 else TypeError
    way = way_to_pattern(found) or (
        "Convert a boolean mask with keyhole.from_dense(mask), a function with keyhole.from_mask_mod(function, q_len, "
        "k_len)"
    )
    raise error(
        f"{function}: lists is {_described(found)}; accepted are a pattern, its text, a plan, key indices [batch, "
        f"heads, lists, entries] (int32 or int64, a NumPy array or a torch tensor as q is), keyhole.KeyLists and "
        f"keyhole.TileLists. {way}"
    )


def _described(value: Any) -> str:
    """A value's type, dtype and shape, for an error."""
    kind = "a torch tensor" if is_tensor(value) else "a NumPy array" if _is_array(value) else ""
    if kind:
        return f"{kind} of {value.dtype}, {list(value.shape)}"
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _checked_tile(tile: Any) -> tuple[int, int]:
    if not isinstance(tile, (tuple, list)) or len(tile) != 2:
        raise TypeError(f"TileLists: tile is {tile!r}; expected its rows and columns, such as (128, 128)")
    rows, columns = as_integer(tile[0], "TileLists: rows of tile"), as_integer(tile[1], "TileLists: columns of tile")
    if not (1 <= rows <= _MOST_ROWS and 1 <= columns <= _MOST_ROWS):
        raise ValueError(
            f"TileLists: tile is ({rows}, {columns}); accepted are 1 to {_MOST_ROWS} rows and columns, such as "
            "(64, 64) or (128, 128)"
        )
    return rows, columns


def _is_of(array: Any, *dtypes: str) -> bool:
    """Whether its dtype is one of these, in any byte order."""
    if is_tensor(array):
        return any(array.dtype == getattr(sys.modules["torch"], name) for name in dtypes)
    return str(array.dtype.name) in dtypes


class _Beside:
    """Checks the arrays of one object against its first one, which is called `name` and has the dimensions `shape`."""

    def __init__(self, owner: str, name: str, first: Any, shape: str) -> None:
        if not is_tensor(first) and not _is_array(first):
            raise TypeError(
                f"{owner}: {name} is {_described(first)}; accepted are NumPy arrays and torch tensors of int32 or int64"
            )
        self.owner, self.name, self.first, self.shape = owner, name, first, shape

    def check_place(self, name: str, array: Any) -> None:
        """Checks that it is an array or tensor like the first one, and on the same device."""
        first = self.first
        if not (is_tensor(array) if is_tensor(first) else _is_array(array)):
            raise TypeError(
                f"{self.owner}: {name} is {_described(array)}, and {self.name} is {_described(first)}; pass torch "
                "tensors only, or NumPy arrays only"
            )
        if is_tensor(first) and array.device != first.device:
            raise ValueError(
                f"{self.owner}: {name} is on {array.device}, and {self.name} on {first.device}; all must be on the "
                f"device of q: pass {name}.to(q.device)"
            )

    def check(self, name: str, array: Any, rank: int) -> None:
        """Checks that it holds integers, and has the first `rank` dimensions of the first one."""
        self.check_place(name, array)
        if not _is_of(array, "int32", "int64"):
            raise TypeError(f"{self.owner}: {name} is {_described(array)}; accepted are int32 and int64")
        first = self.first
        is_first = name == self.name
        if array.ndim != rank or (not is_first and array.shape != first.shape[:rank]):
            expected = self.shape
            if not is_first:
                expected = f"{list(first.shape[:rank])}, as {self.name} is {list(first.shape)}"
            raise ValueError(f"{self.owner}: {name} has shape {list(array.shape)}; expected {expected}")


def _packed(bitmaps: Any, rows: int, columns: int) -> Any:
    """Bitmaps as kernels read them: int64 [n, rows, ceil(columns / 64)], contiguous."""
    words, is_bool = -(-columns // _WORD), _is_of(bitmaps, "bool")
    if not is_bool and not _is_of(bitmaps, "int64", "uint64"):
        raise TypeError(
            f"TileLists: bitmaps is {_described(bitmaps)}; accepted are bool [n, rows, columns], and int64 or uint64 "
            "[n, rows, ceil(columns / 64)] with one bit for each pair"
        )
    expected = (rows, columns if is_bool else words)
    if bitmaps.ndim != 3 or tuple(bitmaps.shape[1:]) != expected:
        raise ValueError(
            f"TileLists: bitmaps is {_described(bitmaps)}; expected [n, {expected[0]}, {expected[1]}] for tiles of "
            f"{rows} x {columns}"
        )
    padding = words * _WORD - columns
    if is_tensor(bitmaps):
        torch = sys.modules["torch"]
        if not is_bool:
            return bitmaps.contiguous().view(torch.int64)
        bits = torch.nn.functional.pad(bitmaps, (0, padding)).to(torch.uint8).unflatten(-1, (-1, 8))
        eight = 1 << torch.arange(8, dtype=torch.uint8, device=bits.device)
        return (bits * eight).sum(-1, dtype=torch.uint8).view(torch.int64)
    numpy = sys.modules["numpy"]
    if not is_bool:
        return numpy.ascontiguousarray(bitmaps, bitmaps.dtype.newbyteorder("=")).view(numpy.int64)
    bits = numpy.packbits(numpy.pad(bitmaps, ((0, 0), (0, 0), (0, padding))), axis=-1, bitorder="little")
    return bits.view("<i8").astype(numpy.int64)
