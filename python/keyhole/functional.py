# python/keyhole/functional.py
"""The front door: finds out whether NumPy arrays or torch tensors were passed, and calls what serves them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

from . import _core
from .lists import TileLists, is_tensor
from .plan import PlanLike

if TYPE_CHECKING:
    import numpy as np
    import torch

    ListsLike: TypeAlias = PlanLike | TileLists | np.ndarray[Any, Any] | torch.Tensor

__all__ = ["attention", "attention_backward", "gather_attention", "gather_attention_backward", "merge"]


def attention(
    q: Any,
    k: Any,
    v: Any,
    lists: ListsLike,
    *,
    scale: float | None = None,
    layout: str = "bhsd",
    softcap: float = 0.0,
    sink: Any = None,
    return_lse: bool = False,
    deterministic: bool = False,
    backend: str = "auto",
    out: Any = None,
) -> Any:
    """Attention of `q` over `k` and `v`, restricted to the pairs of a pattern, or to what a program has selected.
    Differentiable for torch tensors.

    q           [batch, q_heads, q_len, head_dim]
    k           [batch, kv_heads, k_len, head_dim]; q_heads is a multiple of kv_heads
    v           [batch, kv_heads, k_len, v_head_dim]
    lists       which keys each query attends to: a pattern, its text, or a plan from `keyhole.plan(...)`; indices of
                keys [batch, heads, lists, entries], int32 or int64, as `gather_attention` has them; or `TileLists`
    scale       multiplies q . k; head_dim ** -0.5 unless given. A number; a scale that is learned multiplies q
                before the call, and 1.0 is passed here
    layout      "bhsd" as above; "bshd": q, k, v and the result are [batch, length, heads, head_dim]
    softcap     c > 0: a score s becomes c * tanh(s / c), before masking
    sink        [q_heads], fp32: one more logit for each head, without a value
    return_lse  also return the logarithm of the sum of exp(score), [batch, q_heads, q_len], fp32 (fp64 for fp64)
    deterministic
                gradients that are equal from run to run; the CPU's always are
    backend     "auto", or one of those that `keyhole info` lists, such as "cpu"
    out         an array or tensor of the result's shape, dtype and device, to write the result into and to return. As
                in torch it gives no gradients: where a tensor requires them it is refused
    returns     [batch, q_heads, q_len, v_head_dim] of q's kind and dtype, or (that, lse)

    A query that attends to nothing gets zeros, and -inf in lse.

    >>> import numpy as np
    >>> import keyhole
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 4, 128, 64), dtype=np.float32)
    >>> keyhole.attention(q, k, v, keyhole.causal() & keyhole.window(31)).shape
    (1, 4, 128, 64)
    >>> out, lse = keyhole.attention(q, k, v, "causal & window(31)", return_lse=True)
    >>> lse.shape
    (1, 4, 128)
    """
    torch = sys.modules.get("torch")  # not is_tensor(q): a call less
    if torch is not None and isinstance(q, torch.Tensor):
        compiler = torch.compiler
        # The short way. torch.compile cannot look into it.
        if sink is out is None and not return_lse and layout == "bhsd" and not compiler.is_dynamo_compiling():
            result = _core.forward_if_plain(q, k, v, lists, scale, softcap, backend)
            if result is not None:
                return result
        # An import statement takes as long as all other questions of a call together. torch.compile must not ask for
        # what it is about to load: it would take the answer for a condition of its graph.
        call: Any = None if compiler.is_compiling() else sys.modules.get("keyhole.torch_attention.call")
        if call is None:
            from .torch_attention import call as loaded

            call = loaded
        return call.attention(
            q, k, v, lists, scale, layout, softcap, sink, return_lse, deterministic, backend, out=out
        )  # fmt: skip
    from . import numpy_attention

    return numpy_attention.attention(
        q, k, v, lists, scale=scale, layout=layout, softcap=softcap, sink=sink, return_lse=return_lse,
        backend=backend, out=out,
    )  # fmt: skip


def attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    lists: ListsLike,
    *,
    scale: float | None = None,
    layout: str = "bhsd",
    softcap: float = 0.0,
    sink: Any = None,
    backend: str = "auto",
) -> Any:
    """The gradients of `attention` for NumPy arrays; torch users call `backward()` on the result instead.

    dout        the gradient of the result, shaped like it
    out, lse    what `attention(..., return_lse=True)` gave; for attention over parts of the keys, the merged ones
    returns     (dq, dk, dv), or (dq, dk, dv, dsink) when there is a sink

    >>> import numpy as np
    >>> import keyhole
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 16, 8))
    >>> out, lse = keyhole.attention(q, k, v, "causal", return_lse=True)
    >>> dq, dk, dv = keyhole.attention_backward(np.ones_like(out), q, k, v, out, lse, "causal")
    >>> bool(np.allclose(dv.sum(), out.size))  # the weights of every query add up to 1
    True
    """
    if is_tensor(q):
        raise TypeError("attention_backward takes NumPy arrays; for torch tensors call backward() on the result")
    from . import numpy_attention

    return numpy_attention.attention_backward(
        dout, q, k, v, out, lse, lists, scale=scale, layout=layout, softcap=softcap, sink=sink,
        backend=backend,
    )  # fmt: skip


def gather_attention(
    q: Any,
    k: Any,
    v: Any,
    indices: Any,
    *,
    scale: float | None = None,
    layout: str = "bhsd",
    softcap: float = 0.0,
    sink: Any = None,
    return_lse: bool = False,
    deterministic: bool = False,
    backend: str = "auto",
) -> Any:
    """`attention` with indices and nothing else as its lists: over the keys that a program has selected, retrieved or
    hashed as it runs. There is no pattern and no plan, and on a GPU nothing returns to the host. Differentiable for
    torch tensors.

    indices     [batch, heads, lists, entries], int32 or int64, whatever the layout of q; the heads are those of k (the
                query heads of one kv head share a list), those of q, or 1; as many lists as queries or, where
                ceil(q_len / lists) neighbouring queries share a list, fewer
    others      as in `attention`

    Keys may come in any order; one that is named twice counts twice. -1 is padding, wherever it stands, and a query
    whose list has nothing else gets zeros. Any other entry that is no key is a ValueError on the CPU; on a GPU, where
    an error would have to wait for the GPU, it is padding.

    >>> import numpy as np
    >>> import keyhole
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 4, 128, 64), dtype=np.float32)
    >>> scores = q @ k.swapaxes(-1, -2)
    >>> best = np.argpartition(-scores, 16)[..., :16]  # the sixteen best keys of every query of every head
    >>> keyhole.gather_attention(q, k, v, best).shape
    (1, 4, 128, 64)
    """
    if is_tensor(q):
        from .torch_attention import call

        return call.attention(
            q, k, v, indices, scale, layout, softcap, sink, return_lse, deterministic, backend, "gather_attention"
        )  # fmt: skip
    from . import numpy_attention

    return numpy_attention.attention(
        q, k, v, indices, scale=scale, layout=layout, softcap=softcap, sink=sink, return_lse=return_lse,
        backend=backend, function="gather_attention",
    )  # fmt: skip


def gather_attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    indices: Any,
    *,
    scale: float | None = None,
    layout: str = "bhsd",
    softcap: float = 0.0,
    sink: Any = None,
    backend: str = "auto",
) -> Any:
    """The gradients of `gather_attention` for NumPy arrays, as `attention_backward` gives those of `attention`.

    >>> import numpy as np
    >>> import keyhole
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 16, 8))
    >>> first_four = np.broadcast_to(np.arange(4), (1, 1, 16, 4))
    >>> out, lse = keyhole.gather_attention(q, k, v, first_four, return_lse=True)
    >>> dq, dk, dv = keyhole.gather_attention_backward(np.ones_like(out), q, k, v, out, lse, first_four)
    >>> bool(np.all(dv[:, :, 4:] == 0))
    True
    """
    if is_tensor(q):
        raise TypeError("gather_attention_backward takes NumPy arrays; for torch tensors call backward() on the result")
    from . import numpy_attention

    return numpy_attention.attention_backward(
        dout, q, k, v, out, lse, indices, scale=scale, layout=layout, softcap=softcap, sink=sink, backend=backend,
        function="gather_attention_backward",
    )  # fmt: skip


def merge(out: Any, lse: Any, other_out: Any, other_lse: Any, *, layout: str = "bhsd") -> Any:
    """Attention over two disjoint sets of keys, from the results over each. Rows that saw nothing are neutral.

    >>> import numpy as np
    >>> import keyhole
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1, 8, 4))
    >>> near = keyhole.attention(q, k, v, "causal & window(2)", return_lse=True)
    >>> far = keyhole.attention(q, k, v, "causal & ~window(2)", return_lse=True)
    >>> out, lse = keyhole.merge(*near, *far)
    >>> bool(np.allclose(out, keyhole.attention(q, k, v, "causal")))
    True
    """
    if is_tensor(out):
        from .torch_attention import call

        return call.merge(out, lse, other_out, other_lse, layout=layout)
    from . import numpy_attention

    return numpy_attention.merge(out, lse, other_out, other_lse, layout=layout)
