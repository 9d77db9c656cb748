# python/keyhole/integrations/transformers/attention.py
"""The two functions that transformers calls, one to make a mask and one for attention; and set_pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from ...functional import attention
from ...pattern import Pattern, PatternLike, as_pattern
from ...plan import Plan
from ...torch_attention.read_masks import ReadMasks
from . import kept
from .layer_mask import LayerMask
from .layout import Layout
from .mask import Mask
from .mask_functions import pattern_of, sequences_of
from .padding import padding_of
from .traced_mask import TracedMask, make_traced_mask

__all__ = [
    "NAME",
    "is_self_attention",
    "lists_of_layer",
    "plan_without_trace",
    "refuse_unsupported",
    "register",
    "set_pattern",
]

NAME = "keyhole"

_read_matrices: ReadMasks[Mask] = ReadMasks()


def register() -> None:
    """Registers attn_implementation="keyhole" with transformers. Calling it again changes nothing."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, make_mask)


def set_pattern(model: Any, pattern_of_layer: Callable[[int], PatternLike | None] | PatternLike | None) -> None:
    """Gives every self-attention layer of `model` the pattern pattern_of_layer(layer_index), counted from 0. A pattern
    or its text in place of the function is for all layers.

    A pattern replaces the model's own mask, so include causal() where a layer must not see the future. Positions are
    those of the tokens, also during generation. Padding stays masked, and packed sequences stay separate. None restores
    the model's own mask.
    """
    if not (isinstance(model, torch.nn.Module) and hasattr(model, "config")):
        raise TypeError(
            f"set_pattern: {type(model).__name__} is no model of transformers, which have a config; for layers of "
            "keyhole.nn.SparseAttention use keyhole.nn.set_patterns"
        )
    implementation = getattr(model.config, "_attn_implementation", None)
    if implementation != NAME:
        raise ValueError(
            f"set_pattern: this model's attention is {implementation!r}, which does not take patterns; "
            f'call register() and model.set_attn_implementation("{NAME}") first'
        )
    layers = [module for module in model.modules() if is_self_attention(module)]
    if not layers:
        raise ValueError(f"set_pattern: {type(model).__name__} has no attention module with a layer_idx")
    for layer in layers:
        chosen = pattern_of_layer(layer.layer_idx) if callable(pattern_of_layer) else pattern_of_layer
        layer.keyhole_pattern = (
            None if chosen is None else as_pattern(chosen, f"set_pattern: the pattern of layer {layer.layer_idx}")
        )


def is_self_attention(module: torch.nn.Module) -> bool:
    has_index = isinstance(getattr(module, "layer_idx", None), int)
    return has_index and "Attention" in type(module).__name__ and not getattr(module, "is_cross_attention", False)


def _breaks_graph(reason: str) -> Any:
    """A decorator: torch.compile calls the function without tracing it, and with fullgraph=True raises this reason."""
    try:
        return torch.compiler.disable(reason=reason)
    except TypeError:  # torch 2.6 takes no reason
        return torch.compiler.disable()


def make_mask(
    batch_size: int,
    q_length: int | None = None,
    kv_length: int = 0,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: torch.Tensor | None = None,
    cache_position: torch.Tensor | None = None,
    device: Any = "cpu",
    **_: Any,
) -> LayerMask:
    """transformers calls this once for each kind of mask in a forward pass, and passes the result to the layers.

    Releases before 5 pass `cache_position` in place of q_length and q_offset.
    """
    if cache_position is not None:
        q_length, q_offset = len(cache_position), cache_position[0]
    if q_length is None or mask_function is None:
        raise TypeError(
            "keyhole: this release of transformers makes masks with arguments that are not supported; expected "
            "mask_function, and q_length or cache_position. Try another release, from 4.56 on"
        )
    if torch.compiler.is_compiling():
        if not isinstance(q_offset, torch.Tensor):
            layout = Layout(batch_size, q_length, kv_length, q_offset, kv_offset)
            traced = make_traced_mask(layout, mask_function, attention_mask)
            if traced is not None:
                return traced
        return _made_without_trace(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, device
        )  # type: ignore[no-any-return]
    return _made(batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, device)


def _made(
    batch: int,
    q_length: int,
    kv_length: int,
    q_offset: Any,
    kv_offset: int,
    function: Callable[..., Any],
    attention_mask: torch.Tensor | None,
    device: Any,
) -> Mask:
    layout = Layout(batch, int(q_length), int(kv_length), int(q_offset), int(kv_offset))
    pattern = pattern_of(function, layout, device)
    return Mask(layout, pattern, padding_of(attention_mask, layout), sequences_of(function, layout))


