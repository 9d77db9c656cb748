# python/keyhole/splash.py
"""SplashAttention: attention in which every query keeps few keys, by alpha-entmax and top-K."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import nn

from .functional import attention
from .normalizer import ALL_KEYS, normalizer_of
from .pattern import as_integer

__all__ = ["SplashAttention"]

Tensor = torch.Tensor


class SplashAttention(nn.Module):
    """Causal attention whose weights are exactly 0 for most keys. It has no parameters.

    head_dim    the last dimension of Q and K
    alpha       1 (softmax) to 2 (sparsemax): the larger, the fewer keys a query keeps
    k_keep      at most this many keys for each query, those with the largest scores; None: no limit
    sm_scale    multiplies Q . K; head_dim ** -0.5 by default
    BLOCK_M, BLOCK_N
                tile sizes of the original SplashAttention. They change nothing: the library chooses tiles by cost

    >>> import torch
    >>> import keyhole
    >>> splash = keyhole.nn.SplashAttention(head_dim=64, alpha=1.5, k_keep=8)
    >>> Q, K, V = torch.randn(3, 2, 4, 100, 64)
    >>> splash(Q, K, V).shape
    torch.Size([2, 4, 100, 64])
    """

    def __init__(
        self,
        head_dim: int,
        alpha: float = 1.5,
        k_keep: int | None = None,
        sm_scale: float | None = None,
        *,
        BLOCK_M: int | None = None,  # noqa: N803
        BLOCK_N: int | None = None,  # noqa: N803
    ) -> None:
        super().__init__()
        self.head_dim = as_integer(head_dim, "SplashAttention: head_dim")
        if self.head_dim < 1:
            raise ValueError(f"SplashAttention: head_dim is {head_dim}; expected 1 or more")
        for name, size in (("BLOCK_M", BLOCK_M), ("BLOCK_N", BLOCK_N)):
            if size is not None and as_integer(size, f"SplashAttention: {name}") < 1:
                raise ValueError(f"SplashAttention: {name} is {size}; expected 1 or more, or None")
        self.alpha, keys = normalizer_of("SplashAttention", alpha, k_keep, "k_keep")
        self.k_keep = None if keys == ALL_KEYS else keys
        if sm_scale is not None and (isinstance(sm_scale, bool) or not isinstance(sm_scale, Real)):
            raise TypeError(
                f"SplashAttention: sm_scale is a {type(sm_scale).__name__}; accepted are numbers, and None for "
                "head_dim ** -0.5. To learn it, multiply Q by it and pass sm_scale=1.0"
            )
        self.sm_scale = sm_scale

    def forward(
        self,
        Q: Tensor,  # noqa: N803
        K: Tensor,  # noqa: N803
        V: Tensor,  # noqa: N803
        Q_idx: Tensor | None = None,  # noqa: N803
        K_idx: Tensor | None = None,  # noqa: N803
    ) -> Tensor:
        """Attention from Q [batch, heads, q_len, head_dim] to K and V [batch, kv_heads, k_len, ...].

        Key j is visible to query i if K_idx[j] <= Q_idx[i]. Both are integers, [length], [batch, length],
        [batch, heads, length] or [batch * heads, length], in any order; positions may repeat. Those of K may have as
        many heads as K. Without them, attention is causal, with the last query at the last key.
        """
        for name, given in (("Q", Q), ("K", K), ("V", V)):
            if not isinstance(given, Tensor):
                raise TypeError(
                    f"SplashAttention: {name} is a {type(given).__name__}; accepted are torch tensors. For NumPy "
                    "arrays call keyhole.attention with alpha and top_k"
                )
        if Q.dim() == 4 and Q.shape[-1] != self.head_dim:
            raise ValueError(
                f"SplashAttention: Q has head_dim {Q.shape[-1]}, and the layer was made for {self.head_dim}; pass that "
                f"many, or make it with head_dim={Q.shape[-1]}"
            )
        if (Q_idx is None and K_idx is None) or Q.dim() != 4 or K.dim() != 4:  # the latter for attention to refuse
            lists: Any = "causal"
        elif Q_idx is None or K_idx is None:
            given, missing = ("K_idx", "Q_idx") if Q_idx is None else ("Q_idx", "K_idx")
            raise ValueError(f"SplashAttention: {given} is given and {missing} is not; pass both, or neither")
        else:
            lists = _pattern_of(Q_idx, K_idx, Q, K)
        return attention(  # type: ignore[no-any-return]
            Q, K, V, lists, scale=self.sm_scale, alpha=self.alpha, top_k=self.k_keep
        )

    def extra_repr(self) -> str:
        text = f"{self.head_dim}, alpha={self.alpha}"
        if self.k_keep is not None:
            text += f", k_keep={self.k_keep}"
        return text if self.sm_scale is None else f"{text}, sm_scale={self.sm_scale}"


def _pattern_of(q_idx: Tensor, k_idx: Tensor, q: Tensor, k: Tensor) -> Any:
    if torch.compiler.is_compiling():
        from .torch_attention.uncompiled import pattern_of_positions as pattern_of_positions_uncompiled

        return pattern_of_positions_uncompiled(q_idx, k_idx, q, k)
    from .torch_attention.positions import pattern_of_positions

    return pattern_of_positions(q_idx, k_idx, q, k)
