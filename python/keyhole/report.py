# python/keyhole/report.py
"""The result of `plan.explain()`, with a name for every number."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

__all__ = ["PartReport", "Report"]


@dataclass(frozen=True)
class PartReport:
    """One part of a plan: the pairs that are listed in one form."""

    form: str  # "tiles" or "gather"
    stride: int  # > 1: compiled inside residue classes modulo stride
    pairs: int  # pairs that attend, over all heads and batch entries
    groups: int  # distinct lists of heads
    heads: int  # (batch entry, head) combinations that have this part
    tiles: int  # form "tiles": visited, over all heads
    full_tiles: int
    partial_tiles: int
    grid_tiles: int  # as many as dense attention would visit
    runs: int  # form "tiles": stored runs of neighbouring tiles
    bitmaps: int
    bitmap_bytes: int
    lists: int  # form "gather": stored lists
    keys: int  # in these lists
    visited_pairs: int  # pairs a kernel computes for this part, attending or not


@dataclass(frozen=True)
class Report:
    """The cost of a plan in numbers; str() is the table that `keyhole plan` prints."""

    pattern: str
    tile: tuple[int, int]
    parts: tuple[PartReport, ...]
    pairs: int
    all_pairs: int
    visited_pairs: int
    waste: float  # the share of visited pairs that do not attend
    flops_forward: float  # 4 * pairs * head_dim
    flops_backward: float  # 10 * pairs * head_dim
    flops_per_token: float  # forward, of all heads
    dense_flops_forward: float
    bytes_moved: float  # q, k, v read once per list that visits them, out and lse written
    # Over dense attention of the same shape in tiles of the same shape, by the pairs that both visit; 0 if none are.
    predicted_speedup: float
    compile_ms: float
    plan_bytes: int
    draws_pair_by_pair: bool  # the compiler had to evaluate every pair, because of a lambda
    runs: tuple[str, str]  # what would run, forward and backward: kernel, tiles, schedule, workspace
    text: str
    json: str

    @classmethod
    def of(cls, row: dict[str, Any]) -> Report:
        parts = tuple(PartReport(**part) for part in row["parts"])
        return cls(**{**row, "parts": parts})

    def __str__(self) -> str:
        return self.text.rstrip("\n")

    def __repr__(self) -> str:
        shown = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.name not in ("text", "json", "parts"))
        return f"Report({', '.join(shown)})"
