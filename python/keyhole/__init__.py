# python/keyhole/__init__.py
"""Attention only where it matters: a pattern, a plan, a kernel.

>>> import numpy as np
>>> import keyhole
>>> pattern = keyhole.causal() & (keyhole.window(63) | keyhole.sinks(4))
>>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 256, 32), dtype=np.float32)
>>> keyhole.attention(q, k, v, pattern).shape
(1, 2, 256, 32)

Importing keyhole imports neither torch nor NumPy, and touches no GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _core
from .functional import attention, attention_backward, gather_attention, gather_attention_backward, merge
from .imports import (
    from_block_mask,
    from_bsr,
    from_csr,
    from_cu_seqlens,
    from_dense,
    from_mask_mod,
    from_xformers,
    to_block_mask,
)
from .index_inputs import hadamard, quantize_e4m3
from .leaves import (
    at,
    bigbird,
    bitmaps,
    blocks,
    causal,
    csr,
    dense,
    dilated,
    documents,
    exponential,
    fixed,
    global_,
    global_at,
    grid,
    longformer,
    mask,
    neighborhood,
    packed,
    per_batch,
    per_head,
    prefix,
    random,
    sinks,
    streaming,
    strided,
    tiles,
    tree,
    volume,
    volume_neighborhood,
    window,
)
from .lists import KeyLists, TileLists
from .pattern import Pattern, parse
from .plan import Plan, plan, plan_cache
from .select import index_loss, index_loss_backward, index_scores, select_keys, top_k
from .selection_cost import explain_selection

if TYPE_CHECKING:
    from . import nn as nn
    from .sdpa import scaled_dot_product_attention as scaled_dot_product_attention

__version__ = _core.version()

__all__ = [
    "KeyLists",
    "Pattern",
    "Plan",
    "TileLists",
    "at",
    "attention",
    "attention_backward",
    "bigbird",
    "bitmaps",
    "blocks",
    "causal",
    "csr",
    "dense",
    "dilated",
    "documents",
    "explain_selection",
    "exponential",
    "fixed",
    "from_block_mask",
    "from_bsr",
    "from_csr",
    "from_cu_seqlens",
    "from_dense",
    "from_mask_mod",
    "from_xformers",
    "gather_attention",
    "gather_attention_backward",
    "global_",
    "global_at",
    "grid",
    "hadamard",
    "index_loss",
    "index_loss_backward",
    "index_scores",
    "longformer",
    "mask",
    "merge",
    "neighborhood",
    "packed",
    "parse",
    "per_batch",
    "per_head",
    "plan",
    "plan_cache",
    "prefix",
    "quantize_e4m3",
    "random",
    "select_keys",
    "sinks",
    "streaming",
    "strided",
    "tiles",
    "to_block_mask",
    "top_k",
    "tree",
    "volume",
    "volume_neighborhood",
    "window",
]


# Name -> module. Not in __all__, so that `from keyhole import *` works without torch.
_NEED_TORCH = {"nn": ".nn", "scaled_dot_product_attention": ".sdpa"}


def __getattr__(name: str) -> Any:
    """Loads the attributes that need torch on first use. Without torch they are missing, and hasattr() is False."""
    import importlib

    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_NEED_TORCH[name], __name__)
    except ImportError as error:
        raise AttributeError(
            f"keyhole.{name} needs torch, which cannot be imported here ({error}); install it: "
            "pip install 'keyhole[torch]'"
        ) from error
    return module if name == "nn" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NEED_TORCH})
