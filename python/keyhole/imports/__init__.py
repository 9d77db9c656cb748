# python/keyhole/imports/__init__.py
"""Patterns from what other libraries keep: matrices, sequence offsets, mask functions and block masks; and back.

Everything here counts queries and keys from 0, as matrices do: query i is row i, also where there are fewer queries
than keys. A pattern is for the lengths that were imported, and for the batch and heads where they are more than 1; a
call with others is a ValueError. Of a square mask fewer queries are the last rows, as for every pattern.
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
