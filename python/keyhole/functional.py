# python/keyhole/functional.py
"""The public functions. Each one takes NumPy arrays or torch tensors, and calls the implementation for that kind."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

from . import _core
from .lists import KeyLists, TileLists, is_tensor
from .normalizer import ALL_KEYS, normalizer_of, refuse_to_merge
from .plan import PlanLike

if TYPE_CHECKING:
    import numpy as np
    import torch

    ListsLike: TypeAlias = PlanLike | KeyLists | TileLists | np.ndarray[Any, Any] | torch.Tensor

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
    alpha: float = 1.0,
    top_k: int | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
    backend: str = "auto",
    out: Any = None,
) -> Any:
    """Attention of `q` over `k` and `v`, computed only for the pairs that `lists` selects. Differentiable for torch
    tensors.

    q           [batch, q_heads, q_len, head_dim]
    k           [batch, kv_heads, k_len, head_dim]; q_heads is a multiple of kv_heads
    v           [batch, kv_heads, k_len, v_head_dim]
    lists       which keys each query attends to. One of:
                - a pattern, its text, or a plan from `keyhole.plan(...)`
                - key indices [batch, heads, lists, entries], int32 or int64; see `gather_attention`
                - `KeyLists`: key indices with counts, several keys per entry, or without the keys after a query
                - `TileLists`
    scale       multiplies q . k; head_dim ** -0.5 by default. A plain number: to learn a scale, multiply q by it and
                pass scale=1.0
    layout      "bhsd" as above; "bshd": q, k, v and the result are [batch, length, heads, head_dim]
    softcap     c > 0: a score s becomes c * tanh(s / c), before masking
    sink        [q_heads], fp32: one extra logit per head. It joins the sum of the softmax, and has no value
    alpha       1: softmax. Above 1, up to 2: alpha-entmax, which gives most keys a weight of exactly 0 (docs/splash.md)
    top_k       only the keys with the top_k largest scores of a query take part; None: all. Among equal scores the
                first key wins
    return_lse  also return the logsumexp of the scores, [batch, q_heads, q_len], fp32 (fp64 for fp64 inputs). For
                entmax it is the threshold statistic lambda, which tends to it as alpha tends to 1
    deterministic
                gradients have the same bits from run to run; on the CPU they always do
    backend     "auto", or a backend that `keyhole info` lists, such as "cpu"
    out         an array or tensor with the shape, dtype and device of the result. The result is written into it, and
                it is returned. As in torch, out= gives no gradients: the call is refused if a tensor requires them
    returns     [batch, q_heads, q_len, v_head_dim], an array or tensor like q; with return_lse=True the pair (out, lse)

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
    keys = ALL_KEYS
    is_softmax = type(alpha) is float and alpha == 1.0 and top_k is None
    if not is_softmax:
        alpha, keys = normalizer_of("attention", alpha, top_k)
    torch = sys.modules.get("torch")  # is_tensor(q), written out: saves a call
    if torch is not None and isinstance(q, torch.Tensor):
        compiler = torch.compiler
        # The fast path. torch.compile cannot trace it.
        is_plain = is_softmax and sink is out is None and not return_lse and layout == "bhsd"
        if is_plain and not compiler.is_dynamo_compiling():
            result = _core.forward_if_plain(q, k, v, lists, scale, softcap, backend)
            if result is not None:
                return result
        # An import statement costs as much as all other checks of a call together, so look the loaded module up. Not
        # while compiling: torch.compile would turn the lookup into a guard of its graph.
        call: Any = None if compiler.is_compiling() else sys.modules.get("keyhole.torch_attention.call")
        if call is None:
            from .torch_attention import call as loaded

            call = loaded
        return call.attention(
            q, k, v, lists, scale, layout, softcap, sink, return_lse, deterministic, backend, out=out, alpha=alpha,
            top_k=keys,
        )  # fmt: skip
    from . import numpy_attention

    return numpy_attention.attention(
        q, k, v, lists, scale=scale, layout=layout, softcap=softcap, sink=sink, return_lse=return_lse,
        backend=backend, out=out, alpha=alpha, top_k=keys,
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
    alpha: float = 1.0,
    top_k: int | None = None,
    backend: str = "auto",
) -> Any:
    """The gradients of `attention` for NumPy arrays; torch users call `backward()` on the result instead.

    dout        the gradient of the result, with the result's shape
    out, lse    the results of `attention(..., return_lse=True)`. If the keys were attended in parts, pass the merged
                results
    returns     (dq, dk, dv), or (dq, dk, dv, dsink) with a sink

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
    alpha, keys = normalizer_of("attention_backward", alpha, top_k)
    from . import numpy_attention

    return numpy_attention.attention_backward(
        dout, q, k, v, out, lse, lists, scale=scale, layout=layout, softcap=softcap, sink=sink,
        backend=backend, alpha=alpha, top_k=keys,
    )  # fmt: skip


def gather_attention(
    q: Any,
    k: Any,
    v: Any,
    indices: Any,
    *,
    counts: Any = None,
    keys_per_entry: int = 1,
    causal: bool = False,
    scale: float | None = None,
    layout: str = "bhsd",
    softcap: float = 0.0,
    sink: Any = None,
    return_lse: bool = False,
    deterministic: bool = False,
    backend: str = "auto",
) -> Any:
    """Attention over keys that the program selects at run time, for example by top-k, retrieval or hashing. It is
    `attention` with key indices as its lists. There is no pattern and no plan, and on a GPU nothing is copied back to
    the host. Differentiable for torch tensors.

    indices     [batch, heads, lists, entries], int32 or int64, in this order for every layout of q
                - heads: as many as k has (the query heads of one kv head share a list), as many as q has, or 1
                - lists: one per query; or fewer, and then ceil(q_len / lists) neighbouring queries share a list
    counts, keys_per_entry, causal
                as in `KeyLists`: how many entries of each list are used, how many keys an entry names, and whether the
                keys after a query are skipped
    others      as in `attention`

    Keys may come in any order. A key that is listed twice counts twice. -1 is padding and may stand anywhere; a query
    whose list holds only padding gets zeros. Any other entry outside 0 ... k_len - 1 is a ValueError on the CPU. On a
    GPU it counts as padding, because reporting an error would mean waiting for the device.

    >>> import numpy as np
    >>> import keyhole
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 4, 128, 64), dtype=np.float32)
    >>> scores = q @ k.swapaxes(-1, -2)
    >>> best = np.argpartition(-scores, 16)[..., :16]  # the 16 keys with the highest scores, for every query and head
    >>> keyhole.gather_attention(q, k, v, best).shape
    (1, 4, 128, 64)
    """
    lists = _key_lists(indices, counts, keys_per_entry, causal)
    if is_tensor(q):
        from .torch_attention import call

        return call.attention(
            q, k, v, lists, scale, layout, softcap, sink, return_lse, deterministic, backend, "gather_attention"
        )  # fmt: skip
    from . import numpy_attention

    return numpy_attention.attention(
        q, k, v, lists, scale=scale, layout=layout, softcap=softcap, sink=sink, return_lse=return_lse,
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
    counts: Any = None,
    keys_per_entry: int = 1,
    causal: bool = False,
    scale: float | None = None,
    layout: str = "bhsd",
    softcap: float = 0.0,
    sink: Any = None,
    backend: str = "auto",
) -> Any:
    """The gradients of `gather_attention` for NumPy arrays. Arguments and results are those of `attention_backward`,
    with indices as lists.

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
        dout, q, k, v, out, lse, _key_lists(indices, counts, keys_per_entry, causal), scale=scale, layout=layout,
        softcap=softcap, sink=sink, backend=backend, function="gather_attention_backward",
    )  # fmt: skip


