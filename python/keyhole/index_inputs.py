# python/keyhole/index_inputs.py
"""What an indexer does to its queries and keys before they are scored: a Hadamard turn, and rounding to e4m3."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from .lists import is_tensor

__all__ = ["hadamard", "quantize_e4m3"]

_LARGEST_E4M3 = 448.0
_SMALLEST_AMAX = 1e-4


def hadamard(x: Any) -> Any:
    """The normalised Walsh-Hadamard transform of the last dimension, which is a power of two. It is its own inverse and
    keeps products, so scores of turned queries and keys are those of the originals. Channels with outliers are spread
    over all others, which makes rounding to e4m3 lose less.

    x           [..., dim], a NumPy array or a torch tensor of floats. Differentiable for torch tensors
    returns     like x

    >>> import numpy as np
    >>> import keyhole
    >>> keyhole.hadamard(np.array([4.0, 0.0, 0.0, 0.0]))
    array([2., 2., 2., 2.])
    >>> keyhole.hadamard(keyhole.hadamard(np.array([1.0, 2.0, 3.0, 4.0])))
    array([1., 2., 3., 4.])
    """
    if not hasattr(x, "shape") or not hasattr(x, "dtype") or len(x.shape) == 0:
        raise TypeError(f"hadamard: x is a {type(x).__name__}; expected a NumPy array or a torch tensor [..., dim]")
    dim = x.shape[-1]
    if dim < 1 or dim & (dim - 1):
        raise ValueError(f"hadamard: the last dimension of x is {dim}; expected a power of two, such as 64 or 128")
    if is_tensor(x):
        torch = sys.modules["torch"]
        if not x.is_floating_point() or x.element_size() == 1:
            raise TypeError(f"hadamard: x is {x.dtype}; accepted are float16, bfloat16, float32 and float64")
        places = torch.arange(dim, device=x.device)
        signs = 1 - 2 * _parity(places[:, None] & places, dim)
        with contextlib.nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False):
            return (x @ signs.to(x.dtype)) * dim**-0.5
    import numpy as np

    if x.dtype.kind != "f":
        raise TypeError(f"hadamard: x is {x.dtype}; accepted are float16, float32 and float64")
    wide = np.float64 if x.dtype == np.float64 else np.float32
    places = np.arange(dim)
    signs = 1 - 2 * _parity(places[:, None] & places, dim)
    return ((x.astype(wide) @ signs.astype(wide)) * wide(dim**-0.5)).astype(x.dtype)


def quantize_e4m3(x: Any, *, power_of_two: bool = False) -> Any:
    """x rounded to e4m3, 8-bit floats, with one scale for each vector: x is about values * scale[..., None].

    x           [..., dim], a NumPy array or a torch tensor of floats
    power_of_two
                rounds the scales up to powers of two
    returns     (values, scale): torch.float8_e4m3fn like x, or an array of ml_dtypes.float8_e4m3fn; and fp32 [...],
                max(largest magnitude, 1e-4) / 448

    Both have no gradient. Multiply w of `index_scores` by the scales of q, and pass those of k as k_scale:

    >>> import torch
    >>> import keyhole
    >>> q, k, w = torch.randn(1, 4, 10, 64), torch.randn(1, 1, 10, 64), torch.randn(1, 4, 10)
    >>> (q8, q_scale), (k8, k_scale) = keyhole.quantize_e4m3(q), keyhole.quantize_e4m3(k)
    >>> rounded = keyhole.index_scores(q8, k8, w * q_scale, k_scale=k_scale)
    >>> bool((rounded - keyhole.index_scores(q, k, w)).abs().max() < 3)
    True
    """
    if is_tensor(x):
        torch = sys.modules["torch"]
        if not x.is_floating_point() or x.dim() == 0:
            raise TypeError(f"quantize_e4m3: x is {x.dtype} {list(x.shape)}; expected floats [..., dim]")
        wide = x.detach().float()
        scale = wide.abs().amax(-1).clamp(min=_SMALLEST_AMAX) / _LARGEST_E4M3
        if power_of_two:
            fraction, exponent = torch.frexp(scale)
            scale = torch.ldexp(torch.ones_like(scale), torch.where(fraction == 0.5, exponent - 1, exponent))
        values = (wide / scale[..., None]).clamp(-_LARGEST_E4M3, _LARGEST_E4M3).to(torch.float8_e4m3fn)
        return values, scale
    import numpy as np

    try:
        import ml_dtypes
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "quantize_e4m3: NumPy has no 8-bit floats of its own; pip install ml_dtypes, or pass a torch tensor",
            name=error.name,
        ) from None
    if not isinstance(x, np.ndarray) or x.ndim == 0 or not (x.dtype.kind == "f" or x.dtype.name == "bfloat16"):
        found = f"{x.dtype} {list(x.shape)}" if isinstance(x, np.ndarray) else f"a {type(x).__name__}"
        raise TypeError(f"quantize_e4m3: x is {found}; expected an array or a tensor of floats [..., dim]")
    rows = x.astype(np.float32)
    scales = np.maximum(np.abs(rows).max(-1), np.float32(_SMALLEST_AMAX)) / np.float32(_LARGEST_E4M3)
    if power_of_two:
        fractions, exponents = np.frexp(scales)
        scales = np.ldexp(np.float32(1), np.where(fractions == 0.5, exponents - 1, exponents))
    scaled = np.clip(rows / scales[..., None], -_LARGEST_E4M3, _LARGEST_E4M3)
    return scaled.astype(ml_dtypes.float8_e4m3fn), scales


def _parity(number: Any, bound: int) -> Any:
    """1 where the number of set bits is odd, for numbers below `bound`."""
    shift = 1
    while shift < bound.bit_length():
        shift *= 2
    while shift > 1:
        shift //= 2
        number = number ^ (number >> shift)
    return number & 1
