# python/keyhole/index_keys.py
"""The error for keys that the index loss does not take."""

from __future__ import annotations

from typing import Any

from .lists import KeyLists, TileLists, _described, _is_array, is_tensor
from .pattern import Pattern
from .plan import Plan
from .way_out import way_to_pattern

__all__ = ["check_keys"]


def check_keys(function: str, keys: Any, index_q: Any) -> None:
    """Raises if `keys` is no pattern, text, plan, or key indices in an array or a tensor, as index_q is."""
    if isinstance(keys, (Pattern, Plan, str)):
        return
    if is_tensor(keys) or _is_array(keys):
        if is_tensor(keys) != is_tensor(index_q):
            way = "keys.numpy(force=True)" if is_tensor(keys) else "torch.from_numpy(keys).to(index_q.device)"
            raise TypeError(
                f"{function}: keys is {_described(keys)}, and index_q {_described(index_q)}; pass {way}, or "
                "keyhole.from_dense(keys) if it is a boolean mask"
            )
        return
    raise TypeError(
        f"{function}: keys is {_described(keys)}; accepted are a pattern, its text, a plan, and key indices [batch, "
        f"heads, q_len, entries] (int32 or int64, a NumPy array or a torch tensor as index_q is). {_way(keys)}".rstrip()
    )


def _way(keys: Any) -> str:
    if isinstance(keys, KeyLists) and keys.counts is None and keys.keys_per_entry == 1 and not keys.causal:
        return "Pass its indices"
    if isinstance(keys, (KeyLists, TileLists)):
        return "List single keys, with -1 in place of unused entries"
    return way_to_pattern(keys)
