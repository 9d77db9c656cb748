# python/keyhole/imports/asker.py
"""Asks functions fn(b, h, q_idx, kv_idx), of torch or of NumPy, about blocks of pairs; and finds out whether they
look at b and h at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["Asker"]

MaskMod = Callable[[Any, Any, Any, Any], Any]


class Asker:
    """Asks one function, of torch or of NumPy, about blocks of pairs."""

    def __init__(self, fn: MaskMod, device: Any, xp: Any, name: str) -> None:
        self._fn, self._device, self._name = fn, device, name
        self._torch = _torch_of(xp, name)

    def uses(self, asks_batch: bool, asks_heads: bool) -> tuple[bool, bool]:
        """Whether the answer depends on b and on h; only asked where there are several. True where nobody can tell."""
        if not asks_batch and not asks_heads:
            return False, False
        used = _used_by_torch(self._torch, self._fn) if self._torch else _used_by_numpy(self._fn)
        return asks_batch and used[0], asks_heads and used[1]

    def ask(self, b: int, h: int, q: Any, k: Any) -> np.ndarray[Any, Any]:
        """From q [blocks, rows] and k [blocks, columns] to bools [blocks, rows, columns]."""
        shape = (len(q), q.shape[1], k.shape[1])
        if self._torch is None:
            answer = np.asarray(self._fn(b, h, q[:, :, None], k[:, None, :]))
            self._check(answer.dtype == np.bool_, answer.dtype)
            return np.broadcast_to(answer, shape)
        torch = self._torch
        indices = [torch.as_tensor(index, dtype=torch.int64, device=self._device) for index in (b, h, q, k)]
        each_k = torch.vmap(self._fn, in_dims=(None, None, None, 0))
        each_q = torch.vmap(each_k, in_dims=(None, None, 0, None))
        with torch.no_grad(), _indexing_by_tensors():
            answer = torch.vmap(each_q, in_dims=(None, None, 0, 0))(*indices)
        self._check(answer.dtype == torch.bool, answer.dtype)
        return answer.expand(shape).cpu().numpy()  # type: ignore[no-any-return]

    def _check(self, is_bool: bool, dtype: Any) -> None:
        if not is_bool:
            raise TypeError(
                f"{self._name}: the function must give bools, found {dtype}; a score_mod, which changes scores, is "
                "not a mask"
            )


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
    """Lets a function write lengths[b] with a tensor b, as FlexAttention does."""
    try:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    except ImportError:
        return contextlib.nullcontext()
    return TransformGetItemToIndex()


class _TouchedError(Exception):
    pass


class _Untouchable:
    """Stands for b or h: any use of it raises."""

    def _touch(self, *_: Any, **__: Any) -> Any:
        raise _TouchedError

    __getattr__ = __getitem__ = __index__ = __int__ = __float__ = __bool__ = __array__ = __hash__ = _touch
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __invert__ = _touch
    __add__ = __sub__ = __mul__ = __mod__ = __floordiv__ = __and__ = __or__ = __xor__ = _touch
    __radd__ = __rsub__ = __rmul__ = __rmod__ = __rfloordiv__ = __rand__ = __ror__ = __rxor__ = _touch
    __array_ufunc__ = _touch


def _used_by_numpy(fn: MaskMod) -> tuple[bool, bool]:
    index = np.zeros((1, 1, 1), np.int64)

    def uses(b: Any, h: Any) -> bool:
        try:
            fn(b, h, index, index)
        except Exception:  # whatever it did, it did not leave b, or h, alone
            return True
        return False

    return uses(_Untouchable(), 0), uses(0, _Untouchable())


def _used_by_torch(torch: Any, fn: MaskMod) -> tuple[bool, bool]:
    """Follows b and h through what fn computes. Tensors that only borrow a shape or a device depend on nothing."""
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        with torch.no_grad(), _indexing_by_tensors():
            graph = make_fx(fn)(*(torch.zeros((), dtype=torch.int64) for _ in range(4))).graph
    except Exception:  # it cannot be traced, so nobody can tell
        return True, True
    borrows = ("new_ones", "new_zeros", "new_full", "new_empty", "ones_like", "zeros_like", "full_like", "empty_like")
    depends: dict[Any, set[int]] = {}
    for place, node in enumerate(graph.nodes):
        if node.op == "placeholder":
            depends[node] = {place}
        elif any(f".{name}." in f".{node.target}." for name in borrows):
            depends[node] = set()
        else:
            depends[node] = set().union(*(depends[source] for source in node.all_input_nodes))
    output = next(node for node in graph.nodes if node.op == "output")
    return 0 in depends[output], 1 in depends[output]
