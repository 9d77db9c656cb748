# python/keyhole/integrations/transformers/index_cache.py
"""Keys of an indexer in the cache of a model: behind the keys of the attention, in the same tensor. So whatever
transformers does with a cache (beams, cropping, windows, fixed lengths) is done with both.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["extended"]

Tensor = torch.Tensor


def extended(cache: Any, layer: int, k: Tensor, v: Tensor, index_k: Tensor | None = None) -> tuple[Tensor, ...]:
    """k and v, [batch, heads, length, head_dim], and index_k, [batch, groups, length, index_dim], with those of earlier
    tokens in front, as [batch, length, heads, head_dim]."""
    if index_k is None:
        return tuple(tensor.transpose(1, 2) for tensor in cache.update(k, v, layer))
    head_dim, groups, index_dim = k.shape[-1], index_k.shape[1], index_k.shape[-1]
    try:
        both, v = cache.update(torch.cat((k, _spread(index_k, k.shape[1]).to(k.dtype)), -1), v, layer)
    except RuntimeError as error:
        raise ValueError(
            f"keyhole: the cache of layer {layer} takes no keys of an indexer. It was begun in stage 'dense' or before "
            "use_selection, or has a fixed size for keys; begin with a new transformers.DynamicCache()"
        ) from error
    kept = both[..., head_dim:].transpose(1, 2).flatten(2)[..., : groups * index_dim]
    kept = kept.unflatten(-1, (groups, index_dim)).to(index_k.dtype)
    return both[..., :head_dim].transpose(1, 2), v.transpose(1, 2), kept


def _spread(index_k: Tensor, heads: int) -> Tensor:
    """index_k as parts of the keys of all heads, [batch, heads, length, ...], with zeros where it does not divide."""
    flat = index_k.transpose(1, 2).flatten(2)
    flat = torch.nn.functional.pad(flat, (0, -flat.shape[-1] % heads))
    return flat.unflatten(-1, (heads, -1)).transpose(1, 2)
