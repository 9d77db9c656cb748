# python/keyhole/torch_attention/positions.py
"""Patterns from the position tensors that SplashAttention takes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ..cache import Cache
from ..leaves import at
from ..pattern import Pattern
from .read_masks import ReadMasks

__all__ = ["pattern_of_positions"]

Tensor = torch.Tensor
Positions = npt.NDArray[np.int64]

_read_positions: ReadMasks[Positions] = ReadMasks()
_patterns: Cache[tuple[Positions, Positions, Pattern]] = Cache(capacity=16)


def pattern_of_positions(q_idx: Tensor, k_idx: Tensor, batch: int, heads: int) -> Pattern:
    """The pattern of positions. Tensors that have not changed since the last call are not read again."""
    q, k = _positions("Q_idx", q_idx, batch, heads), _positions("K_idx", k_idx, batch, heads)
    kept = _patterns.get((id(q), id(k)))
    if kept is not None:
        return kept[2]
    return _patterns.put((id(q), id(k)), (q, k, at(q, k, "causal")))[2]


def _positions(name: str, positions: Tensor, batch: int, heads: int) -> Positions:
    """Positions as [length], [batch, length] or [batch, heads, length]."""
    if not isinstance(positions, Tensor):
        raise TypeError(f"SplashAttention: {name} is a {type(positions).__name__}; expected a tensor of integers")
    if positions.dtype.is_floating_point or positions.dtype.is_complex or positions.dtype == torch.bool:
        raise TypeError(f"SplashAttention: {name} is {positions.dtype}; expected integers, such as torch.int64")
    shape = tuple(positions.shape)
    accepted = (shape[-1:], (batch, *shape[-1:]), (batch, heads, *shape[-1:]), (batch * heads, *shape[-1:]))
    if positions.dim() == 0 or shape not in accepted:
        raise ValueError(
            f"SplashAttention: {name} has shape {list(shape)}; for {batch} entries of {heads} heads expected [length], "
            f"[{batch}, length], [{batch}, {heads}, length] or [{batch * heads}, length]"
        )
    return _read_positions.read(positions, (batch, heads), lambda: _read(positions, batch, heads))


def _read(positions: Tensor, batch: int, heads: int) -> Positions:
    # What expand() repeats is read once, and is then one pattern for all entries and heads.
    strides = positions.stride()
    once = positions.detach()[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides[:-1])]
    read = once.cpu().to(torch.int64).numpy().copy()
    if read.ndim == 2 and read.shape[0] == batch * heads != batch:
        read = read.reshape(batch, heads, -1)
    return read
