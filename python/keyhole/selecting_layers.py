# python/keyhole/selecting_layers.py
"""The layers of a model that choose their keys: what sets them up, and what the warm-up trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from .deepseek import DeepSeekSparseAttention
from .indexer import LightningIndexer
from .pattern import as_integer

__all__ = ["indexer_parameters", "set_selection"]


def set_selection(model: nn.Module, settings: Callable[[int], dict[str, Any] | int | None]) -> None:
    """Sets up the DeepSeekSparseAttention layers of a model, in the order of `model.modules()`.

    settings    a function of the layer's index, counted over these layers. It returns what to change: a dict with any
                of stage, top_k, visible, always, rows and source; a number, which is top_k; or None. `source` is the
                index of an earlier layer, whose lists this layer then uses, or None for its own

    >>> import torch
    >>> import keyhole
    >>> model = torch.nn.ModuleList(
    ...     keyhole.nn.DeepSeekSparseAttention(32, 2, top_k=8, index_heads=2, index_dim=16) for _ in range(4))
    >>> keyhole.nn.set_selection(model, lambda i: {"top_k": 4} if i % 2 == 0 else {"source": i - 1})
    >>> x = torch.randn(1, 50, 32)
    >>> lists = [layer(x).indices for layer in model]
    >>> lists[0].shape, lists[1] is lists[0], lists[2] is lists[0]
    (torch.Size([1, 1, 50, 4]), True, False)
    """
    layers = [module for module in model.modules() if isinstance(module, DeepSeekSparseAttention)]
    if not layers:
        raise ValueError(f"set_selection: {type(model).__name__} has no DeepSeekSparseAttention layers")
    for index, layer in enumerate(layers):
        chosen = settings(index)
        if chosen is None:
            continue
        changes = dict(chosen) if isinstance(chosen, dict) else {"top_k": chosen}
        if changes.get("source") is not None:
            source = as_integer(changes["source"], f"set_selection: the source of layer {index}")
            if not 0 <= source < index:
                raise ValueError(
                    f"set_selection: the source of layer {index} is {source}; expected an earlier layer, 0 to "
                    f"{index - 1}, which has chosen when this one runs"
                )
            changes["source"] = layers[source]
        layer.set(**changes)


def indexer_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of all LightningIndexers of a model: what the warm-up trains."""
    for module in model.modules():
        if isinstance(module, LightningIndexer):
            yield from module.parameters()
