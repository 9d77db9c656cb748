# python/keyhole/imports/tile_collector.py
"""Builds a pattern of tiles from a boolean matrix that arrives block by block. Absent tiles are dropped, full ones need
no bitmap, and equal partial ones share one. A regular mask therefore stays small, and is never held as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..leaves import bitmaps, tiles
from ..pattern import Pattern

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["FULL", "TileCollector"]

FULL = -1  # the bitmap number of a tile in which every pair attends


class TileCollector:
    """Collects the tiles, tile_q x tile_k, of one matrix, q_len x k_len.

    >>> collector = TileCollector(4, 4, 2, 2)
    >>> collector.add_block(0, 0, np.tri(4, dtype=bool))
    >>> collector.pattern()
    keyhole.parse('bitmaps(2, 2, [0, 1, 3], [0, 0, 1], [0, -1, 0], [[1, 0], [1, 1]])')
    """

    def __init__(self, q_len: int, k_len: int, tile_q: int, tile_k: int) -> None:
        self.q_len, self.k_len, self.tile_q, self.tile_k = q_len, k_len, tile_q, tile_k
        self._tiles: list[tuple[Any, Any, Any]] = []  # (query tiles, key tiles, bitmaps), arrays of one length
        self._numbers: dict[bytes, int] = {}  # packed bits of a bitmap -> its number

    def add_block(self, first_q: int, first_k: int, block: npt.NDArray[np.bool_]) -> None:
        """Adds a block of the matrix. It starts at a tile boundary, and ends at one or at the end of the matrix."""
        rows, columns = (-(-size // tile) for size, tile in zip(block.shape, (self.tile_q, self.tile_k), strict=True))
        whole = np.zeros((rows * self.tile_q, columns * self.tile_k), np.bool_)
        whole[: block.shape[0], : block.shape[1]] = block
        grid = whole.reshape(rows, self.tile_q, columns, self.tile_k).transpose(0, 2, 1, 3)
        row, column = np.nonzero(grid.any(axis=(2, 3)))
        self.add_tiles(row + first_q // self.tile_q, column + first_k // self.tile_k, grid[row, column])

    def add_tiles(self, q_tiles: Any, k_tiles: Any, pairs: npt.NDArray[np.bool_]) -> None:
        """Adds tiles at these places. `pairs` is [tiles, tile_q, tile_k], and False outside the matrix."""
        counts = pairs.sum(axis=(1, 2))
        inside = self._inside(q_tiles, self.q_len, self.tile_q) * self._inside(k_tiles, self.k_len, self.tile_k)
        names = np.full(len(pairs), FULL, np.int64)
        partial = counts < inside
        packed = np.packbits(pairs[partial].reshape(-1, self.tile_q * self.tile_k), axis=1, bitorder="little")
        numbers = self._numbers
        names[partial] = [numbers.setdefault(row.tobytes(), len(numbers)) for row in packed]
        kept = counts > 0
        self._tiles.append((q_tiles[kept], k_tiles[kept], names[kept]))

    def add_full(self, q_tiles: Any, k_tiles: Any) -> None:
        """Adds tiles in which every pair attends."""
        self._tiles.append((q_tiles, k_tiles, np.full(len(q_tiles), FULL, np.int64)))

    def pattern(self) -> Pattern:
        """The pattern of the collected tiles, where positions are rows and columns of the matrix."""
        q, k, names = (
            np.concatenate([np.asarray(entry[i], np.int64) for entry in self._tiles] or [np.zeros(0, np.int64)])
            for i in range(3)
        )
        order = np.lexsort((k, q))
        rows = -(-self.q_len // self.tile_q)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(q, minlength=rows))])
        keys, names = k[order], names[order]
        if (names == FULL).all():
            return tiles(self.tile_q, self.tile_k, offsets, keys)
        used, names = np.unique(np.append(names, FULL), return_inverse=True)  # FULL comes first
        table = list(self._numbers)
        bits = np.frombuffer(b"".join(table[i] for i in used[1:]), np.uint8).reshape(len(used) - 1, -1)
        pairs = np.unpackbits(bits, axis=1, count=self.tile_q * self.tile_k, bitorder="little")
        rows_of_bits = pairs.reshape(-1, self.tile_k).view(np.bool_)
        return bitmaps(self.tile_q, self.tile_k, offsets, keys, names[:-1] - 1, rows_of_bits)

    @staticmethod
    def _inside(tile: Any, length: int, size: int) -> Any:
        """The number of rows, or columns, of these tiles that are inside the matrix."""
        return np.minimum(length - np.asarray(tile, np.int64) * size, size)
