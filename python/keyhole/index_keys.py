# python/keyhole/index_keys.py
"""The keys of an index loss: which are taken, and how many an entry of the indexer stands for."""

from __future__ import annotations

from typing import Any

from .lists import KeyLists, TileLists, _described, _is_array, is_tensor
from .pattern import Pattern, as_integer
from .plan import Plan
from .way_out import way_to_pattern

__all__ = ["check_keys", "size_of_entry"]


def check_keys(function: str, keys: Any, index_q: Any) -> None:
    """Raises if `keys` is no pattern, text, plan, or key indices in an array or a tensor, as index_q is."""
    if isinstance(keys, (Pattern, Plan, str)):
        return
    indices = keys.indices if isinstance(keys, KeyLists) else keys
    if is_tensor(indices) or _is_array(indices):
        if is_tensor(indices) != is_tensor(index_q):
            name = "keys.indices" if isinstance(keys, KeyLists) else "keys"
            way = f"{name}.numpy(force=True)" if is_tensor(indices) else f"torch.from_numpy({name}).to(index_q.device)"
            mask = "" if isinstance(keys, KeyLists) else ", or keyhole.from_dense(keys) if it is a boolean mask"
            raise TypeError(
                f"{function}: {name} is {_described(indices)}, and index_q {_described(index_q)}; pass {way}{mask}"
            )
        return
    raise TypeError(
        f"{function}: keys is {_described(keys)}; accepted are a pattern, its text, a plan, key indices [batch, heads, "
        "q_len, entries] (int32 or int64, a NumPy array or a torch tensor as index_q is), and keyhole.KeyLists. "
        f"{_way(keys)}".rstrip()
    )


def size_of_entry(function: str, keys: Any, keys_per_entry: Any) -> int:
    """How many keys an entry of the indexer stands for: by default as many as an entry of the lists names."""
    if keys_per_entry is None:
        return keys.keys_per_entry if isinstance(keys, KeyLists) else 1
    size = as_integer(keys_per_entry, f"{function}: keys_per_entry")
    if size < 1:
        raise ValueError(f"{function}: keys_per_entry is {size}; accepted are 1 and more")
    return size


def _way(keys: Any) -> str:
    if isinstance(keys, TileLists):
        return "Pass the pattern or plan that the tiles were made from, or list keys with keyhole.KeyLists"
    return way_to_pattern(keys)
