# python/keyhole/integrations/transformers/layer_parts.py
"""What an attention layer of transformers is made of, and whether SelectedAttention computes the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["refuse_other_layer", "rotary_dims", "rotation_of"]

_ROTATION = "apply_rotary_pos_emb"
_NEEDED = ("q_proj", "k_proj", "v_proj", "o_proj", "head_dim", "scaling")
_KNOWN = {*_NEEDED, "q_norm", "k_norm", "config", "layer_idx", "attention_dropout", "is_causal", "sliding_window"}
_COUNTS = {"num_heads", "num_attention_heads", "num_key_value_heads", "num_key_value_groups"}
# Parts that change nothing at these values.
_NEUTRAL = {
    "attn_logit_softcapping": None,
    "clip_qkv": None,
    "key_multiplier": 1.0,
    "qk_layernorm": False,
    "residual_dropout": 0.0,
    "use_qk_norm": False,
    "use_rope": True,
}
_GLOBALS = {_ROTATION, "ALL_ATTENTION_FUNCTIONS", "eager_attention_forward"}


def refuse_other_layer(module: Any) -> None:
    """Raises for a layer that computes something else than q, k and v, norms of their heads, rotary positions and
    attention."""
    what = _other_part(module)
    if what is not None:
        raise NotImplementedError(
            f"use_selection: {type(module).__name__} {what}; accepted are grouped-query layers such as those of Llama "
            f"and Qwen. Leave layer {module.layer_idx} out with layers=, or build keyhole.nn.DeepSeekSparseAttention "
            "into the model yourself"
        )


def rotary_dims(module: Any) -> int:
    """How many dimensions of a head carry positions."""
    rope = getattr(module.config, "rope_parameters", None) or {}
    each = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]  # some models have a dict for each kind
    factors = [kind["partial_rotary_factor"] for kind in each if kind.get("partial_rotary_factor") is not None]
    factors.append(getattr(module.config, "partial_rotary_factor", None) or 1.0)
    return int(module.head_dim * factors[0])


def rotation_of(module: Any) -> Callable[..., Any]:
    """The function that the layer encodes positions with."""
    return inspect.unwrap(type(module).forward).__globals__[_ROTATION]  # type: ignore[no-any-return]


def _other_part(module: Any) -> str | None:
    """What the layer has and SelectedAttention does not, or the reverse: the end of a sentence."""
    forward = inspect.unwrap(type(module).forward)
    names = forward.__code__.co_names  # what it reads, in the order of first use
    own = [name for name in names if _is_own(module, name) and name not in _KNOWN | _COUNTS]
    for name in own:
        value = getattr(module, name, getattr(module.config, name, None))
        if name not in _NEUTRAL or value != _NEUTRAL[name]:
            return f"has {name} = {value}" if isinstance(value, (bool, int, float)) else f"has {name}"
    for name in _NEEDED:
        if not hasattr(module, name):
            return f"has no {name}"
    if _ROTATION not in names:
        return "has no rotary positions"
    accepted = _GLOBALS | ({"nn"} if "residual_dropout" in own else set())
    foreign = [name for name in names if name in forward.__globals__ and name not in accepted]
    if foreign:
        return f"calls {foreign[0]}"
    return _other_order(module, names)


def _other_order(module: Any, names: tuple[str, ...]) -> str | None:
    """Parts that are known, in another place or of another size."""
    rotation = names.index(_ROTATION)
    if "sliding_window" in names[:rotation]:
        return "encodes positions in some layers only, by their sliding_window"
    for name in ("q_norm", "k_norm"):
        norm = getattr(module, name, None)
        if norm is None:
            continue
        if name not in names[:rotation]:
            return f"applies {name} after the rotary positions"
        weight = getattr(norm, "weight", None)
        if weight is not None and weight.numel() != module.head_dim:
            return f"has a {name} of {weight.numel()} numbers, and heads of {module.head_dim} dimensions"
    made, taken = module.q_proj.out_features, module.o_proj.in_features
    if made != taken:
        return f"makes {made} numbers in q_proj, and o_proj takes {taken}"
    return None


def _is_own(module: Any, name: str) -> bool:
    """Whether it is an attribute of the layer or a value of its config, and not a method or flag of every module."""
    of_layer = hasattr(module, name) and not hasattr(torch.nn.Module, name) and name != "training"
    return of_layer or (name in vars(module.config) and not name.startswith("_"))