_made_without_trace = _breaks_graph(
    "keyhole: a mask that torch.compile cannot trace: one of a static cache, whose position is known only when the "
    "graph runs, or of a mask function that is not one of transformers' causal, sliding-window, bidirectional and "
    "packed ones. Compile without fullgraph=True"
)(_made)


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention of one layer. query, key, value: [batch, heads, length, head_dim]; result: [batch, length, heads,
    head_dim]."""
    refuse_unsupported(module, dropout, kwargs)
    lists = lists_of_layer(
        module, attention_mask, Layout.of(query, key), query.shape[1], {**kwargs, "is_causal": is_causal}
    )
    out = attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        lists,
        scale=scaling,
        layout="bshd",
        softcap=softcap or 0.0,
        sink=None if s_aux is None else s_aux.float(),
    )
    return out, None


def lists_of_layer(module: torch.nn.Module, mask: Any, layout: Layout, heads: int, kwargs: dict[str, Any]) -> Any:
    """What a layer attends to: a plan for this number of heads, or what keyhole.attention takes while torch.compile
    traces. mask: a LayerMask, a tensor of four dimensions, or None."""
    own = getattr(module, "keyhole_pattern", None)
    if mask is None:
        mask = _mask_without_tensor(module, layout, kwargs.get("is_causal"))
    if not torch.compiler.is_compiling():
        return _plan(mask, layout, heads, own, kwargs)
    if isinstance(mask, TracedMask) and _is_traceable(mask, own, kwargs):
        mask.check_fits(layout)
        return mask.lists(own)
    return plan_without_trace(mask, layout, heads, own, kwargs)


def _plan(mask: Any, layout: Layout, heads: int, own: Pattern | None, kwargs: dict[str, Any]) -> Plan:
    """The plan of a layer that is not compiled. mask: a LayerMask, or a tensor of four dimensions."""
    if isinstance(mask, TracedMask):
        mask = mask.untraced()
    elif isinstance(mask, torch.Tensor):
        mask = _read_matrices.read(mask, layout, lambda: Mask.from_matrix(layout, mask))
    return mask.plan(layout, heads, own, kwargs)


plan_without_trace = _breaks_graph(
    "keyhole: a mask that torch.compile cannot trace: one that was made outside of the compiled function, a tensor of "
    "four dimensions, sequences packed by cu_seq_lens_q, or a pattern of set_pattern with a cache that has dropped "
    "tokens. Compile without fullgraph=True"
)(_plan)


def _is_traceable(mask: TracedMask, own: Pattern | None, kwargs: dict[str, Any]) -> bool:
    return kwargs.get("cu_seq_lens_q") is None and (own is None or mask.layout.kv_offset == 0)


def refuse_unsupported(module: torch.nn.Module, dropout: float, kwargs: dict[str, Any]) -> None:
    if dropout > 0:
        raise NotImplementedError(
            f"keyhole: attention dropout is {dropout}, and Keyhole has no dropout; call model.eval(), or set "
            "attention_dropout to 0 in the model's config"
        )
    if kwargs.get("output_attentions") or getattr(getattr(module, "config", None), "output_attentions", False):
        raise NotImplementedError(
            "keyhole: output_attentions=True was passed, and Keyhole never stores attention weights; "
            'use attn_implementation="eager" to get them'
        )
    for name, what in (("position_bias", "an additive bias"), ("cache", "a paged cache")):
        if kwargs.get(name) is not None:
            raise NotImplementedError(f'keyhole: {name} was passed, {what}; use attn_implementation="eager"')


def _mask_without_tensor(module: torch.nn.Module, layout: Layout, is_causal: bool | None) -> LayerMask:
    """The mask for a model that passed none, and did not call `make_mask`."""
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    is_causal = is_causal and layout.q_length > 1
    if is_causal and layout.q_length != layout.kv_length:
        raise ValueError(
            f"keyhole: this model passed no mask for {layout.q_length} queries and {layout.kv_length} keys, and it is "
            "unknown at which end a causal mask is aligned; pass an attention_mask"
        )
    if torch.compiler.is_compiling():
        return TracedMask(layout, "causal" if is_causal else "dense", None, None)
    return Mask(layout, kept.causal() if is_causal else kept.dense())
