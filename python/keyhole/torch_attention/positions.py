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


def pattern_of_positions(q_idx: Tensor, k_idx: Tensor, q: Tensor, k: Tensor) -> Pattern:
    """The pattern of positions, of the tokens of q and k. Tensors that have not changed since the last call are not
    read again."""
    batch, heads, kv_heads = q.shape[0], q.shape[1], k.shape[1]
    of_q = _positions("Q_idx", q_idx, batch, q.shape[2], (heads,), heads)
    of_k = _positions("K_idx", k_idx, batch, k.shape[2], (heads, kv_heads), heads)
    kept = _patterns.get((id(of_q), id(of_k)))
    if kept is not None:
        return kept[2]
    return _patterns.put((id(of_q), id(of_k)), (of_q, of_k, at(of_q, of_k, "causal")))[2]


def _positions(
    name: str, positions: Tensor, batch: int, length: int, of_heads: tuple[int, ...], heads: int
) -> Positions:
    """Positions as [length], [batch, length] or [batch, heads, length]. of_heads: how many heads they may be given for;
    those of key heads hold for all query heads that share one."""
    if not isinstance(positions, Tensor):
        raise TypeError(f"SplashAttention: {name} is a {type(positions).__name__}; expected a tensor of integers")
    if positions.dtype.is_floating_point or positions.dtype.is_complex or positions.dtype == torch.bool:
        raise TypeError(f"SplashAttention: {name} is {positions.dtype}; expected integers, such as torch.int64")
    shape = tuple(positions.shape)
    accepted = [(length,), (batch, length)]
    for n in dict.fromkeys(of_heads):
        accepted += [(batch, n, length), (batch * n, length)]
    if shape not in accepted:
        raise ValueError(
            f"SplashAttention: {name} has shape {list(shape)}; expected [length], [batch, length], [batch, heads, "
            f"length] or [batch * heads, length], here {_listed(accepted)}"
        )
    return _read_positions.read(positions, (batch, heads), lambda: _read(positions, batch, heads))


def _listed(shapes: list[tuple[int, ...]]) -> str:
    first, last = [str(list(shape)) for shape in shapes[:-1]], str(list(shapes[-1]))
    return f"{', '.join(first)} or {last}"


def _read(positions: Tensor, batch: int, heads: int) -> Positions:
    # What expand() repeats is read once, and is then one pattern for all entries and heads.
    strides = positions.stride()
    once = positions.detach()[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides[:-1])]
    read = once.cpu().to(torch.int64).numpy().copy()
    if read.ndim == 2 and read.shape[0] not in (1, batch):
        read = read.reshape(batch, read.shape[0] // batch, -1)
    if read.ndim == 3 and read.shape[1] not in (1, heads):
        read = read.repeat(heads // read.shape[1], 1)
    return read
