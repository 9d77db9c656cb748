# python/keyhole/normalizer.py
"""The arguments alpha and top_k of a call: how the scores of a query become its weights."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any

__all__ = ["ALL_KEYS", "normalizer_of", "refuse_to_merge"]

ALL_KEYS = 0  # as top_k, in the form that the library takes


def normalizer_of(function: str, alpha: Any, top_k: Any, name: str = "top_k") -> tuple[float, int]:
    """(alpha, top_k) in the form that the library takes, or an error. `function` is the public function, which errors
    name, and `name` what it calls top_k."""
    if hasattr(alpha, "requires_grad"):
        raise TypeError(
            f"{function}: alpha is a torch tensor; accepted are numbers from 1 to 2, which get no gradient: pass "
            "float(alpha). To learn how sparse the weights are, multiply q by a learned factor"
        )
    if isinstance(alpha, bool) or not isinstance(alpha, Real):
        raise TypeError(f"{function}: alpha is a {type(alpha).__name__}; accepted are numbers from 1 to 2")
    number = float(alpha)
    if math.isnan(number) or not 1 <= number <= 2:
        raise ValueError(
            f"{function}: alpha is {alpha}; accepted are numbers from 1 (softmax) to 2 (sparsemax), such as 1.5"
        )
    return number, ALL_KEYS if top_k is None else _count(function, top_k, name)


def refuse_to_merge(alpha: Any, top_k: Any) -> None:
    """The error of results that are not those of softmax: their sums over disjoint sets of keys do not add up."""
    number, _ = normalizer_of("merge", alpha, top_k)
    raise NotImplementedError(
        f"merge: results of alpha={number:g}, top_k={top_k} over different keys cannot be joined; attend to all keys "
        "in one call"
    )


def _count(function: str, top_k: Any, name: str) -> int:
    way_out = "pass an int of 1 or more, or None for all keys"
    if isinstance(top_k, bool):
        raise TypeError(f"{function}: {name} is a bool; {way_out}")
    try:
        count = operator.index(top_k)
    except TypeError:
        raise TypeError(f"{function}: {name} is a {type(top_k).__name__}; {way_out}") from None
    if count < 1:
        raise ValueError(f"{function}: {name} is {count}; {way_out}")
    return min(count, 2**62)
