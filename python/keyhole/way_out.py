# python/keyhole/way_out.py
"""For what was passed where a pattern belongs: the function that makes a pattern of it."""

from __future__ import annotations

from typing import Any

__all__ = ["way_to_pattern"]


def way_to_pattern(value: Any) -> str:
    """A sentence, or nothing where no function takes such a value.

    >>> import keyhole
    >>> way_to_pattern(keyhole.causal)
    'Call it: keyhole.causal()'
    >>> way_to_pattern([[True]])
    'A boolean mask becomes a pattern by keyhole.from_dense(mask)'
    >>> way_to_pattern(3)
    ''
    """
    if hasattr(value, "kv_indices") and hasattr(value, "mask_mod"):
        return "A BlockMask becomes a pattern by keyhole.from_block_mask(block_mask)"
    if callable(value):
        if getattr(value, "__module__", None) == "keyhole.leaves":
            return f"Call it: keyhole.{value.__name__}({'...' if value.__code__.co_argcount else ''})"
        return "A function of (b, h, q_idx, kv_idx) becomes a pattern by keyhole.from_mask_mod(function, q_len, k_len)"
    if type(value).__module__.startswith("xformers."):
        return "An attention bias of xFormers becomes a pattern by keyhole.from_xformers(bias)"
    if hasattr(value, "tocsr") or "sparse" in str(getattr(value, "layout", "")):
        return "A sparse matrix becomes a pattern by keyhole.from_csr(matrix), or from_bsr"
    if hasattr(value, "shape") or isinstance(value, (list, tuple)):
        return "A boolean mask becomes a pattern by keyhole.from_dense(mask)"
    return ""