def _key_lists(indices: Any, counts: Any, keys_per_entry: int, causal: bool) -> Any:
    """Indices as they are if they mean no more than keys."""
    if counts is None and keys_per_entry == 1 and causal is False:
        return indices
    return KeyLists(indices, counts=counts, keys_per_entry=keys_per_entry, causal=causal)


def merge(
    out: Any,
    lse: Any,
    other_out: Any,
    other_lse: Any,
    *,
    layout: str = "bhsd",
    alpha: float = 1.0,
    top_k: int | None = None,
) -> Any:
    """Attention over the union of two disjoint sets of keys, computed from the results over each. A row that attends to
    nothing in one set takes the other set's result.

    alpha, top_k  those of the two calls. Only the results of softmax can be joined; others are refused

    >>> import numpy as np
    >>> import keyhole
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1, 8, 4))
    >>> near = keyhole.attention(q, k, v, "causal & window(2)", return_lse=True)
    >>> far = keyhole.attention(q, k, v, "causal & ~window(2)", return_lse=True)
    >>> out, lse = keyhole.merge(*near, *far)
    >>> bool(np.allclose(out, keyhole.attention(q, k, v, "causal")))
    True
    """
    if alpha != 1.0 or top_k is not None:
        refuse_to_merge(alpha, top_k)
    if is_tensor(out):
        from .torch_attention import call

        return call.merge(out, lse, other_out, other_lse, layout=layout)
    from . import numpy_attention

    return numpy_attention.merge(out, lse, other_out, other_lse, layout=layout)
