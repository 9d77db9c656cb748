# python/keyhole/imports/matrices.py
"""Patterns from boolean matrices (NumPy, torch) and from sparse matrices (SciPy, torch)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..leaves import csr, tiles
from ..pattern import Pattern
from .rows import imported, length_of

__all__ = ["from_bsr", "from_csr", "from_dense"]

_TILE = 128
_BAND_ROWS = 1024  # rows of a dense matrix that are converted at a time


def from_dense(mask: Any) -> Pattern:
    """A pattern from a boolean mask, True attends: [q_len, k_len], or [batch, heads, q_len, k_len], where a batch or
    heads of 1 serves any number.

    The mask is a NumPy array, a tensor or nested lists, of bools or of the integers 0 and 1. Pass a sparse matrix to
    `from_csr` instead. Equal heads, empty tiles and equal tiles are detected, so a regular mask compiles to a small
    plan.

    Row i is query i. The pattern is for the sizes of the mask; calls with other sizes are refused. A square mask also
    serves fewer queries, which are its last rows, as for every pattern.

    >>> import numpy as np
    >>> print(from_dense(np.tri(2, 3, 1, dtype=bool)).picture(2, 3))
    # # .
    # # #
    >>> from_dense(np.zeros((2, 2)))
    Traceback (most recent call last):
    ...
    TypeError: from_dense: mask must be of bools, found float64; for an additive mask pass mask == 0
    """
    mask = _dense(mask)
    shape = tuple(mask.shape)
    if len(shape) == 2:
        mask = mask[None, None]
    elif len(shape) != 4 or 0 in shape[:2]:
        raise ValueError(
            f"from_dense: mask has shape {list(shape)}; expected [q_len, k_len] or [batch, heads, q_len, k_len]"
        )
    batch, heads, q_len, k_len = mask.shape
    entries = [[_from_matrix(head) for head in entry] for entry in mask]
    return imported("from_dense", entries, q_len, k_len, batch, heads)


def _dense(mask: Any) -> Any:
    """The mask as a dense array or tensor."""
    if isinstance(mask, (list, tuple)):
        from .._arrays import as_numpy

        try:
            return as_numpy(mask)
        except ValueError as error:
            raise ValueError("from_dense: mask has rows of different lengths; expected a matrix") from error
    if not hasattr(mask, "shape"):
        raise TypeError(
            f"from_dense: expected a NumPy array, a tensor or nested lists of bools, found {type(mask).__name__}"
        )
    found = _format_of(mask)
    if found is not None:
        dense, rows = ("to_dense()", "to_sparse_csr()") if hasattr(mask, "layout") else ("toarray()", "tocsr()")
        raise TypeError(
            f"from_dense: the matrix is sparse, in format {found}; expected a dense one: pass mask.{dense}, or use "
            f"from_csr(mask.{rows})"
        )
    return mask


def _from_matrix(matrix: Any) -> Pattern:
    import numpy as np

    from .._arrays import as_numpy
    from .tile_collector import TileCollector

    q_len, k_len = matrix.shape
    collector = TileCollector(q_len, k_len, _TILE, _TILE)
    for first in range(0, q_len, _BAND_ROWS):
        band = as_numpy(matrix[first : first + _BAND_ROWS])
        if band.dtype != np.bool_:
            if not np.issubdtype(band.dtype, np.integer):
                raise TypeError(
                    f"from_dense: mask must be of bools, found {band.dtype}; for an additive mask pass mask == 0"
                )
            if ((band != 0) & (band != 1)).any():
                raise ValueError("from_dense: mask has numbers other than 0 and 1; pass mask != 0")
            band = band.astype(np.bool_)
        collector.add_block(first, 0, band)
    return collector.pattern()


def from_csr(offsets: Any, keys: Any = None, *, k_len: int | None = None) -> Pattern:
    """A pattern from compressed sparse rows: query i attends to keys[offsets[i]:offsets[i + 1]], in any order.

    Row i is query i. Calls with other lengths are refused; a square matrix also serves fewer queries, which are its
    last rows.

    offsets, keys   arrays of any integer type; or one matrix in place of both: SciPy's csr_array, or torch's sparse_csr
                    tensor. Every stored element attends, whatever its value.
    k_len           the number of keys. By default that of the matrix, or as many as queries

    >>> print(from_csr([0, 1, 3], [0, 0, 1]).picture(2))
    # .
    # #
    >>> print(from_csr([0, 1, 3], [0, 0, 3], k_len=4).picture(2, 4))
    # . . .
    # . . #
    """
    if keys is None:
        offsets, keys, shape = _parts_of("from_csr", offsets)
        k_len = shape[1] if k_len is None else k_len
    offsets, keys = _rows("from_csr", offsets, keys)
    q_len = len(offsets) - 1
    k_len = q_len if k_len is None else length_of("from_csr", "k_len", k_len)
    _check_keys("from_csr", keys, k_len, "keys", "pass k_len where there are more keys than queries")
    return imported("from_csr", [[csr(offsets, keys)]], q_len, k_len, 1, 1)


def from_bsr(
    offsets: Any,
    keys: Any = None,
    tile_q: Any = None,
    tile_k: Any = None,
    *,
    q_len: int | None = None,
    k_len: int | None = None,
) -> Pattern:
    """A pattern from block-sparse rows: query tile i attends to the key tiles keys[offsets[i]:offsets[i + 1]], in any
    order.

    Row 0 begins with query 0. Calls with other lengths are refused; a square matrix also serves fewer queries, which
    are its last rows.

    offsets, keys   arrays of any integer type; or one matrix in place of these and the tile: SciPy's bsr_array, or
                    torch's sparse_bsr tensor. Every stored tile attends, whatever its values.
    tile_q, tile_k  the queries and keys of a tile: a number, or an array with one size for each row or column of tiles
    q_len, k_len    the number of queries and keys. By default those of the matrix; else whole tiles of queries, and as
                    many keys as queries

    >>> print(from_bsr([0, 1, 2], [0, 1], 1, 2, k_len=4).picture(2, 4))
    # # . .
    . . # #
    >>> print(from_bsr([0, 1, 3], [1, 0, 1], [1, 2], [3, 1]).picture(3, 4))
    . . . #
    # # # #
    # # # #
    """
    if keys is None:
        matrix = offsets
        offsets, keys, shape = _parts_of("from_bsr", matrix)
        tile_q, tile_k = _tile_of(matrix)
        q_len, k_len = (given if given is not None else own for given, own in zip((q_len, k_len), shape, strict=True))
    if tile_q is None or tile_k is None:
        raise TypeError("from_bsr: tile_q and tile_k must be given with offsets and keys")
    if isinstance(tile_q, Iterable) or isinstance(tile_k, Iterable):
        from .variable_blocks import from_variable_blocks

        return from_variable_blocks(*_rows("from_bsr", offsets, keys), tile_q, tile_k, q_len, k_len)
    tile_q, tile_k = length_of("from_bsr", "tile_q", tile_q), length_of("from_bsr", "tile_k", tile_k)
    if tile_q == 0 or tile_k == 0:
        raise ValueError(f"from_bsr: the tile is {tile_q} x {tile_k}; both sides must be 1 or more")
    offsets, keys = _rows("from_bsr", offsets, keys)
    most_q = (len(offsets) - 1) * tile_q
    q_len = most_q if q_len is None else length_of("from_bsr", "q_len", q_len)
    if not most_q - tile_q < q_len <= most_q:
        raise ValueError(f"from_bsr: {len(offsets) - 1} rows of {tile_q} queries do not fit q_len {q_len}")
    k_len = q_len if k_len is None else length_of("from_bsr", "k_len", k_len)
    hint = "pass k_len where there are more keys than queries"
    _check_keys("from_bsr", keys, -(-k_len // tile_k), f"tiles of {tile_k} keys", hint)
    return imported("from_bsr", [[tiles(tile_q, tile_k, offsets, keys)]], q_len, k_len, 1, 1)


def _rows(name: str, offsets: Any, keys: Any) -> tuple[Any, Any]:
    from .._arrays import integers

    offsets, keys = integers(name, "offsets", offsets), integers(name, "keys", keys)
    if len(offsets) == 0:
        raise ValueError(f"{name}: offsets is empty; expected one entry more than there are rows")
    return offsets, keys


def _check_keys(name: str, keys: Any, count: int, things: str, hint: str) -> None:
    if len(keys) and keys.max() >= count:
        raise ValueError(f"{name}: key {keys.max()} is listed, but there are {count} {things}; {hint}")


def _parts_of(name: str, matrix: Any) -> tuple[Any, Any, tuple[int, int]]:
    """Offsets, keys and shape of a matrix of SciPy or torch."""
    wanted, found = name.removeprefix("from_"), _format_of(matrix)
    if found not in (None, wanted):  # some formats have arrays with the same names and another meaning
        raise TypeError(f"{name}: the matrix is in format {found}, not {wanted}; {_way_out(wanted, found, matrix)}")
    if hasattr(matrix, "indptr") and hasattr(matrix, "indices"):
        return matrix.indptr, matrix.indices, matrix.shape
    if found == wanted and matrix.ndim == 2:
        return matrix.crow_indices(), matrix.col_indices(), tuple(matrix.shape)
    raise TypeError(
        f"{name}: expected offsets and keys, or one sparse matrix with indptr and indices (SciPy) or of torch's layout "
        f"sparse_{wanted}; found {type(matrix).__name__} alone"
    )


def _format_of(matrix: Any) -> str | None:
    """The format of a sparse matrix of SciPy or torch: csr, csc, bsr, ...; None for anything else."""
    layout = str(getattr(matrix, "layout", ""))
    if layout.startswith("torch.sparse_"):
        return layout.removeprefix("torch.sparse_")
    is_scipy = hasattr(matrix, "indptr") or hasattr(matrix, "tocsr")
    return getattr(matrix, "format", None) if is_scipy else None


def _way_out(wanted: str, found: str, matrix: Any) -> str:
    prefix = "to_sparse_" if hasattr(matrix, "layout") else "to"
    tile = "" if wanted == "csr" else "(tile_q, tile_k)"
    convert = f"pass matrix.{prefix}{wanted}({tile})"
    return f"use from_{found}, or {convert}" if f"from_{found}" in __all__ else convert


def _tile_of(matrix: Any) -> tuple[int, int]:
    if hasattr(matrix, "blocksize"):
        return matrix.blocksize  # type: ignore[no-any-return]
    if hasattr(matrix, "crow_indices"):
        return tuple(matrix.values().shape[-2:])
    raise TypeError(f"from_bsr: {type(matrix).__name__} has rows, but no tiles; use from_csr")
