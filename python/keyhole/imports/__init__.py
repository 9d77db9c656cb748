# python/keyhole/imports/__init__.py
"""Conversion of other libraries' masks to patterns: matrices, sequence offsets, mask functions and block masks. Block
masks are converted in both directions.

Query i is row i of an imported mask, also where there are fewer queries than keys. The pattern is for the lengths of
the mask, and for its batch and heads where they are more than 1. A call with other sizes is a ValueError, with one
exception: a square mask also serves fewer queries, which are its last rows, as for every pattern.
"""

from __future__ import annotations

from .block_mask import from_block_mask, to_block_mask
from .mask_mod import from_mask_mod
from .matrices import from_bsr, from_csr, from_dense
from .sequences import from_cu_seqlens
from .xformers_bias import from_xformers

__all__ = [
    "from_block_mask",
    "from_bsr",
    "from_csr",
    "from_cu_seqlens",
    "from_dense",
    "from_mask_mod",
    "from_xformers",
    "to_block_mask",
]
