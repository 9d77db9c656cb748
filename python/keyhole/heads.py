# python/keyhole/heads.py
"""The projections of an attention layer: GroupedHeads (multi-head, grouped-query) and LatentHeads (multi-head latent
attention). Both turn x and context into q, k and v, [batch, length, heads, head_dim], and the result back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import nn

from .indexer import LAYOUTS, Rope, rotated

__all__ = ["Grouped", "GroupedHeads", "LatentHeads", "Rotate"]

Tensor = torch.Tensor
Rotate: TypeAlias = Callable[[Tensor, Tensor], "tuple[Tensor, Tensor]"]
Three: TypeAlias = tuple[Tensor, Tensor, Tensor]


class Grouped:
    """The arithmetic of grouped-query heads, for a module that has their projections. q_norm and k_norm, where given,
    are applied to each head before positions are encoded."""

    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    o_proj: nn.Module
    q_norm: nn.Module | None
    k_norm: nn.Module | None
    head_dim: int
    scale: float | None

    def project(self, x: Tensor, context: Tensor, rope: Rope | None, rotate: Rotate | None, *, is_dense: bool) -> Three:
        """q, k and v. `rope` is for indexers: what encodes positions here is `rotate`."""
        q, k, v = (
            proj(given).unflatten(-1, (-1, self.head_dim))
            for proj, given in ((self.q_proj, x), (self.k_proj, context), (self.v_proj, context))
        )
        if self.q_norm is not None:
            q = self.q_norm(q)
        if self.k_norm is not None:
            k = self.k_norm(k)
        if rotate is not None:
            q, k = rotate(q, k)
        return q, k, v

    def output(self, out: Tensor, *, is_dense: bool) -> Tensor:
        return self.o_proj(out.flatten(-2))  # type: ignore[no-any-return]

    def sizes(self) -> dict[str, Any]:
        """In the words of explain_selection."""
        q_heads, kv_heads = (proj.out_features // self.head_dim for proj in (self.q_proj, self.k_proj))
        return {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": self.head_dim}


class GroupedHeads(Grouped, nn.Module):
    """num_heads query heads and num_kv_heads key and value heads, with projections of their own."""

    def __init__(
        self,
        dim: int,
        context_dim: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float | None,
        **options: Any,
    ) -> None:
        """options are those of nn.Linear."""
        super().__init__()
        self.q_proj = nn.Linear(dim, num_heads * head_dim, **options)
        self.k_proj = nn.Linear(context_dim, num_kv_heads * head_dim, **options)
        self.v_proj = nn.Linear(context_dim, num_kv_heads * head_dim, **options)
        self.o_proj = nn.Linear(num_heads * head_dim, dim, **options)
        self.q_norm = self.k_norm = None
        self.head_dim = head_dim
        self.scale = scale


class LatentHeads(nn.Module):
    """Multi-head latent attention. The keys and values of all heads are made of one latent vector for each token;
    beside it, one key of rope_head_dim is shared by all heads and carries the positions.

    dense   q, k and v of every head: head_dim + rope_head_dim, and v_head_dim. Cheaper where most pairs are visible
    chosen  the projections from the latent are moved to the query and the result. All heads then share one key of
            latent_dim + rope_head_dim, whose first part is the value: what a list of keys is gathered from
    """

    def __init__(
        self,
        dim: int,
        context_dim: int,
        num_heads: int,
        head_dim: int,
        *,
        latent_dim: int,
        rope_head_dim: int,
        v_head_dim: int,
        rope_layout: str | None,
        scale: float | None,
        **options: Any,
    ) -> None:
        super().__init__()
        if rope_layout is not None and rope_layout not in LAYOUTS:
            raise ValueError(f"LatentHeads: rope_layout is {rope_layout!r}; accepted are 'interleaved' and 'half'")
        self.num_heads, self.head_dim, self.v_head_dim = num_heads, head_dim, v_head_dim
        self.latent_dim, self.rope_head_dim, self.rope_layout = latent_dim, rope_head_dim, rope_layout
        self.scale = (head_dim + rope_head_dim) ** -0.5 if scale is None else scale
        self.q_proj = nn.Linear(dim, num_heads * (head_dim + rope_head_dim), **options)
        self.kv_down = nn.Linear(context_dim, latent_dim + rope_head_dim, **options)
        placed = {name: options[name] for name in ("device", "dtype") if name in options}
        self.kv_norm = nn.RMSNorm(latent_dim, eps=1e-6, **placed)
        self.kv_up = nn.Linear(latent_dim, num_heads * (head_dim + v_head_dim), **{**options, "bias": False})
        self.o_proj = nn.Linear(num_heads * v_head_dim, dim, **options)

    def project(self, x: Tensor, context: Tensor, rope: Rope | None, rotate: Rotate | None, *, is_dense: bool) -> Three:
        if rotate is not None:
            raise ValueError(
                "rotate: latent heads encode positions in the part of rope_head_dim; pass rope=(cos, sin) instead"
            )
        q = self.q_proj(x).unflatten(-1, (self.num_heads, -1))
        q, q_rope = q.split((self.head_dim, self.rope_head_dim), -1)
        latent, k_rope = self.kv_down(context).split((self.latent_dim, self.rope_head_dim), -1)
        latent, k_rope = self.kv_norm(latent), k_rope.unsqueeze(2)
        if rope is not None:
            if self.rope_layout is None:
                raise ValueError("rope was passed, and the layer was made without a rope_layout; pass one to it")
            q_rope = rotated(q_rope, rope, self.rope_head_dim, self.rope_layout)
            k_rope = rotated(k_rope, rope, self.rope_head_dim, self.rope_layout)
        k_up, v_up = self._up()
        if is_dense:
            k = torch.einsum("bsl,hdl->bshd", latent, k_up)
            v = torch.einsum("bsl,hdl->bshd", latent, v_up)
            return torch.cat((q, q_rope), -1), torch.cat((k, k_rope.expand(*k.shape[:3], -1)), -1), v
        q = torch.einsum("bthd,hdl->bthl", q, k_up)
        k = torch.cat((latent.unsqueeze(2), k_rope), -1)
        return torch.cat((q, q_rope), -1), k, k[..., : self.latent_dim]

    def output(self, out: Tensor, *, is_dense: bool) -> Tensor:
        if not is_dense:
            out = torch.einsum("bthl,hdl->bthd", out, self._up()[1])
        return self.o_proj(out.flatten(-2))

    def sizes(self) -> dict[str, Any]:
        """In the words of explain_selection."""
        return {
            "q_heads": self.num_heads,
            "head_dim": self.head_dim,
            "v_head_dim": self.v_head_dim,
            "latent_dim": self.latent_dim,
            "rope_head_dim": self.rope_head_dim,
        }

    def _up(self) -> tuple[Tensor, Tensor]:
        """[num_heads, head_dim, latent_dim] and [num_heads, v_head_dim, latent_dim]."""
        both = self.kv_up.weight.unflatten(0, (self.num_heads, -1))
        k_up, v_up = both.split((self.head_dim, self.v_head_dim), 1)
        return k_up, v_up
