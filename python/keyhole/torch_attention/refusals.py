# python/keyhole/torch_attention/refusals.py
"""What torch offers and Keyhole does not do, refused by name, with the way out."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad

__all__ = ["no_second_derivative", "refuse_transforms", "refuse_vmap"]

Tensor = torch.Tensor


def no_second_derivative(ctx: Any, *gradients: Tensor) -> NoReturn:
    """What stands where the gradient of the backward pass would."""
    raise NotImplementedError(
        "attention: second derivatives (create_graph=True, then backward through the gradients) are not implemented; "
        "Keyhole's kernels give first derivatives. Use torch.nn.functional.scaled_dot_product_attention with its MATH "
        "backend where you need them"
    )


def refuse_vmap(*_: Any) -> NoReturn:
    raise NotImplementedError(
        "attention: torch.vmap is not supported; attention has a batch dimension already. Fold the mapped one into it, "
        "q.flatten(0, 1), call once, and unfold the result with out.unflatten(0, (mapped, batch))"
    )


def refuse_transforms(*tensors: Tensor | None) -> None:
    """Raises inside of torch.vmap, torch.func.grad and their like, and where a tensor carries a tangent."""
    interpreter = torch._C._functorch.peek_interpreter_stack()
    kind = None if interpreter is None else interpreter.key()
    if kind == torch._C._functorch.TransformType.Vmap:
        refuse_vmap()
    if kind == torch._C._functorch.TransformType.Grad:
        raise NotImplementedError(
            "attention: torch.func.grad and torch.func.vjp are not supported; use backward() or torch.autograd.grad"
        )
    if kind == torch._C._functorch.TransformType.Jvp or any(
        t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors
    ):
        raise NotImplementedError(
            "attention: forward-mode differentiation (torch.func.jvp, forward_ad) is not implemented; Keyhole's "
            "kernels give gradients in reverse mode: use backward() or torch.autograd.grad"
        )
