# python/keyhole/torch_attention/refusals.py
"""Errors for features of torch that Keyhole does not support, each with a way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad

__all__ = [
    "no_second_derivative",
    "no_second_derivative_of",
    "refuse_batched_gradients",
    "refuse_forward_mode",
    "refuse_learned",
    "refuse_other",
    "refuse_tangents",
    "refuse_transforms",
    "refuse_unreadable",
    "refuse_vmap_of",
]

Tensor = torch.Tensor


def refuse_other(function: str, name: str, value: Any) -> NoReturn:
    """Raises for an argument that is not a tensor, while q is."""
    kind = type(value).__name__
    raise TypeError(f"{function}: {name} is a {kind}; pass torch tensors only, or NumPy arrays only")


def refuse_learned(function: str, *, scale: Any, softcap: Any) -> None:
    """Raises for options that are tensors. Kernels take numbers; a learned parameter would silently get no gradient."""
    if isinstance(scale, Tensor):
        raise TypeError(
            f"{function}: scale is a torch tensor; accepted are numbers, which get no gradient: pass float(scale). To "
            "learn it, multiply q by it and pass scale=1.0"
        )
    if isinstance(softcap, Tensor):
        raise TypeError(
            f"{function}: softcap is a torch tensor; accepted are numbers, which get no gradient: pass float(softcap). "
            "It cannot be learned here"
        )


def refuse_unreadable(function: str, **tensors: Tensor | None) -> None:
    """Raises for tensors that kernels cannot read because they are not strided, and for a mix of meta tensors and
    others. Called only after a failure or on slow paths, so that plain calls do not pay for it.
    """
    if torch.compiler.is_compiling():  # torch.compile has tensor types of its own, and its own errors
        return
    with_values = without_values = ""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.is_nested:
            raise TypeError(
                f"{function}: {name} is a nested tensor; accepted are dense ones. Pack its sequences into a batch of "
                "one, with a pattern from keyhole.from_cu_seqlens (docs/pytorch.md, Ragged batches), or pad them: "
                f"torch.nested.to_padded_tensor({name}, 0.0)"
            )
        if tensor.layout is not torch.strided:
            raise TypeError(
                f"{function}: {name} has layout {tensor.layout}; accepted is torch.strided: pass {name}.to_dense()"
            )
        if tensor.is_quantized:
            raise TypeError(
                f"{function}: {name} is quantized, {tensor.dtype}; accepted are plain numbers: pass {name}.dequantize()"
            )
        if tensor.is_meta:
            without_values = without_values or name
        else:
            with_values = with_values or name
    if with_values and without_values:
        raise TypeError(
            f"{function}: {without_values} is on meta, where tensors have no values, and {with_values} is not; pass "
            "all tensors on meta, to get the shape of the result, or none"
        )


def no_second_derivative_of(function: str) -> Callable[..., NoReturn]:
    """Registered in place of a gradient of the backward pass."""

    def refuse(ctx: Any, *gradients: Tensor) -> NoReturn:
        way = "Use torch.nn.functional.scaled_dot_product_attention with its MATH backend where you need them"
        raise NotImplementedError(
            f"{function}: second derivatives (create_graph=True, then backward through the gradients) are not "
            f"implemented; Keyhole's kernels give first derivatives. {way if function == 'attention' else ''}".rstrip()
        )

    return refuse


no_second_derivative = no_second_derivative_of("attention")


def refuse_vmap_of(function: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        raise NotImplementedError(
            f"{function}: torch.vmap is not supported; {function} has a batch dimension already. Fold the mapped "
            "dimension into it, q.flatten(0, 1), call once, and unfold the result with out.unflatten(0, (mapped, "
            "batch))"
        )

    return refuse


def refuse_batched_gradients(*gradients: Tensor | None) -> None:
    """Raises if torch.autograd runs the backward pass under vmap, over several gradients at once: batched tensors have
    no memory to read. Called only after a failure, so that other calls do not pay for it.
    """
    if any(gradient is not None and "Batched" in str(torch._C._dispatch_keys(gradient)) for gradient in gradients):
        raise NotImplementedError(
            "attention: batched gradients (is_grads_batched=True, jacobian(vectorize=True), check_batched_grad=True) "
            "are not supported, as torch.vmap is not; call torch.autograd.grad once for each gradient, with "
            "retain_graph=True"
        ) from None  # torch's own error is a page of C++


def refuse_forward_mode(function: str) -> NoReturn:
    raise NotImplementedError(
        f"{function}: forward-mode differentiation (torch.func.jvp, forward_ad) is not implemented; Keyhole's kernels "
        "give gradients in reverse mode: use backward() or torch.autograd.grad"
    )


def refuse_tangents(function: str, *tensors: Any) -> None:
    """Raises inside torch.func.jvp, and if a tensor has a tangent. For ops, which users may call directly."""
    if forward_ad._current_level < 0:
        return
    interpreter = torch._C._functorch.peek_interpreter_stack()
    if interpreter is not None and interpreter.key() == torch._C._functorch.TransformType.Jvp:
        refuse_forward_mode(function)
    with forward_ad._set_fwd_grad_enabled(True):  # it is off inside an autograd.Function
        if any(isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
            refuse_forward_mode(function)


def refuse_transforms(function: str, *tensors: Tensor | None) -> None:
    """Raises inside torch.vmap, torch.func.grad and other transforms, and if a tensor has a tangent."""
    interpreter = torch._C._functorch.peek_interpreter_stack()
    kind = None if interpreter is None else interpreter.key()
    if kind == torch._C._functorch.TransformType.Vmap:
        refuse_vmap_of(function)()
    if kind == torch._C._functorch.TransformType.Grad:
        raise NotImplementedError(
            f"{function}: torch.func.grad and torch.func.vjp are not supported; use backward() or torch.autograd.grad"
        )
    if kind == torch._C._functorch.TransformType.Jvp or any(
        t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors
    ):
        refuse_forward_mode(function)
