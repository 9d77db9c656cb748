# python/keyhole/integrations/transformers/selection.py
"""Layers of transformers that attend to the keys an indexer chooses, around the projections they have."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

import torch

from ...deepseek import DeepSeekSparseAttention
from ...heads import GroupedHeads
from ...indexer import LightningIndexer
from ...torch_attention.encoded import Restricted
from .attention import NAME, is_self_attention, lists_of_layer, plan_without_trace, refuse_unsupported
from .layout import Layout

__all__ = ["indexer_loss", "use_selection"]

_NEEDED = ("q_proj", "k_proj", "v_proj", "o_proj", "head_dim", "scaling")
# Parts of attention layers that are computed otherwise than by q, k, v, norms of the heads and rotary positions.
_FOREIGN = ("sinks", "attn_logit_softcapping", "gate_proj", "q_a_proj", "rel_pos")


class SelectedAttention(DeepSeekSparseAttention):
    """DeepSeekSparseAttention in the place of an attention layer of transformers, with its arguments and results."""

    config: Any
    layer_idx: int
    loss: torch.Tensor | None  # of the last forward pass

    def forward(  # type: ignore[override]
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_mask: Any = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        refuse_unsupported(self, self.attention_dropout if self.training else 0.0, kwargs)
        batch, q_len, _ = hidden_states.shape
        kv_len = q_len if attention_mask is None else attention_mask.shape[-1]
        if kv_len != q_len and self.stage != "dense":
            raise NotImplementedError(
                f"keyhole: layer {self.layer_idx} is in stage {self.stage!r}, and its cache holds earlier tokens, "
                "whose indexer keys are not kept; pass use_cache=False, or use stage 'dense'"
            )
        layout = Layout(batch, q_len, kv_len)

        def visible(heads: int) -> Any:
            lists = lists_of_layer(self, attention_mask, layout, heads, kwargs)
            if isinstance(lists, Restricted) and self.stage != "dense":  # a trace has no plan of padding to choose from
                own = getattr(self, "keyhole_pattern", None)
                return plan_without_trace(attention_mask, layout, heads, own, kwargs)
            return lists

        rope = rotate = None
        if position_embeddings is not None:
            cos, sin = position_embeddings
            rope = tuple(_narrowed(table, self.indexer.rope_dim) for table in (cos, sin))

            def rotate(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return self.apply_rope(q, k, cos, sin, unsqueeze_dim=2)

        def extend(k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            k, v = past_key_values.update(k.transpose(1, 2), v.transpose(1, 2), self.layer_idx)
            return k.transpose(1, 2), v.transpose(1, 2)

        result = super().forward(
            hidden_states,
            rope=rope,
            rotate=rotate,
            visible=visible,
            extend=None if past_key_values is None else extend,
        )
        self.loss = result.loss
        return result.output, None


def use_selection(
    model: Any,
    layers: Collection[int] | None = None,
    *,
    top_k: int,
    stage: str = "dense",
    index_heads: int = 16,
    index_dim: int = 64,
    groups: int = 1,
    rope_dim: int | None = None,
    hadamard: bool = True,
    quantize: str | None = None,
    always: Any = None,
    rows: int | None = None,
) -> None:
    """Replaces attention layers of `model` by keyhole.nn.DeepSeekSparseAttention. They keep their q, k, v and o
    projections and the norms of q and k, and get a new indexer each.

    model       one with grouped-query attention and rotary positions, such as Llama or Qwen, whose attention is
                "keyhole" (`register`, `model.set_attn_implementation`)
    layers      which, by their index; all by default
    stage       "dense" computes what the model computed before. Change it later with keyhole.nn.set_selection
    rope_dim    how many dimensions of the indexer carry positions; by default as many as the model's heads have, up to
                64 and index_dim
    others      as in keyhole.nn.DeepSeekSparseAttention

    The model's own masks are the visible keys: causal, windows, padding, packed sequences.
    """
    implementation = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if implementation != NAME:
        raise ValueError(
            f"use_selection: this model's attention is {implementation!r}; call register() and "
            f'model.set_attn_implementation("{NAME}") first'
        )
    found = [(name, module) for name, module in model.named_modules() if is_self_attention(module)]
    indices = {module.layer_idx for _, module in found}
    missing = sorted(set(layers or ()) - indices)
    if missing or not found:
        raise ValueError(f"use_selection: no attention layers {missing}; {type(model).__name__} has {sorted(indices)}")
    for name, module in found:
        if layers is not None and module.layer_idx not in layers:
            continue
        indexer_options = {"groups": groups, "hadamard": hadamard, "quantize": quantize}
        made = _selected(module, index_heads, index_dim, rope_dim, indexer_options)
        made.set(top_k=top_k, stage=stage, always=always, rows=rows)
        made.train(module.training)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, made)


def indexer_loss(model: torch.nn.Module) -> torch.Tensor:
    """The sum of the losses of all indexers in the last forward pass; add it to the loss of the model."""
    losses = [module.loss for module in model.modules() if isinstance(module, SelectedAttention)]
    given = [loss for loss in losses if loss is not None]
    if not given:
        raise ValueError(
            "indexer_loss: no layer has a loss; use_selection with stage 'warmup' or 'sparse', call model.train(), and "
            "run the model first"
        )
    return torch.stack(given).sum()


def _selected(
    module: Any, index_heads: int, index_dim: int, rope_dim: int | None, options: dict[str, Any]
) -> SelectedAttention:
    kind = type(module).__name__
    missing = [name for name in _NEEDED if not hasattr(module, name)]
    foreign = [name for name in _FOREIGN if getattr(module, name, None) is not None]
    apply_rope = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
    if missing or foreign or apply_rope is None:
        what = f"has no {missing[0]}" if missing else f"has {foreign[0]}" if foreign else "has no rotary positions"
        raise NotImplementedError(
            f"use_selection: {kind} {what}; accepted are grouped-query layers such as those of Llama and Qwen. Build "
            "keyhole.nn.DeepSeekSparseAttention into the model yourself"
        )
    weight = module.q_proj.weight
    rope_dim = min(64, index_dim, module.head_dim) if rope_dim is None else rope_dim
    if rope_dim < 2 or module.head_dim % rope_dim != 0:
        raise ValueError(
            f"use_selection: rope_dim is {rope_dim}, and the heads of {kind} have {module.head_dim} dimensions; pass a "
            "divisor of that"
        )
    indexer = LightningIndexer(
        module.q_proj.in_features, index_heads, index_dim, rope_dim=rope_dim, rope_layout="half",
        device=weight.device, dtype=weight.dtype, **options,
    )  # fmt: skip
    norms = {name: getattr(module, name, None) for name in ("q_norm", "k_norm")}
    projections = (module.q_proj, module.k_proj, module.v_proj, module.o_proj)
    heads = GroupedHeads(*projections, head_dim=module.head_dim, scale=module.scaling, **norms)
    kv_heads = module.k_proj.out_features // module.head_dim
    if options["groups"] not in (1, kv_heads):
        raise ValueError(f"use_selection: groups is {options['groups']}; expected 1 or {kv_heads}, the key heads")
    made = SelectedAttention.around(heads, indexer, top_k=1)
    made.config, made.layer_idx, made.loss = module.config, module.layer_idx, None
    made.is_causal = getattr(module, "is_causal", True)
    made.attention_dropout = getattr(module, "attention_dropout", 0.0)
    made.apply_rope = apply_rope
    return made


def _narrowed(table: torch.Tensor, rope_dim: int) -> torch.Tensor:
    """cosines or sines [batch, length, dim], each number twice (in two halves), as a table for rope_dim dimensions: of
    every dim / rope_dim frequencies one, which are those of a head of that size."""
    pairs = table.shape[-1] // 2
    return table[..., :pairs][..., :: max(table.shape[-1] // rope_dim, 1)]
