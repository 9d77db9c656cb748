# python/keyhole/integrations/transformers/selection.py
"""Layers of transformers that attend to the keys an indexer chooses, around the projections they have."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from ...deepseek import DeepSeekSparseAttention
from ...heads import Grouped
from ...indexer import LightningIndexer
from ...torch_attention.encoded import Restricted
from .attention import NAME, is_self_attention, lists_of_layer, plan_without_trace, refuse_unsupported
from .index_cache import extended
from .layer_parts import refuse_other_layer, rotary_dims, rotation_of
from .layout import Layout

__all__ = ["indexer_loss", "use_selection"]


class SelectedAttention(Grouped, DeepSeekSparseAttention):
    """DeepSeekSparseAttention in the place of an attention layer of transformers, with its arguments and results. The
    projections and norms of that layer keep their names, so that its checkpoints fit."""

    config: Any
    layer_idx: int
    loss: torch.Tensor | None  # of the last forward pass

    def __init__(self, module: Any, indexer: LightningIndexer, **settings: Any) -> None:
        torch.nn.Module.__init__(self)  # that of DeepSeekSparseAttention makes projections
        for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm", "keyhole_pattern"):
            setattr(self, name, getattr(module, name, None))
        self.head_dim, self.scale = module.head_dim, module.scaling
        self.config, self.layer_idx, self.loss = module.config, module.layer_idx, None
        self.is_causal = getattr(module, "is_causal", True)
        self.attention_dropout = getattr(module, "attention_dropout", 0.0)
        self.apply_rope = rotation_of(module)
        self._begin(indexer, None, 0.0, False, visible="causal", **settings)
        self.train(module.training)

    @property
    def heads(self) -> Any:  # type: ignore[override]
        """The layer itself: its projections are not in a module of their own."""
        return self

    def set(self, **settings: Any) -> None:
        """As in DeepSeekSparseAttention, but for visible: the model's own mask, or the pattern of set_pattern."""
        if "visible" in settings and hasattr(self, "visible"):  # it is set once, when the layer is made
            raise ValueError(
                f"keyhole: visible is {settings['visible']!r}, and layer {self.layer_idx} takes its mask from the "
                "model; call keyhole.integrations.transformers.set_pattern(model, pattern) to replace it"
            )
        super().set(**settings)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "loss": None}

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

        def extend(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return extended(past_key_values, self.layer_idx, *(tensor.transpose(1, 2) for tensor in tensors))

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
    projections and the norms of q and k, with the names of their parameters, and get a new indexer each.

    model       one with grouped-query attention and rotary positions, such as Llama or Qwen, whose attention is
                "keyhole" (`register`, `model.set_attn_implementation`)
    layers      which, by their index; all by default
    stage       "dense" computes what the model computed before. Change it later with keyhole.nn.set_selection
    rope_dim    how many dimensions of the indexer carry positions; by default as many as of the model's heads, up to 64
                and index_dim
    others      as in keyhole.nn.DeepSeekSparseAttention

    The model's own masks are the visible keys: causal, windows, padding, packed sequences; or the pattern of
    `set_pattern`, which a layer keeps.
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
    indexer_options = {"groups": groups, "hadamard": hadamard, "quantize": quantize}
    replaced = {}
    for name, module in found:
        if layers is None or module.layer_idx in layers:
            indexer = _indexer_for(module, index_heads, index_dim, rope_dim, indexer_options)
            replaced[name] = SelectedAttention(module, indexer, top_k=top_k, stage=stage, always=always, rows=rows)
    for name, made in replaced.items():  # after all of them were made: an error leaves the model as it was
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, made)


def indexer_loss(model: torch.nn.Module) -> torch.Tensor:
    """The sum of the losses of all indexers in the last forward pass; add it to the loss of the model."""
    selected = [module for module in model.modules() if isinstance(module, SelectedAttention)]
    losses = {layer: layer.loss for layer in selected if layer.loss is not None}
    if not losses:
        raise ValueError(
            "indexer_loss: no layer has a loss; use_selection with stage 'warmup' or 'sparse', call model.train(), and "
            "run the model first"
        )
    for layer, loss in losses.items():
        is_trained = any(parameter.requires_grad for parameter in layer.indexer.parameters())
        if torch.is_grad_enabled() and is_trained and not loss.requires_grad:
            raise RuntimeError(
                f"indexer_loss: the loss of layer {layer.layer_idx} has no gradient, because the layer ran without "
                'gradients. If the model uses gradient checkpointing, enable it with {"use_reentrant": False}; to read '
                "the loss alone, call indexer_loss under torch.no_grad()"
            )
    return torch.stack(list(losses.values())).sum()


def _indexer_for(
    module: Any, index_heads: int, index_dim: int, rope_dim: int | None, options: dict[str, Any]
) -> LightningIndexer:
    """An indexer for an attention layer. Raises if SelectedAttention cannot take the place of that layer."""
    if isinstance(module, SelectedAttention):
        raise ValueError(
            f"use_selection: layer {module.layer_idx} has a selection already; change it with "
            "keyhole.nn.set_selection, or pass layers="
        )
    refuse_other_layer(module)
    weight = module.q_proj.weight
    rotary = rotary_dims(module)
    rope_dim = min(64, index_dim, rotary) if rope_dim is None else rope_dim
    if rope_dim < 2 or rotary % rope_dim != 0:
        raise ValueError(
            f"use_selection: rope_dim is {rope_dim}, and {rotary} dimensions of a head of {type(module).__name__} "
            "carry positions; pass a divisor of that"
        )
    kv_heads = module.k_proj.out_features // module.head_dim
    if options["groups"] not in (1, kv_heads):
        raise ValueError(f"use_selection: groups is {options['groups']}; expected 1 or {kv_heads}, the key heads")
    return LightningIndexer(
        module.q_proj.in_features, index_heads, index_dim, rope_dim=rope_dim, rope_layout="half",
        device=weight.device, dtype=weight.dtype, **options,
    )  # fmt: skip


def _narrowed(table: torch.Tensor, rope_dim: int) -> torch.Tensor:
    """cosines or sines [batch, length, dim], each number twice (in two halves), as a table for rope_dim dimensions: of
    every dim / rope_dim frequencies one, which are those of a head of that size."""
    pairs = table.shape[-1] // 2
    return table[..., :pairs][..., :: max(table.shape[-1] // rope_dim, 1)]
