"""What the tests of tile lists share: lists drawn at random, in NumPy, and what they say, pair by pair.

Knows nothing of keyhole, so that the two can disagree.
"""

from __future__ import annotations

import numpy as np

SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 150, "k_len": 201}
FORMS = ["tiles", "counts", "bitmaps", "everything"]


def draw_lists(form="tiles", tile=(64, 64), list_heads=2, capacity=5, seed=0, repeats=True, dtype=np.int64, **sizes):
    """The arguments of TileLists: tiles in no order, some named twice, -1 anywhere, and one list of nothing else."""
    sizes = {**SIZES, **sizes}
    rng = np.random.default_rng(seed)
    rows, columns = tile
    q_tiles, k_tiles = -(-sizes["q_len"] // rows), -(-sizes["k_len"] // columns)
    shape = (sizes["batch"], list_heads, q_tiles, capacity)
    tiles = rng.integers(0, k_tiles, shape)
    if not repeats:
        tiles[...] = -1
        different = np.argsort(rng.random((*shape[:3], k_tiles)))[..., :capacity]
        tiles[..., : different.shape[-1]] = different
    tiles[rng.random(shape) < 0.2] = -1
    tiles[-1, -1, q_tiles // 2] = -1
    lists = {"tiles": tiles.astype(dtype), "tile": tile}
    if form in ("counts", "everything"):
        lists["counts"] = rng.integers(0, capacity + 1, shape[:3]).astype(dtype)
    if form in ("bitmaps", "everything"):
        lists["bitmap_of"] = rng.integers(-1, 3, shape).astype(dtype)
        lists["bitmaps"] = rng.random((3, rows, columns)) < 0.4
    return lists


def pairs_of(lists, heads, q_len, k_len):
    """[batch, heads, q_len, k_len]: how often each query names each key."""
    tiles, (rows, columns) = lists["tiles"], lists["tile"]
    batch, list_heads, q_tiles, capacity = tiles.shape
    k_tiles = -(-k_len // columns)
    pairs = np.zeros((batch, heads, q_tiles * rows, k_tiles * columns))
    for b, h, i in np.ndindex(batch, heads, q_tiles):
        at = (b, h // (heads // list_heads), i)
        for entry in range(lists["counts"][at] if "counts" in lists else capacity):
            tile = tiles[(*at, entry)]
            bitmap = lists["bitmap_of"][(*at, entry)] if "bitmap_of" in lists else -1
            if tile >= 0:
                corner = (b, h, slice(i * rows, (i + 1) * rows), slice(tile * columns, (tile + 1) * columns))
                pairs[corner] += 1 if bitmap < 0 else lists["bitmaps"][bitmap]
    return pairs[:, :, :q_len, :k_len]
