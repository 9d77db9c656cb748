# python/keyhole/selection_cost.py
"""explain_selection: what choosing keys costs beside dense attention, with a name for every number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from . import _core
from .pattern import as_integer, as_pattern
from .plan import Plan, PlanLike, plan_for

__all__ = ["SelectionChange", "SelectionReport", "SelectionStep", "explain_selection"]

_RATES = ("flops_16bit", "flops_8bit", "memory", "gathered")


@dataclass(frozen=True)
class SelectionStep:
    """One step: what it computes and moves, and the least time that takes."""

    flops: float
    memory_bytes: float  # keys and values that are read from memory once
    gathered_bytes: float  # rows of lists, each read for its own query
    seconds: float  # the longest of the three at the rates of the GPU


@dataclass(frozen=True)
class SelectionChange:
    """One thing changed in the call, everything else as it is."""

    what: str  # "lists shared by 4 layers"
    speedup: float
    wins_from: int | None


@dataclass(frozen=True)
class SelectionReport:
    """What choosing keys costs; str() is the table that `keyhole plan --select` prints."""

    pattern: str  # of the visible keys
    is_causal: bool  # every query sees all keys up to its own; the last query, all
    all_pairs: int  # these three over batch entries and groups
    visible_pairs: int
    chosen_pairs: int
    indexer: SelectionStep  # where it runs; each layer that shares its lists pays its share
    chosen: SelectionStep  # attention over the chosen keys
    dense: SelectionStep  # attention over the visible keys
    is_dense_latent: bool  # latent heads: dense attention is cheaper in latent form
    choosing_seconds: float  # of a layer: its share of the indexer, and attention
    speedup: float  # of choosing over dense attention; below 1, dense is faster; 0: there is no work
    # From which size choosing is faster. If is_causal, a k_len, with which q_len grows if the two are equal; else how
    # many keys each query sees. None: never.
    wins_from: int | None
    changes: tuple[SelectionChange, ...]  # what would help, where it applies
    text: str
    json: str

    @classmethod
    def of(cls, row: dict[str, Any]) -> SelectionReport:
        steps = {name: SelectionStep(**row[name]) for name in ("indexer", "chosen", "dense")}
        changes = tuple(SelectionChange(**change) for change in row["changes"])
        return cls(**{**row, **steps, "changes": changes})

    def __str__(self) -> str:
        return self.text.rstrip("\n")

    def __repr__(self) -> str:
        shown = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.name not in ("text", "json"))
        return f"SelectionReport({', '.join(shown)})"


def explain_selection(
    q_len: int,
    k_len: int | None = None,
    *,
    top_k: int,
    q_heads: int,
    kv_heads: int | None = None,
    head_dim: int = 128,
    v_head_dim: int | None = None,
    latent_dim: int | None = None,
    rope_head_dim: int = 64,
    dtype: str = "bf16",
    index_heads: int = 64,
    index_dim: int = 128,
    index_dtype: str = "e4m3",
    groups: int = 1,
    shared_by: int = 1,
    batch: int = 1,
    visible: PlanLike = "causal",
    rates: Mapping[str, float] | None = None,
) -> SelectionReport:
    """What choosing top_k keys for every query costs beside dense attention over all visible keys: work, bytes, the
    least time of both on a GPU, and the length from which choosing is faster. Arithmetic on sizes; nothing runs.

    q_len, k_len    the number of queries and keys; k_len is q_len by default
    q_heads, kv_heads, head_dim, v_head_dim, dtype
                    of the attention, in "bf16" or "f16". kv_heads is q_heads by default, v_head_dim head_dim
    latent_dim, rope_head_dim
                    of latent heads, such as 512: all heads share one key of latent_dim + rope_head_dim, which lists are
                    gathered from. Dense attention may also run per head, with keys of head_dim + rope_head_dim
    index_heads, index_dim, index_dtype
                    of the indexer, in "e4m3", "bf16" or "f16". 0 heads: the lists come from elsewhere
    groups          how many lists a query has; a divisor of kv_heads
    shared_by       how many layers use the lists of one indexer
    visible         which keys a query may choose, and dense attention visits: a pattern, its text, or a plan
    rates           what the GPU does at best, per second: any of flops_16bit, flops_8bit, memory (bytes) and gathered
                    (bytes of short rows out of the cache). For those that are not given, an H200 is assumed

    Not counted: finding the best of the scores, projections, launches. Real kernels take longer.

    >>> import keyhole
    >>> report = keyhole.explain_selection(131072, top_k=2048, q_heads=32, kv_heads=8)
    >>> round(report.speedup, 2), report.wins_from // 1000
    (0.8, 202)
    >>> max(report.changes, key=lambda change: change.speedup).what
    'an indexer of 16 heads of 64 in e4m3'
    """
    chosen = as_integer(top_k, "explain_selection: top_k")
    if chosen < 1:
        raise ValueError(f"explain_selection: top_k is {chosen}; expected 1 or more keys for each query")
    if rates is not None and not isinstance(rates, Mapping):
        raise TypeError(
            f"explain_selection: rates is a {type(rates).__name__}; accepted is a dict, such as {{'memory': 3e12}}"
        )
    unknown = [name for name in rates or () if name not in _RATES]
    if unknown:
        raise ValueError(f"explain_selection: rates has {unknown[0]!r}; accepted are {', '.join(_RATES)}")
    q_len = as_integer(q_len, "explain_selection: q_len")
    k_len = q_len if k_len is None else as_integer(k_len, "explain_selection: k_len")
    batch = as_integer(batch, "explain_selection: batch")
    for name, size in (("q_len", q_len), ("k_len", k_len), ("batch", batch)):
        if size < 0:
            raise ValueError(f"explain_selection: {name} is {size}; it must not be negative")
    latent = 0 if latent_dim is None else latent_dim
    what = visible if isinstance(visible, Plan) else as_pattern(visible, "explain_selection: visible")
    return SelectionReport.of(
        _core.explain_selection(
            plan_for(what, q_len, k_len, batch, groups).core,
            batch,
            q_len,
            k_len,
            chosen,
            q_heads,
            (1 if latent else q_heads) if kv_heads is None else kv_heads,
            head_dim,
            head_dim if v_head_dim is None else v_head_dim,
            latent,
            rope_head_dim,
            dtype,
            index_heads,
            index_dim,
            index_dtype,
            groups,
            shared_by,
            *((rates or {}).get(name) for name in _RATES),
        )
    )
