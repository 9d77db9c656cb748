# python/keyhole/torch_attention/restricted.py
"""The pattern that a Restricted (encoded.py) means, once its tensors have values."""

from __future__ import annotations

import torch

from ..imports.rows import joined
from ..leaves import packed
from ..pattern import Pattern
from .kept_keys import pattern_of_kept, sequence_lengths
from .read_masks import ReadMasks
from .tensors import INDEX_DTYPES

__all__ = ["restrict"]

Tensor = torch.Tensor

_read_kept: ReadMasks[Pattern | None] = ReadMasks()
_read_sequences: ReadMasks[list[list[int]] | None] = ReadMasks()


def restrict(pattern: Pattern, kept: Tensor | None, sequences: Tensor | None, q: Tensor, k: Tensor) -> Pattern:
    """The pattern that a Restricted means for these q and k, [batch, heads, length, head_dim]."""
    batch, q_len, k_len = q.shape[0], q.shape[2], k.shape[2]
    if sequences is not None:
        _check("sequences", sequences, (batch, k_len), INDEX_DTYPES)
        pattern = _inside(pattern, sequences, q_len)
    if kept is not None:
        _check("kept", kept, (batch, k_len), (torch.bool,))
        padding = _read_kept.read(kept, None, lambda: pattern_of_kept(kept, k_len))
        pattern = pattern if padding is None else pattern & padding
    return pattern


def _inside(pattern: Pattern, sequences: Tensor, q_len: int) -> Pattern:
    if q_len != sequences.shape[1]:
        raise ValueError(
            f"attention: {q_len} queries, and packed sequences of {sequences.shape[1]} keys; expected as many queries"
        )
    entries = _read_sequences.read(sequences, None, lambda: sequence_lengths(sequences))
    if entries is None:
        raise ValueError(
            "attention: a packed sequence is in two pieces; expected the tokens of each sequence beside each other"
        )
    if all(len(lengths) <= 1 for lengths in entries):
        return pattern
    return joined([[packed(lengths, lengths, pattern)] for lengths in entries])


def _check(name: str, tensor: Tensor, shape: tuple[int, int], dtypes: tuple[torch.dtype, ...]) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype not in dtypes:
        raise ValueError(
            f"attention: {name} is a tensor of {tensor.dtype} with shape {list(tensor.shape)}; expected "
            f"{' or '.join(map(str, dtypes))} with shape {list(shape)}, [batch, k_len]"
        )
