# python/keyhole/way_out.py
"""Advice for errors: how to turn a value of another type into a pattern."""

from __future__ import annotations

from typing import Any

__all__ = ["way_to_pattern"]


def way_to_pattern(value: Any) -> str:
    """A sentence that names the function to call, or "" if none takes such a value.

    >>> import keyhole
    >>> way_to_pattern(keyhole.causal)
    'Call it: keyhole.causal()'
    >>> way_to_pattern([[True]])
    'Convert a boolean mask with keyhole.from_dense(mask)'
    >>> way_to_pattern(3)
    ''
    """
    if hasattr(value, "kv_indices") and hasattr(value, "mask_mod"):
        return "Convert a BlockMask with keyhole.from_block_mask(block_mask)"
    if callable(value):
        if getattr(value, "__module__", None) == "keyhole.leaves":
            return f"Call it: keyhole.{value.__name__}({'...' if value.__code__.co_argcount else ''})"
        return "Convert a function of (b, h, q_idx, kv_idx) with keyhole.from_mask_mod(function, q_len, k_len)"
    if type(value).__module__.startswith("xformers."):
        return "Convert an attention bias of xFormers with keyhole.from_xformers(bias)"
    if hasattr(value, "tocsr") or "sparse" in str(getattr(value, "layout", "")):
        return "Convert a sparse matrix with keyhole.from_csr(matrix) or from_bsr"
    if hasattr(value, "shape") or isinstance(value, (list, tuple)):
        return "Convert a boolean mask with keyhole.from_dense(mask)"
    return ""
