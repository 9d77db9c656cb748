# python/keyhole/nn.py
"""Modules: SparseAttention, an attention layer that follows a pattern; SplashAttention (splash.py); and layers that
choose their keys (deepseek.py, indexer.py, selecting_layers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from .deepseek import DeepSeekSparseAttention, SparseResult
from .functional import attention
from .indexer import IndexerInputs, LightningIndexer
from .pattern import Pattern, as_pattern
from .plan import Plan
from .selecting_layers import indexer_parameters, set_selection
from .splash import SplashAttention
from .torch_attention.refusals import refuse_learned

__all__ = [
    "DeepSeekSparseAttention",
    "IndexerInputs",
    "LightningIndexer",
    "SparseAttention",
    "SparseResult",
    "SplashAttention",
    "indexer_parameters",
    "set_patterns",
    "set_selection",
]

Tensor = torch.Tensor
Rotate = Callable[[Tensor, Tensor], "tuple[Tensor, Tensor]"]


class SparseAttention(nn.Module):
    """Multi-head attention over the pairs of a pattern: projections, attention, projection.

    embed_dim       the size of the input and the output
    num_heads       the number of query heads
    pattern         a pattern, its text, or a plan, which fixes the lengths. `set_patterns` gives each layer of a model
                    its own
    num_kv_heads    the number of key and value heads, a divisor of num_heads; num_heads by default
    head_dim        embed_dim // num_heads by default
    bias            whether the four projections have a bias
    sink            adds one learned logit per query head. A head can then give almost no weight to its keys
    scale, softcap, deterministic
                    as in `keyhole.attention`; they are not learned

    The pattern is configuration, not a parameter. `state_dict` holds the projections and the sink, so weights load into
    a layer with another pattern.

    >>> import torch
    >>> import keyhole
    >>> layer = keyhole.nn.SparseAttention(64, num_heads=4, num_kv_heads=2, pattern="causal & window(31)")
    >>> layer(torch.randn(2, 100, 64)).shape
    torch.Size([2, 100, 64])
    """

    pattern: Pattern | Plan

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        pattern: Pattern | Plan | str = "causal",
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        sink: bool = False,
        scale: float | None = None,
        softcap: float = 0.0,
        deterministic: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        refuse_learned("SparseAttention", scale=scale, softcap=softcap)
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads < 1 or num_kv_heads < 1 or num_heads % num_kv_heads != 0:
            raise ValueError(
                f"SparseAttention: num_heads is {num_heads} and num_kv_heads {num_kv_heads}; the first must be a "
                "multiple of the second"
            )
        if head_dim is None:
            if embed_dim % num_heads != 0:
                raise ValueError(
                    f"SparseAttention: embed_dim {embed_dim} is not a multiple of num_heads {num_heads}; pass "
                    "head_dim, or an embed_dim that is"
                )
            head_dim = embed_dim // num_heads
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.pattern = _pattern_or_plan(pattern)
        self.scale = scale
        self.softcap = softcap
        self.deterministic = deterministic
        made = {"bias": bias, "device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, num_heads * head_dim, **made)
        self.k_proj = nn.Linear(embed_dim, num_kv_heads * head_dim, **made)
        self.v_proj = nn.Linear(embed_dim, num_kv_heads * head_dim, **made)
        self.o_proj = nn.Linear(num_heads * head_dim, embed_dim, **made)
        # Kernels take it as fp32, whatever the dtype of the layer. A logit of 0 weighs as much as a key with score 0.
        self.sink = nn.Parameter(torch.zeros(num_heads, device=device, dtype=dtype)) if sink else None

    def forward(self, x: Tensor, context: Tensor | None = None, *, rotate: Rotate | None = None) -> Tensor:
        """Attention from x [batch, q_len, embed_dim] to context [batch, k_len, embed_dim], or to x itself.

        rotate(q, k) returns q and k with their positions encoded, for example by rotary embeddings. Both are
        [batch, length, heads, head_dim].
        """
        context = x if context is None else context
        q = self.q_proj(x).unflatten(-1, (self.num_heads, self.head_dim))
        k = self.k_proj(context).unflatten(-1, (self.num_kv_heads, self.head_dim))
        v = self.v_proj(context).unflatten(-1, (self.num_kv_heads, self.head_dim))
        if rotate is not None:
            q, k = rotate(q, k)
        out = attention(
            q,
            k,
            v,
            self.pattern,
            scale=self.scale,
            layout="bshd",
            softcap=self.softcap,
            sink=self.sink,
            deterministic=self.deterministic,
        )
        return self.o_proj(out.flatten(-2))

    def extra_repr(self) -> str:
        text = f"{self.embed_dim}, num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}"
        text += f", head_dim={self.head_dim}, pattern={self.pattern!r}"
        for name, default in (("scale", None), ("softcap", 0.0), ("deterministic", False)):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text + (", sink=True" if self.sink is not None else "")


def set_patterns(
    model: nn.Module,
    patterns: Sequence[Pattern | Plan | str] | Callable[[int], Pattern | Plan | str],
) -> None:
    """Gives each SparseAttention of a model its own pattern, in the order of `model.modules()`.

    patterns        one pattern per layer, or a function of the layer's index

    >>> import torch
    >>> import keyhole
    >>> model = torch.nn.Sequential(*(keyhole.nn.SparseAttention(16, 2) for _ in range(4)))
    >>> keyhole.nn.set_patterns(model, lambda layer: "causal" if layer % 4 == 3 else "causal & window(127)")
    >>> model[0].pattern, model[3].pattern
    (keyhole.parse('causal & window(127)'), keyhole.parse('causal'))
    """
    layers = [module for module in model.modules() if isinstance(module, SparseAttention)]
    chosen = [patterns(i) for i in range(len(layers))] if callable(patterns) else list(patterns)
    if len(chosen) != len(layers):
        raise ValueError(
            f"set_patterns: {len(chosen)} patterns for {len(layers)} SparseAttention layers; expected one for each"
        )
    for layer, pattern in zip(layers, map(_pattern_or_plan, chosen), strict=True):
        layer.pattern = pattern


def _pattern_or_plan(what: Pattern | Plan | str) -> Pattern | Plan:
    return what if isinstance(what, Plan) else as_pattern(what)
