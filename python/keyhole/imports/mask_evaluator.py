# python/keyhole/imports/mask_evaluator.py
"""Evaluates mask functions fn(b, h, q_idx, kv_idx), written for torch or for NumPy, on blocks of pairs; and detects
whether they depend on b and h.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import watched_index
from .watched_index import Watch

__all__ = ["MaskEvaluator"]

MaskMod = Callable[[Any, Any, Any, Any], Any]

_BRANCHES = (
    "the function branches on the values of its indices (if, and, or, not, a <= b <= c), but it is called for many "
    "pairs at once; write & for and, | for or, ~ for not, and where() for if"
)
_LEAVES_TORCH = (
    "the function converts an index from torch to Python or NumPy (a lookup in a list or in a NumPy array, int(q_idx), "
    "q_idx.item()), but it is called for many pairs at once; make the table a tensor with torch.as_tensor(table), or "
    "pass xp=numpy if the function is written for NumPy"
)
# Messages of torch and NumPy for the most common mistakes -> our message.
_MISTAKES = {
    "data-dependent control flow": _BRANCHES,
    "truth value of an array": _BRANCHES,
    "calling .item() on a Tensor": _LEAVES_TORCH,
    "Tensor that doesn't have storage": _LEAVES_TORCH,
}


class MaskEvaluator:
    """Evaluates one mask function, written for torch or for NumPy, on blocks of pairs."""

    def __init__(self, fn: MaskMod, device: Any, xp: Any, name: str) -> None:
        self._fn, self._device, self._name = fn, device, name
        self._torch = _torch_of(xp, name)
        self._unused: set[str] = set()  # of "b" and "h", those that uses() found the function not to read
        self._counts_missing: dict[str, str] = {}  # "b" or "h", whose count was not given -> the name of that parameter
        self._heads_checked: set[tuple[int, int]] = set()

    def uses(self, batch: int, heads: int) -> tuple[bool, bool]:
        """Whether the mask depends on b, and on h. True if that cannot be decided; False if there is only one."""
        if batch == heads == 1:
            return False, False
        used = self._uses_in_numpy(batch, heads) if self._torch is None else self._uses_in_torch()
        several = {"b": batch > 1, "h": heads > 1}
        self._unused = {name for name, is_used in zip("bh", used, strict=True) if several[name] and not is_used}
        return batch > 1 and used[0], heads > 1 and used[1]

    def require_counts(self, **counts: int | None) -> None:
        """Makes evaluate() refuse a function that reads b or h if the number of them is None: only 0 is evaluated."""
        named = zip("bh", counts.items(), strict=True)
        self._counts_missing = {name: parameter for name, (parameter, count) in named if count is None}

    def evaluate(self, b: int, h: int, q: Any, k: Any) -> np.ndarray[Any, Any]:
        """Evaluates the function for q [blocks, rows] and k [blocks, columns]: bools [blocks, rows, columns]."""
        shape = (len(q), q.shape[1], k.shape[1])
        if self._torch is None:
            with self._naming_mistakes():
                result = np.asarray(self._evaluate_numpy(b, h, q, k))
            self._check(result.dtype == np.bool_, result.dtype)
            return np.broadcast_to(result, shape)
        self._require_counts_in_torch(b, h)
        with self._naming_mistakes():
            result = self._evaluate_torch(*map(self._tensor, (b, h, q, k)))
        self._check(result.dtype == self._torch.bool, result.dtype)
        return result.expand(shape).cpu().numpy()  # type: ignore[no-any-return]

    def _evaluate_numpy(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        """A NumPy function can branch on q and k, so every evaluation is watched: uses() saw one pair when it found
        that b or h is not read, and an index whose count is missing must never be read."""
        watches = {name: Watch() for name in {*self._unused, *self._counts_missing}}
        b, h = (watches[name].index() if name in watches else index for name, index in (("b", b), ("h", h)))
        try:
            return self._fn(b, h, q[:, :, None], k[:, None, :])
        finally:
            for name in sorted(watches):
                if watches[name].is_used:
                    self._refuse_reading(name)

    def _require_counts_in_torch(self, b: int, h: int) -> None:
        """A torch function cannot branch on q and k, so one pair of each head says what it reads."""
        if (b, h) in self._heads_checked:
            return
        self._heads_checked.add((b, h))
        from . import watched_tensor

        for name in self._counts_missing:
            if watched_tensor.reads_index(self._evaluate_one_pair, self._device, name, b, h):
                self._refuse_reading(name)

    def _refuse_reading(self, name: str) -> None:
        if name in self._counts_missing:
            parameter = self._counts_missing[name]
            raise ValueError(
                f"{self._name}: the function reads {name}, and {parameter} is not given: its result for {name} = 0 "
                f"would be used for all; pass {parameter}=N, as many as there are, or {parameter}=1"
            )
        raise ValueError(
            f"{self._name}: the function reads b or h for some pairs and not for others; it must not branch on the "
            "values of its indices: write numpy.where"
        )

    def _evaluate_torch(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        torch = self._torch

        def fn(*indices: Any) -> Any:
            result = self._fn(*indices)
            if not isinstance(result, torch.Tensor):
                raise TypeError(
                    f"{self._name}: the function must return a tensor of bools, found {_short(result)}; write "
                    "torch.ones_like(q_idx, dtype=torch.bool) for all pairs"
                )
            return result

        each_k = torch.vmap(fn, in_dims=(None, None, None, 0))
        each_q = torch.vmap(each_k, in_dims=(None, None, 0, None))
        with torch.no_grad(), _indexing_by_tensors():
            return torch.vmap(each_q, in_dims=(None, None, 0, 0))(b, h, q, k)

    def _uses_in_numpy(self, batch: int, heads: int) -> tuple[bool, bool]:
        return watched_index.uses_of(self._evaluate_one_pair, batch, heads)

    def _uses_in_torch(self) -> tuple[bool, bool]:
        from . import watched_tensor

        return watched_tensor.uses_of(self._evaluate_one_pair, self._device)

    def _evaluate_one_pair(self, b: Any, h: Any) -> Any:
        if self._torch is None:
            pair = np.zeros((1, 1, 1), np.int64)
            return self._fn(b, h, pair, pair)
        pair = self._tensor([[0]])
        return self._evaluate_torch(b, h, pair, pair)

    def _tensor(self, index: Any) -> Any:
        return self._torch.as_tensor(index, dtype=self._torch.int64, device=self._device)

    @contextlib.contextmanager
    def _naming_mistakes(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            mistake = next((text for message, text in _MISTAKES.items() if message in str(error)), None)
            if mistake is None:
                raise
            raise TypeError(f"{self._name}: {mistake}") from error

    def _check(self, is_bool: bool, dtype: Any) -> None:
        if not is_bool:
            raise TypeError(
                f"{self._name}: the function must return bools, found {dtype}; a score_mod, which changes scores, is "
                "not a mask"
            )


def _short(result: Any) -> str:
    return repr(result) if isinstance(result, bool | None) else type(result).__name__


def _torch_of(xp: Any, name: str) -> Any:
    """The module torch, or None for NumPy."""
    if xp is None:
        try:
            import torch
        except ImportError:
            return None
        return torch
    module = getattr(xp, "__name__", None)
    if module not in ("torch", "numpy"):
        raise ValueError(f"{name}: xp is {xp!r}; accepted are the modules numpy and torch")
    return xp if module == "torch" else None


def _indexing_by_tensors() -> contextlib.AbstractContextManager[Any]:
    """Lets a function index a tensor with a tensor, lengths[b], under vmap, as FlexAttention does."""
    try:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    except ImportError:
        return contextlib.nullcontext()
    return TransformGetItemToIndex()
