# python/keyhole/sdpa.py
"""A drop-in for torch.nn.functional.scaled_dot_product_attention, computed by Keyhole's kernels."""

from __future__ import annotations

import sys
from typing import Any

import torch

from .leaves import causal, dense
from .pattern import Pattern
from .torch_attention.attn_masks import pattern_of_mask
from .torch_attention.call import attention
from .torch_attention.encoded import Anchored
from .torch_attention.refusals import refuse_unreadable

__all__ = ["scaled_dot_product_attention"]

Tensor = torch.Tensor

# torch aligns masks at the top left: query 0 is at position 0, however many keys there are.
_TOP_LEFT = {True: Anchored(causal(), 0), False: Anchored(dense(), 0)}
_BOTTOM_RIGHT = causal()


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """A drop-in for `torch.nn.functional.scaled_dot_product_attention`.

    query, key, value
                [..., heads, length, head_dim], or [..., length, head_dim]; leading dimensions broadcast
    attn_mask   boolean, True attends, broadcastable to [..., heads, q_len, k_len]; or one of torch's causal biases,
                `causal_upper_left` and `causal_lower_right` of `torch.nn.attention.bias`
    is_causal   a causal mask aligned at the top left, as in torch: query i sees keys 0 ... i.
                `keyhole.attention(q, k, v, "causal")` aligns at the bottom right
    scale       multiplies q . k; head_dim ** -0.5 by default
    enable_gqa  required where key and value have fewer heads than query
    returns     [..., heads, q_len, v_head_dim]. Queries that attend to nothing get zeros

    A boolean mask is converted to a pattern. The conversion reads every pair, and copies a mask on a GPU to the host;
    a mask that is the same for all queries is cheap. The pattern is reused as long as the same tensor is passed
    unchanged. On the CPU the mask is compared with a copy to see this. On a GPU torch's version counter decides, which
    misses writes through `.data`: do not write to a mask that way. Under torch.compile a mask breaks the graph, and
    fullgraph=True refuses it. A pattern avoids all of this: `keyhole.attention(q, k, v, "causal & window(1023)")`.

    Dropout and additive masks are refused: a pattern says which pairs attend, and has no weights.

    >>> import torch
    >>> import keyhole
    >>> q, k, v = torch.randn(3, 1, 4, 64, 32)
    >>> out = keyhole.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> torch.allclose(out, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), atol=1e-5)
    True
    """
    if dropout_p != 0:
        raise NotImplementedError(
            f"scaled_dot_product_attention: dropout_p is {dropout_p}, and Keyhole has no dropout; pass 0.0, or use "
            "torch's function"
        )
    if not (
        isinstance(query, Tensor)
        and isinstance(key, Tensor)
        and isinstance(value, Tensor)
        and (torch.compiler.is_compiling() or _are_dense(query, key, value))
    ):
        _check_tensors(query=query, key=key, value=value)
    _check_shapes(query, key, value, enable_gqa)
    lead = query.shape[:-3]
    if lead != key.shape[:-3] or lead != value.shape[:-3]:
        lead = torch.broadcast_shapes(lead, key.shape[:-3], value.shape[:-3])
    q, k, v = (_four_dimensions(x, lead) for x in (query, key, value))
    if attn_mask is None:
        pattern: Any = _TOP_LEFT[bool(is_causal)]
    elif is_causal:
        raise ValueError(
            "scaled_dot_product_attention: attn_mask and is_causal=True were both passed; pass one, or combine both in "
            "attn_mask"
        )
    else:
        pattern = _pattern_of(attn_mask, (*lead, q.shape[1], q.shape[2], k.shape[2]))
    out = attention(q, k, v, pattern, scale=scale)
    return out.reshape(*query.shape[:-1], out.shape[3]) if query.dim() < 4 else out.reshape(*lead, *out.shape[1:])


def _are_dense(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether all have a plain shape. `attention` refuses the other kinds of tensors that kernels cannot read."""
    return query.layout is key.layout is value.layout is torch.strided and not (
        query.is_nested or key.is_nested or value.is_nested
    )


def _check_tensors(**tensors: Any) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"scaled_dot_product_attention: {name} is a {type(tensor).__name__}; expected a torch tensor. With "
                "NumPy arrays call keyhole.attention(q, k, v, pattern), or convert them by torch.from_numpy"
            )
    refuse_unreadable("scaled_dot_product_attention", **tensors)


def _check_shapes(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() < 2 or tensor.dim() != query.dim():
            raise ValueError(
                f"scaled_dot_product_attention: query has {query.dim()} dimensions and {name} {tensor.dim()}; expected "
                "the same number, two or more: [..., heads, length, head_dim]"
            )
    if not enable_gqa and query.dim() > 2 and query.shape[-3] != key.shape[-3]:
        raise ValueError(
            f"scaled_dot_product_attention: query has {query.shape[-3]} heads and key {key.shape[-3]}; pass "
            "enable_gqa=True if several query heads share a head of key and value"
        )


def _four_dimensions(tensor: Tensor, lead: tuple[int, ...]) -> Tensor:
    """[batch, heads, length, head_dim]: a view where the leading dimensions allow one."""
    if tensor.dim() == 4 and tensor.shape[:1] == lead:
        return tensor
    if tensor.dim() == 2:
        return tensor[None, None]
    if tensor.dim() == 3:
        return tensor[None]
    return tensor.expand(*lead, *tensor.shape[-3:]).flatten(0, -4)


def _pattern_of(attn_mask: Tensor, target: tuple[int, ...]) -> Anchored | Pattern:
    """The pattern of a mask that broadcasts to `target`, [..., heads, q_len, k_len]."""
    bias: Any = sys.modules.get("torch.nn.attention.bias")  # imported by any caller that passes a CausalBias
    if bias is not None and isinstance(attn_mask, bias.CausalBias):
        if not hasattr(attn_mask, "variant"):
            raise TypeError(
                "scaled_dot_product_attention: attn_mask is a CausalBias without its variant and lengths, which "
                "torch's clone() and to() do not copy; pass the original of causal_upper_left or causal_lower_right, "
                "which serves every device"
            )
        return _pattern_of_bias(attn_mask, attn_mask.variant == bias.CausalVariant.UPPER_LEFT, target)
    _check_tensors(attn_mask=attn_mask)
    if torch.compiler.is_compiling():
        from .torch_attention.uncompiled import pattern_of_mask as pattern_of_mask_uncompiled

        return pattern_of_mask_uncompiled(attn_mask, target)  # type: ignore[no-any-return]
    return pattern_of_mask(attn_mask, target)


def _pattern_of_bias(bias: Any, is_upper_left: bool, target: tuple[int, ...]) -> Anchored | Pattern:
    """The pattern of torch's CausalBias, which has no elements: it holds its lengths and the corner of its diagonal."""
    if (bias.seq_len_q, bias.seq_len_kv) != tuple(target[-2:]):
        name = "causal_upper_left" if is_upper_left else "causal_lower_right"
        raise ValueError(
            f"scaled_dot_product_attention: attn_mask is {name}({bias.seq_len_q}, {bias.seq_len_kv}), and the call has "
            f"{target[-2]} queries and {target[-1]} keys; pass {name}({target[-2]}, {target[-1]})"
        )
    return _TOP_LEFT[True] if is_upper_left else _BOTTOM_RIGHT
