# python/keyhole/indexer.py
"""LightningIndexer: the small network that scores every key for every query, so that attention can run on the best."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from .index_inputs import hadamard, quantize_e4m3
from .pattern import as_integer
from .plan import PlanLike
from .select import select_keys

__all__ = ["IndexerInputs", "LightningIndexer", "Rope", "check_inputs", "checked_size", "rotated"]

Tensor = torch.Tensor
Rope = tuple[Tensor, Tensor]

LAYOUTS = ("interleaved", "half")


class IndexerInputs(NamedTuple):
    """What `select_keys` and `index_loss` take of an indexer."""

    q: Tensor  # [batch, index_heads, q_len, index_dim]
    k: Tensor  # [batch, groups, k_len, index_dim]
    w: Tensor  # [batch, index_heads, q_len], fp32
    k_scale: Tensor | None = None  # [batch, groups, k_len], fp32


class LightningIndexer(nn.Module):
    """Queries, keys and head weights of an indexer, made of the input of an attention layer.

    dim             the size of the input
    index_heads, index_dim
                    the number of its query heads, and their size
    rope_dim        how many dimensions of q and k are rotated, the first ones, if `rope` is passed to a call
    rope_layout     which dimensions form a pair: "interleaved" (2i and 2i + 1) or "half" (i and i + rope_dim / 2).
                    There is no default: checkpoints differ, and a wrong layout shows only in long texts
    hadamard        turns q and k by a Walsh-Hadamard transform; index_dim is then a power of two
    quantize        None, or "e4m3": q and k are rounded to 8 bits for the selection. The loss takes them unrounded
    groups          the number of key heads; each has its own lists. index_heads is a multiple of it
    context_dim     the size of the context, for cross-attention; dim by default

    Keys are normalised (LayerNorm with a bias, in fp32, eps 1e-6), and index_heads ** -0.5 * index_dim ** -0.5 is
    folded into w.

    >>> import torch
    >>> import keyhole
    >>> indexer = keyhole.nn.LightningIndexer(64, index_heads=4, index_dim=32)
    >>> x = torch.randn(2, 100, 64)
    >>> q, k, w, k_scale = indexer(x)
    >>> q.shape, k.shape, w.shape
    (torch.Size([2, 4, 100, 32]), torch.Size([2, 1, 100, 32]), torch.Size([2, 4, 100]))
    >>> indexer.select(x, top_k=8, visible="causal").shape
    torch.Size([2, 1, 100, 8])
    """

    def __init__(
        self,
        dim: int,
        index_heads: int = 64,
        index_dim: int = 128,
        *,
        rope_dim: int = 64,
        rope_layout: str | None = None,
        hadamard: bool = True,
        quantize: str | None = None,
        groups: int = 1,
        context_dim: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        context_dim = dim if context_dim is None else context_dim
        sizes = {
            "dim": dim, "index_heads": index_heads, "index_dim": index_dim, "groups": groups,
            "context_dim": context_dim,
        }  # fmt: skip
        for name, size in sizes.items():
            checked_size("LightningIndexer", name, size)
        rope_dim = as_integer(rope_dim, "LightningIndexer: rope_dim")
        if index_heads % groups != 0:
            raise ValueError(
                f"LightningIndexer: index_heads is {index_heads} and groups {groups}; expected index_heads a multiple "
                "of groups"
            )
        if rope_layout is not None:
            if rope_layout not in LAYOUTS:
                raise ValueError(
                    f"LightningIndexer: rope_layout is {rope_layout!r}; accepted are 'interleaved' and 'half'"
                )
            if rope_dim % 2 != 0 or not 2 <= rope_dim <= index_dim:
                raise ValueError(
                    f"LightningIndexer: rope_dim is {rope_dim}; expected an even number up to index_dim, {index_dim}"
                )
        if hadamard and index_dim & (index_dim - 1):
            raise ValueError(
                f"LightningIndexer: index_dim is {index_dim}, and the Hadamard transform takes powers of two; pass "
                "hadamard=False, or another index_dim"
            )
        if quantize not in (None, "e4m3"):
            raise ValueError(f"LightningIndexer: quantize is {quantize!r}; accepted are None and 'e4m3'")
        self.dim = dim
        self.index_heads = index_heads
        self.index_dim = index_dim
        self.rope_dim = rope_dim
        self.rope_layout = rope_layout
        self.hadamard = hadamard
        self.quantize = quantize
        self.groups = groups
        made = {"bias": False, "device": device, "dtype": dtype}
        self.context_dim = context_dim
        self.q_proj = nn.Linear(dim, index_heads * index_dim, **made)
        self.k_proj = nn.Linear(context_dim, groups * index_dim, **made)
        self.k_norm = nn.LayerNorm(index_dim, eps=1e-6, device=device, dtype=dtype)
        self.w_proj = nn.Linear(dim, index_heads, **made)

    def inputs(self, x: Tensor, context: Tensor | None = None, *, rope: Rope | None = None) -> IndexerInputs:
        """q, k and w before rounding, differentiable; what `index_loss` takes. Arguments as in `forward`."""
        check_inputs("LightningIndexer", x, context, self.dim, self.context_dim)
        context = x if context is None else context
        q = self.q_proj(x).unflatten(-1, (self.index_heads, self.index_dim))
        k = self.k_proj(context).unflatten(-1, (self.groups, self.index_dim))
        k = _normalised(k, self.k_norm).to(q.dtype)
        if rope is not None:
            if self.rope_layout is None:
                raise ValueError(
                    "LightningIndexer: rope was passed, and the layer was made without a rope_layout; make it with "
                    "rope_layout='interleaved' or 'half', as the model that gives the cosines does"
                )
            q = rotated(q, rope, self.rope_dim, self.rope_layout)
            k = rotated(k, rope, self.rope_dim, self.rope_layout)
        if self.hadamard:
            q, k = hadamard(q), hadamard(k)
        w = _wide(self.w_proj(x)) * (self.index_heads * self.index_dim) ** -0.5
        return IndexerInputs(q.transpose(1, 2), k.transpose(1, 2), w.transpose(1, 2))

    def quantized(self, inputs: IndexerInputs) -> IndexerInputs:
        """The inputs as the selection takes them: rounded if the layer has quantize="e4m3". They have no gradient."""
        if self.quantize is None:
            return IndexerInputs(*(None if x is None else x.detach() for x in inputs))
        (q, q_scale), (k, k_scale) = quantize_e4m3(inputs.q), quantize_e4m3(inputs.k)
        return IndexerInputs(q, k, inputs.w.detach() * q_scale, k_scale)

    def forward(self, x: Tensor, context: Tensor | None = None, *, rope: Rope | None = None) -> IndexerInputs:
        """(q, k, w, k_scale) for `keyhole.select_keys(q, k, w, k_scale=k_scale, ...)`.

        x           [batch, q_len, dim]
        context     [batch, k_len, dim]: what the keys are made of; x by default
        rope        (cos, sin) of the positions of the keys, [k_len, n] or [batch, k_len, n]; n is rope_dim / 2, or
                    rope_dim with each number twice: side by side for "interleaved", in two halves for "half". Tables
                    of transformers have two halves: pass table[..., : rope_dim // 2], which is right for both layouts.
                    With fewer queries than keys, the queries are the last positions
        """
        inputs = self.inputs(x, context, rope=rope)
        return inputs if self.quantize is None else self.quantized(inputs)

    @torch.no_grad()
    def select(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        top_k: int,
        rope: Rope | None = None,
        visible: PlanLike | None = None,
        always: PlanLike | None = None,
        return_counts: bool = False,
    ) -> Any:
        """The chosen keys, int32 [batch, groups, q_len, top_k]; see `keyhole.select_keys`."""
        q, k, w, k_scale = self(x, context, rope=rope)
        return select_keys(
            q, k, w, k_scale=k_scale, top_k=top_k, visible=visible, always=always, return_counts=return_counts
        )

    def extra_repr(self) -> str:
        text = f"{self.dim}, index_heads={self.index_heads}, index_dim={self.index_dim}"
        if self.rope_layout is not None:
            text += f", rope_dim={self.rope_dim}, rope_layout={self.rope_layout!r}"
        for name, default in (("hadamard", True), ("quantize", None), ("groups", 1)):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)!r}"
        return text


def checked_size(owner: str, name: str, size: Any) -> int:
    """A size that is an integer of 1 or more, or an error that names its owner."""
    size = as_integer(size, f"{owner}: {name}")
    if size < 1:
        raise ValueError(f"{owner}: {name} is {size}; expected 1 or more")
    return size


def check_inputs(owner: str, x: Any, context: Any, dim: int, context_dim: int) -> None:
    """Raises unless x is [batch, length, dim] and context, where there is one, [batch, length, context_dim]."""
    for name, given, size in (("x", x, dim), ("context", context, context_dim)):
        if given is None and name == "context":
            continue
        if not isinstance(given, Tensor):
            raise TypeError(f"{owner}: {name} is a {type(given).__name__}; accepted are torch tensors")
        if given.dim() != 3 or given.shape[-1] != size:
            raise ValueError(f"{owner}: {name} has shape {list(given.shape)}; expected [batch, length, {size}]")
    if context is not None and context.shape[0] != x.shape[0]:
        raise ValueError(
            f"{owner}: x has {x.shape[0]} batch entries and context {context.shape[0]}; they must be equal"
        )


def rotated(x: Tensor, rope: Rope, rope_dim: int, layout: str) -> Tensor:
    """x [batch, length, heads, dim] with its first rope_dim dimensions rotated. See LightningIndexer.forward."""
    cos, sin = (_of_pairs(table, x.shape[1], rope_dim, layout) for table in rope)
    turned, rest = x[..., :rope_dim], x[..., rope_dim:]
    a, b = turned.unflatten(-1, (-1, 2)).unbind(-1) if layout == "interleaved" else turned.chunk(2, -1)
    a, b = a * cos - b * sin, a * sin + b * cos
    turned = torch.stack((a, b), -1).flatten(-2) if layout == "interleaved" else torch.cat((a, b), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


def _of_pairs(table: Tensor, length: int, rope_dim: int, layout: str) -> Tensor:
    """One number for each pair, [batch or 1, length, 1, rope_dim / 2], of the last `length` positions."""
    pairs = rope_dim // 2
    twice = "side by side" if layout == "interleaved" else "in two halves"
    if table.dim() not in (2, 3) or table.shape[-1] not in (pairs, rope_dim) or table.shape[-2] < length:
        raise ValueError(
            f"rope: cosines and sines have shape {list(table.shape)}; expected [k_len, n] or [batch, k_len, n] for "
            f"{length} positions or more, where n is rope_dim / 2 = {pairs}, or {rope_dim} with each number twice, "
            f"{twice}, as the layout is {layout!r}"
        )
    if table.shape[-1] == rope_dim:
        table = table[..., ::2] if layout == "interleaved" else table[..., :pairs]
    table = table if table.dim() == 3 else table[None]
    return table[:, table.shape[1] - length :, None]


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _normalised(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    x = _wide(x)
    weight, bias = norm.weight.to(x.dtype), norm.bias.to(x.dtype)
    return nn.functional.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps)
