# python/keyhole/torch_attention/plan_tensors.py
"""Patterns and plans as tensors that torch.compile follows. Loading this loads torch's compiler, some 900 modules: only
what compiles, exports or runs under a mode of torch does.
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
    """The bytes of a pattern, its text, or a plan. The tensor is shared: nobody may write into it."""
    if isinstance(what, str):
        return _tensor_of_text(what)
    if not isinstance(what, (Pattern, Plan, Anchored)):
        refuse_lists("attention", what)
    return what.as_tensor


class _Tensors(dict):  # type: ignore[type-arg]
    """Always empty; asked for the tensor of a pattern or plan, it makes that.

    torch.compile does not follow the code that encodes a pattern, and would give up on it. It does read properties
    whose getter is written in C, when it traces and again for every check of a compiled graph, and takes the tensor
    they give as an input of the graph. `dict.__getitem__` is written in C and asks `__missing__`.
    """

    @torch.compiler.disable
    def __missing__(self, what: Follows) -> torch.Tensor:
        tensor = getattr(what, "_tensor", None)
        if tensor is None:
            data = what.encode() if isinstance(what, Plan) else encode(what)
            # Kept beyond this call: it must not become a fake tensor, or one of inference mode, that others cannot use.
            with _disable_current_modes(), torch.inference_mode(False):
                tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            torch._dynamo.mark_dynamic(tensor, 0)  # another pattern has another size, and needs no other graph
            what._tensor = tensor
        return tensor


for _kind in (Pattern, Plan, Anchored):
    _kind.as_tensor = property(_Tensors().__getitem__)  # type: ignore[assignment]


@torch.compiler.assume_constant_result
def _tensor_of_text(text: str) -> torch.Tensor:
    """A text is a constant of the graph: torch.compile checks that it is still the same."""
    return tensor_of(Pattern(text))
