# python/keyhole/imports/variable_blocks.py
"""Block-sparse rows with blocks of different sizes. Kernels need tiles of one size, so the blocks are turned into tiles
and bitmaps, one row of tiles at a time. The cost is proportional to the tiles that are touched, not to all pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .._arrays import integers
from ..pattern import Pattern
from .rows import imported, length_of
from .tile_collector import TileCollector

__all__ = ["from_variable_blocks"]

_TILE = 128


def from_variable_blocks(
    offsets: Any, keys: Any, tile_q: Any, tile_k: Any, q_len: int | None, k_len: int | None
) -> Pattern:
    """from_bsr where tile_q, tile_k or both are arrays of sizes, one for each row or column of blocks."""
    rows = len(offsets) - 1
    if isinstance(tile_q, Iterable):
        q_sizes = _given_sizes("tile_q", tile_q, "q_len", q_len)
    else:
        q_sizes = _equal_sizes("tile_q", tile_q, "q_len", rows * tile_q if q_len is None else q_len)
    if len(q_sizes) != rows:
        raise ValueError(f"from_bsr: offsets has {rows} rows, and tile_q and q_len give {len(q_sizes)}")
    if isinstance(tile_k, Iterable):
        k_sizes = _given_sizes("tile_k", tile_k, "k_len", k_len)
    else:
        k_sizes = _equal_sizes("tile_k", tile_k, "k_len", int(q_sizes.sum()) if k_len is None else k_len)
    if len(keys) and (keys.min() < 0 or keys.max() >= len(k_sizes)):
        raise ValueError(
            f"from_bsr: keys are {keys.min()} to {keys.max()}; tile_k and k_len give {len(k_sizes)} columns"
        )
    if offsets[0] != 0 or offsets[-1] != len(keys) or (np.diff(offsets) < 0).any():
        raise ValueError(f"from_bsr: offsets must rise from 0 to {len(keys)}, the number of keys")
    entries = [[_collected(offsets, keys, q_sizes, k_sizes)]]
    return imported("from_bsr", entries, int(q_sizes.sum()), int(k_sizes.sum()), batch=1, heads=1)


def _given_sizes(parameter: str, sizes: Any, total: str, length: int | None) -> Any:
    found = integers("from_bsr", parameter, sizes)
    if (found < 0).any():
        raise ValueError(f"from_bsr: {parameter} has a size of {found.min()}; expected 0 or more")
    if length is not None and length_of("from_bsr", total, length) != found.sum():
        raise ValueError(f"from_bsr: the sizes of {parameter} add up to {found.sum()}, and {total} is {length}")
    return found


def _equal_sizes(parameter: str, size: Any, total: str, length: Any) -> Any:
    """Equal sizes that add up to `length`; the last may be smaller."""
    size = length_of("from_bsr", parameter, size, least=1)
    starts = np.arange(0, length_of("from_bsr", total, length), size)
    return np.minimum(length - starts, size)


def _collected(offsets: Any, keys: Any, q_sizes: Any, k_sizes: Any) -> Pattern:
    q_len, k_len = int(q_sizes.sum()), int(k_sizes.sum())
    row_of, column_of = np.repeat(np.arange(len(q_sizes)), q_sizes), np.repeat(np.arange(len(k_sizes)), k_sizes)
    collector = TileCollector(q_len, k_len, _TILE, _TILE)
    k_tiles = -(-k_len // _TILE)
    for first in range(0, q_len, _TILE):
        blocks, block_of = np.unique(row_of[first : first + _TILE], return_inverse=True)
        attends = np.zeros((len(blocks) + 1, len(k_sizes)), np.bool_)  # the last row is for queries past the end
        for i, block in enumerate(blocks):
            attends[i, keys[offsets[block] : offsets[block + 1]]] = True
        of_keys = np.zeros((len(blocks) + 1, k_tiles * _TILE), np.bool_)
        of_keys[:, :k_len] = attends[:, column_of]
        bands = of_keys.reshape(len(blocks) + 1, k_tiles, _TILE)
        touched = np.flatnonzero(bands.any(axis=(0, 2)))
        rows = np.full(_TILE, len(blocks))
        rows[: len(block_of)] = block_of
        pairs = bands[:, touched].transpose(1, 0, 2)[:, rows]
        collector.add_tiles(np.full(len(touched), first // _TILE), touched, pairs)
    return collector.pattern()
