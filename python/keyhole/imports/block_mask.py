# python/keyhole/imports/block_mask.py
"""Conversion from and to torch's BlockMask. Its lists of blocks are used as they are; its mask_mod is called for the
partial blocks only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..pattern import Pattern, PatternLike, as_pattern
from ..plan import Plan
from .rows import imported, length_of

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["from_block_mask", "to_block_mask"]

_MOST_PAIRS = 1 << 22  # in one call of the mask_mod


def from_block_mask(block_mask: BlockMask) -> Pattern:
    """The pairs that `flex_attention` attends to with this BlockMask.

    The pattern is for the lengths, batch and heads of the mask; a batch or heads of 1 serves any number. Row i is query
    i. If the lengths are equal, a call with fewer queries uses the last rows. Convert a BlockMask before slicing it:
    slicing drops its mask_mod, which defines the partial blocks.
    """
    from .mask_evaluator import MaskEvaluator

    if not hasattr(block_mask, "kv_indices") or not hasattr(block_mask, "mask_mod"):
        raise TypeError(f"from_block_mask: expected torch's BlockMask, found {type(block_mask).__name__}")
    lists = _Lists(block_mask)
    evaluator = MaskEvaluator(block_mask.mask_mod, block_mask.kv_indices.device, _torch(), "from_block_mask")
    uses_batch, uses_heads = evaluator.uses(lists.batch, lists.heads)
    made: dict[Any, Pattern] = {}  # heads with equal lists share a pattern, unless the mask_mod tells them apart

    def one_head(b: int, h: int) -> Pattern:
        key = (lists.key(b, h), b if uses_batch else None, h if uses_heads else None)
        if key not in made:
            made[key] = lists.pattern(b, h, evaluator)
        return made[key]

    entries = [[one_head(b, h) for h in range(lists.heads)] for b in range(lists.batch)]
    return imported("from_block_mask", entries, lists.q_len, lists.k_len, lists.batch, lists.heads)


class _Lists:
    """The lists of a BlockMask, on the host and with the dimensions [batch, heads, ...]."""

    def __init__(self, mask: Any) -> None:
        self.q_len, self.k_len = mask.seq_lengths
        self.tile_q, self.tile_k = mask.BLOCK_SIZE
        self.partial = self._four(mask.kv_num_blocks, mask.kv_indices)
        has_full = mask.full_kv_num_blocks is not None
        self.full = self._four(mask.full_kv_num_blocks, mask.full_kv_indices) if has_full else None
        self.batch, self.heads = self.partial[0].shape[:2]

    @staticmethod
    def _four(counts: Any, indices: Any) -> tuple[Any, Any]:
        counts, indices = counts.cpu().numpy(), indices.cpu().numpy()
        missing = (1,) * (4 - indices.ndim)
        return counts.reshape(missing + counts.shape), indices.reshape(missing + indices.shape)

    def _tiles(self, lists: tuple[Any, Any] | None, b: int, h: int) -> tuple[Any, Any]:
        """Query tiles and key tiles of one head, in order."""
        import numpy as np

        if lists is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        counts, indices = lists[0][b, h], lists[1][b, h]
        q, place = np.nonzero(np.arange(indices.shape[1]) < counts[:, None])
        k = indices[q, place].astype(np.int64)
        inside = (q * self.tile_q < self.q_len) & (k * self.tile_k < self.k_len)
        return q[inside], k[inside]

    def key(self, b: int, h: int) -> tuple[bytes, ...]:
        return tuple(part.tobytes() for lists in (self.partial, self.full) for part in self._tiles(lists, b, h))

    def pattern(self, b: int, h: int, evaluator: Any) -> Pattern:
        import numpy as np

        from .tile_collector import TileCollector

        collector = TileCollector(self.q_len, self.k_len, self.tile_q, self.tile_k)
        collector.add_full(*self._tiles(self.full, b, h))
        q_tiles, k_tiles = self._tiles(self.partial, b, h)
        step = max(_MOST_PAIRS // (self.tile_q * self.tile_k), 1)
        for first in range(0, len(q_tiles), step):
            some = slice(first, first + step)
            q = q_tiles[some, None] * self.tile_q + np.arange(self.tile_q)
            k = k_tiles[some, None] * self.tile_k + np.arange(self.tile_k)
            # A function may use the indices to index tensors, so keep them inside the sequences.
            pairs = evaluator.evaluate(b, h, np.minimum(q, self.q_len - 1), np.minimum(k, self.k_len - 1))
            inside = (q < self.q_len)[:, :, None] & (k < self.k_len)[:, None, :]
            collector.add_tiles(q_tiles[some], k_tiles[some], pairs & inside)
        return collector.pattern()


def to_block_mask(
    pattern_or_plan: PatternLike | Plan,
    q_len: int | None = None,
    k_len: int | None = None,
    *,
    batch: int = 1,
    heads: int = 1,
    offset: int | None = None,
    device: Any = "cpu",
    block_size: int | tuple[int, int] = 128,
) -> BlockMask:
    """A BlockMask with the same pairs, for torch's `flex_attention`.

    A plan brings its own lengths, batch, heads and offset; with a pattern, pass them here. The lists of the BlockMask
    are the tile lists of the plan. Its mask_mod reads the plan's bitmaps, which are tensors on `device`. If all batch
    entries, or all heads, have the same pairs, that dimension has size 1.
    """
    torch = _torch()
    from torch.nn.attention.flex_attention import BlockMask

    if isinstance(pattern_or_plan, Plan):
        if q_len is not None or k_len is not None or offset is not None or (batch, heads) != (1, 1):
            raise TypeError("to_block_mask: a plan has its own lengths, batch, heads and offset; do not pass them")
        plan = pattern_or_plan
        if plan.pattern is None:
            raise ValueError("to_block_mask: this plan was loaded from a file that does not hold its pattern's arrays")
        pattern, q_len, k_len, offset = plan.pattern, plan.q_len, plan.k_len, plan.offset
        batch, heads = plan.batch, plan.heads
    else:
        pattern = as_pattern(pattern_or_plan, "to_block_mask: pattern")
        if q_len is None:
            raise TypeError("to_block_mask: q_len must be given with a pattern")
        q_len = length_of("to_block_mask", "q_len", q_len)
        k_len = q_len if k_len is None else length_of("to_block_mask", "k_len", k_len)
        batch, heads = (length_of("to_block_mask", *named, least=1) for named in (("batch", batch), ("heads", heads)))
    tile_q, tile_k = _tile_of(block_size)
    from .. import _core

    lists = _core.tile_lists(pattern.core, q_len, k_len, batch, heads, offset, tile_q, tile_k)
    dense = _DenseLists(lists, batch, heads, tile_q)
    counts = {name: torch.from_numpy(array).to(device) for name, array in dense.lists().items()}
    return BlockMask.from_kv_blocks(  # type: ignore[no-any-return]
        **counts,
        BLOCK_SIZE=(tile_q, tile_k),
        mask_mod=_mask_mod(
            torch.from_numpy(dense.names()).to(device), torch.from_numpy(dense.words()).to(device), dense.varies,
            tile_q, tile_k,
        ),
        seq_lengths=(q_len, k_len),
    )  # fmt: skip


def _tile_of(block_size: Any) -> tuple[int, int]:
    sides = tuple(block_size) if isinstance(block_size, Iterable) else (block_size, block_size)
    if len(sides) != 2:
        raise ValueError(f"to_block_mask: block_size has {len(sides)} sides; expected an int, or two for (q, k)")
    tile_q, tile_k = (length_of("to_block_mask", "block_size", side, least=1) for side in sides)
    return tile_q, tile_k


class _DenseLists:
    """Converts tile lists, stored once per group of equal heads, to the padded arrays of a BlockMask."""

    def __init__(self, lists: dict[str, Any], batch: int, heads: int, tile_q: int) -> None:
        import numpy as np

        self.q_tiles, self.k_tiles = lists["q_tiles"], lists["k_tiles"]
        self.tile_q, self.words_per_row = tile_q, lists["words_per_row"]
        self.offsets = np.frombuffer(lists["offsets"], np.int64)  # [groups * q_tiles + 1]
        self.keys = np.frombuffer(lists["keys"], np.int32)
        self.bitmap = np.frombuffer(lists["bitmap"], np.int32)  # of each key tile; -1 is full
        self.bitmaps = np.frombuffer(lists["bitmaps"], np.uint64)
        group_of = np.frombuffer(lists["group_of"], np.int32).reshape(batch, heads)
        self.varies = bool((group_of != group_of[:1]).any()), bool((group_of != group_of[:, :1]).any())
        self.group_of = group_of[: batch if self.varies[0] else 1, : heads if self.varies[1] else 1]
        counts = np.diff(self.offsets)
        self.lists_of = np.repeat(np.arange(len(counts)), counts)  # the list of each key tile
        self.groups = len(counts) // max(self.q_tiles, 1)

    def lists(self) -> dict[str, Any]:
        partial, full = self._padded(self.bitmap >= 0), self._padded(self.bitmap < 0)
        return {
            "kv_num_blocks": partial[0],
            "kv_indices": partial[1],
            "full_kv_num_blocks": full[0],
            "full_kv_indices": full[1],
        }

    def _padded(self, wanted: Any) -> tuple[Any, Any]:
        """[batch, heads, q_tiles] counts and [batch, heads, q_tiles, k_tiles] indices of the wanted tiles."""
        import numpy as np

        lists, keys = self.lists_of[wanted], self.keys[wanted]
        counts = np.bincount(lists, minlength=self.groups * self.q_tiles)
        places = np.arange(len(lists)) - np.repeat(np.cumsum(counts) - counts, counts)
        indices = np.zeros((self.groups * self.q_tiles, self.k_tiles), np.int32)
        indices[lists, places] = keys
        return (
            self._per_head(counts.astype(np.int32).reshape(self.groups, self.q_tiles)),
            self._per_head(indices.reshape(self.groups, self.q_tiles, self.k_tiles)),
        )

    def _per_head(self, grouped: Any) -> Any:
        """From [groups, ...] to [batch, heads, ...]. Heads that are in no group (-1) have no tiles."""
        import numpy as np

        empty = np.zeros((1, *grouped.shape[1:]), grouped.dtype)
        return np.concatenate([grouped, empty])[self.group_of]  # -1 takes the last row, which is empty

    def names(self) -> Any:
        """The tile at each place, [batch, heads, q_tiles, k_tiles]: 0 absent, 1 full, 2 and more a bitmap. Without the
        dimensions that do not vary."""
        import numpy as np

        names = np.zeros((self.groups * self.q_tiles, self.k_tiles), np.int32)
        names[self.lists_of, self.keys] = self.bitmap + 2
        per_head = self._per_head(names.reshape(self.groups, self.q_tiles, self.k_tiles))
        drop = tuple(axis for axis in (0, 1) if not self.varies[axis])
        return np.squeeze(per_head, axis=drop)

    def words(self) -> Any:
        """Bitmaps [2 + bitmaps, tile_q, words] in words of 32 bits, lowest column first. The first two are an empty and
        a full tile."""
        import numpy as np

        shape = (-1, self.tile_q, self.words_per_row * 2)
        words = self.bitmaps.view(np.int32).reshape(shape)
        ends = np.zeros((2, *words.shape[1:]), np.int32)
        ends[1] = -1
        return np.concatenate([ends, words])


def _mask_mod(names: Any, words: Any, varies: tuple[bool, bool], tile_q: int, tile_k: int) -> Any:
    def plan_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        place = [index for index, is_used in zip((b, h), varies, strict=True) if is_used]
        place += [q_idx // tile_q, kv_idx // tile_k]
        name = names[tuple(place)]
        column = kv_idx % tile_k
        return (words[name, q_idx % tile_q, column // 32] >> (column % 32)) & 1 == 1

    return plan_mask


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise ImportError("keyhole: block masks need torch, which cannot be imported here; install torch") from None
    return torch
