# python/keyhole/torch_attention/plan_tensors.py
"""Patterns and plans as tensors that torch.compile can trace. Importing this imports torch's compiler, some 900
modules, so only calls that are compiled, exported or run under a dispatch mode do.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..lists import refuse_lists
from ..pattern import Pattern
from ..plan import Plan
from .encoded import Anchored, encode

__all__ = ["tensor_of"]

Follows: TypeAlias = Pattern | Plan | Anchored


def tensor_of(what: Any) -> torch.Tensor:
    """The bytes of a pattern, its text, or a plan. The tensor is shared and must not be modified."""
    if isinstance(what, str):
        return _tensor_of_text(what)
    if not isinstance(what, (Pattern, Plan, Anchored)):
        refuse_lists("attention", what)
    return what.as_tensor


class _Tensors(dict):  # type: ignore[type-arg]
    """An always empty dict whose __getitem__ makes the tensor of a pattern or plan.

    torch.compile cannot trace the code that encodes a pattern; the graph would break. But it reads properties whose
    getter is written in C, both while tracing and in the guards of a compiled graph, and makes the resulting tensor an
    input of the graph. `dict.__getitem__` is written in C, and calls `__missing__`.
    """

    @torch.compiler.disable
    def __missing__(self, what: Follows) -> torch.Tensor:
        tensor = getattr(what, "_tensor", None)
        if tensor is None:
            data = what.encode() if isinstance(what, Plan) else encode(what)
            # The tensor outlives this call, so it must be neither a fake nor an inference tensor.
            with _disable_current_modes(), torch.inference_mode(False):
                tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            torch._dynamo.mark_dynamic(tensor, 0)  # patterns differ in size; that must not recompile the graph
            what._tensor = tensor
        return tensor


for _kind in (Pattern, Plan, Anchored):
    _kind.as_tensor = property(_Tensors().__getitem__)  # type: ignore[assignment]


class _Texts:
    """The patterns of all texts that were traced, as attributes. torch.compile names each input of a graph by where it
    comes from, and fails if two have one name. As attributes, tensors of different texts have different names, and all
    layers with the same text share one input.
    """


_texts = _Texts()


def _tensor_of_text(text: str) -> torch.Tensor:
    """The tensor of a text, which is a constant of the graph, guarded by torch.compile."""
    _know(text)
    return getattr(_texts, text).as_tensor  # type: ignore[no-any-return]


@torch.compiler.assume_constant_result
def _know(text: str) -> None:
    if text not in vars(_texts):
        setattr(_texts, text, Pattern(text))
