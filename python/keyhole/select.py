# python/keyhole/select.py
"""Keys chosen from data: an indexer scores every key, the best are kept, and attention runs on them alone. For NumPy
arrays and torch tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from .index_keys import check_keys, size_of_entry
from .lists import is_tensor
from .pattern import as_integer
from .plan import PlanLike

if TYPE_CHECKING:
    import numpy as np
    import torch

    from .lists import KeyLists

    KeysLike: TypeAlias = PlanLike | KeyLists | np.ndarray[Any, Any] | torch.Tensor

__all__ = ["index_loss", "index_loss_backward", "index_scores", "select_keys", "top_k"]


def index_scores(
    q: Any, k: Any, w: Any = None, *, k_scale: Any = None, visible: PlanLike | None = None, backend: str = "auto"
) -> Any:
    """What an indexer thinks of every key: k_scale[s] * sum over its heads j of w[t, j] * max(q[t, j] . k[s], 0).

    q           [batch, index_heads, q_len, head_dim]: fp32, bf16, fp16, e4m3, or fp64 on the CPU
    k           [batch, groups, entries, head_dim], of the same dtype. The heads of q are divided evenly among the
                groups, and each group has its own scores. An entry is a key, or several that are chosen together
    w           [batch, index_heads, q_len]: the weights of the heads, of either sign; 1 by default
    k_scale     [batch, groups, entries]: multiplies the scores of an entry; 1 by default
    visible     a pattern, its text, or a plan for groups in place of heads; all entries by default
    backend     as in `keyhole.attention`
    returns     [batch, groups, q_len, entries], fp32 (fp64 for fp64); -inf where an entry is not visible

    It has no gradient: an indexer learns from `index_loss`.

    >>> import numpy as np
    >>> import keyhole
    >>> q, k = np.ones((1, 2, 3, 4), np.float32), np.ones((1, 1, 3, 4), np.float32)
    >>> keyhole.index_scores(q, k, visible="causal")[0, 0]
    array([[  8., -inf, -inf],
           [  8.,   8., -inf],
           [  8.,   8.,   8.]], dtype=float32)
    """
    if is_tensor(q):
        from .torch_select import call

        return call.index_scores(q, k, w, k_scale, visible, backend)
    from . import numpy_select

    return numpy_select.index_scores(q, k, w, k_scale, visible, backend)


def top_k(
    scores: Any,
    k: int,
    *,
    visible: PlanLike | None = None,
    always: PlanLike | None = None,
    return_counts: bool = False,
    backend: str = "auto",
) -> Any:
    """The k best entries of each row of scores, exactly, and in the same order on every run and every backend.

    scores      [batch, groups, q_len, entries]: fp32, bf16, fp16, or fp64 on the CPU
    k           how many to choose, 1 or more
    visible     which entries a query may choose: a pattern, its text, or a plan; all by default
    always      a pattern whose entries are chosen before all others if they are visible, whatever their scores
    return_counts
                also return how many entries each query has
    returns     int32 [batch, groups, q_len, k]: the chosen entries in ascending order, then -1. With
                return_counts=True the pair (indices, counts), where counts is int32 [batch, groups, q_len]

    Of equal scores the first entry wins; -0 equals 0. NaN and -inf are never chosen, except by `always`. A query with
    fewer than k choices takes them all. The result can be passed to `keyhole.attention` as its lists.

    >>> import numpy as np
    >>> import keyhole
    >>> scores = np.array([[3.0, 1, 3, 2, np.nan, 3]], np.float32)[None, None]
    >>> keyhole.top_k(scores, 2)
    array([[[[0, 2]]]], dtype=int32)
    >>> keyhole.top_k(scores, 3, always="sinks(2)", visible=keyhole.sinks(5))
    array([[[[0, 1, 2]]]], dtype=int32)
    """
    k = _count("top_k", "k", k)
    if is_tensor(scores):
        from .torch_select import call

        return call.top_k(scores, k, visible, always, return_counts, backend)
    from . import numpy_select

    return numpy_select.top_k(scores, k, visible, always, return_counts, backend)


def select_keys(
    q: Any,
    k: Any,
    w: Any = None,
    *,
    top_k: int,
    k_scale: Any = None,
    visible: PlanLike | None = None,
    always: PlanLike | None = None,
    return_counts: bool = False,
    backend: str = "auto",
) -> Any:
    """`top_k` of `index_scores`, without an array of all scores. Arguments and results are theirs.

    A query with at most top_k visible entries takes them all, whatever their scores.

    >>> import numpy as np
    >>> import keyhole
    >>> draw = np.random.default_rng(0)
    >>> index_q, index_k = draw.standard_normal((1, 4, 100, 16)), draw.standard_normal((1, 1, 100, 16))
    >>> q, k, v = draw.standard_normal((3, 1, 8, 100, 32))
    >>> chosen = keyhole.select_keys(index_q, index_k, top_k=8, visible="causal")
    >>> chosen.shape, chosen[0, 0, 2]
    ((1, 1, 100, 8), array([ 0,  1,  2, -1, -1, -1, -1, -1], dtype=int32))
    >>> keyhole.attention(q, k, v, chosen).shape
    (1, 8, 100, 32)
    """
    count = _count("select_keys", "top_k", top_k)
    if is_tensor(q):
        from .torch_select import call

        return call.select_keys(q, k, w, k_scale, count, visible, always, return_counts, backend)
    from . import numpy_select

    return numpy_select.select_keys(q, k, w, k_scale, count, visible, always, return_counts, backend)


def index_loss(
    index_q: Any,
    index_k: Any,
    w: Any,
    q: Any,
    k: Any,
    lse: Any,
    keys: KeysLike,
    *,
    keys_per_entry: int | None = None,
    k_scale: Any = None,
    scale: float | None = None,
    softcap: float = 0.0,
    rows: Any = None,
    deterministic: bool = False,
    backend: str = "auto",
) -> Any:
    """How far an indexer is from what attention looks at: for every query and group the divergence KL(p || softmax of
    the scores) over the listed keys. p is the weight that attention gives a key, summed over the query heads of the
    group and divided by its sum over the list. Differentiable in index_q, index_k and w for torch tensors.

    index_q, index_k, w, k_scale
                of the indexer, as in `index_scores`; w may be None. An entry is one key, or keys_per_entry of them
    q, k        of the attention: [batch, q_heads, q_len, head_dim] and [batch, kv_heads, k_len, head_dim]
    lse         [batch, q_heads, q_len]: what `keyhole.attention(..., return_lse=True)` returned, with its sinks and all
                other keys that shared the softmax
    keys        the keys that are compared, those of the attention: a pattern, its text or a plan (all that it sees), or
                key indices [batch, heads, q_len, entries] from `select_keys`, where -1 is padding and no key is listed
                twice; or `KeyLists` of such indices
    keys_per_entry
                how many keys an entry of index_k stands for: entry e for the keys e * keys_per_entry to (e + 1) *
                keys_per_entry - 1, as far as k has them. By default as many as an entry of `KeyLists` names, else 1. p
                is then summed over the listed keys of an entry, which is listed if any of them is
    scale, softcap
                those of the attention
    rows        [n], integers in ascending order: only these queries are compared, and the others have loss 0. None: all
    deterministic
                gradients have the same bits from run to run; on the CPU they always do
    backend     as in `keyhole.attention`
    returns     [batch, groups, q_len], fp32 (fp64 for fp64). A query without keys has loss 0

    The attention is what the indexer learns from: q, k and lse get no gradient. Nothing of size q_len x k_len is
    stored.

    >>> import numpy as np
    >>> import keyhole
    >>> draw = np.random.default_rng(0)
    >>> index_q, index_k = draw.standard_normal((1, 4, 100, 16)), draw.standard_normal((1, 1, 100, 16))
    >>> q, k, v = draw.standard_normal((3, 1, 8, 100, 32))
    >>> chosen = keyhole.select_keys(index_q, index_k, top_k=8, visible="causal")
    >>> out, lse = keyhole.attention(q, k, v, chosen, return_lse=True)
    >>> loss = keyhole.index_loss(index_q, index_k, None, q, k, lse, chosen)
    >>> loss.shape, bool((loss > -1e-12).all())
    ((1, 1, 100), True)
    """
    check_keys("index_loss", keys, index_q)
    size = size_of_entry("index_loss", keys, keys_per_entry)
    if is_tensor(index_q):
        from .torch_select import call

        return call.index_loss(
            index_q, index_k, w, k_scale, q, k, lse, keys, size, rows, scale, softcap, deterministic, backend
        )
    from . import numpy_select

    loss, _ = numpy_select.index_loss(
        index_q, index_k, w, k_scale, q, k, lse, keys, size, rows, scale, softcap, backend
    )
    return loss


def index_loss_backward(
    dloss: Any,
    index_q: Any,
    index_k: Any,
    w: Any,
    q: Any,
    k: Any,
    lse: Any,
    keys: KeysLike,
    *,
    keys_per_entry: int | None = None,
    k_scale: Any = None,
    scale: float | None = None,
    softcap: float = 0.0,
    rows: Any = None,
    backend: str = "auto",
) -> Any:
    """The gradients of `index_loss` for NumPy arrays; torch users call `backward()` on the result instead.

    dloss       [batch, groups, q_len]: the gradient of the loss
    others      as in `index_loss`
    returns     (dindex_q, dindex_k), or (dindex_q, dindex_k, dw) with w

    >>> import numpy as np
    >>> import keyhole
    >>> draw = np.random.default_rng(0)
    >>> index_q, index_k = draw.standard_normal((1, 4, 10, 16)), draw.standard_normal((1, 1, 10, 16))
    >>> q, k, v = draw.standard_normal((3, 1, 8, 10, 32))
    >>> out, lse = keyhole.attention(q, k, v, "causal", return_lse=True)
    >>> dq, dk = keyhole.index_loss_backward(np.ones((1, 1, 10)), index_q, index_k, None, q, k, lse, "causal")
    >>> dq.shape == index_q.shape and dk.shape == index_k.shape
    True
    """
    if is_tensor(index_q):
        raise TypeError("index_loss_backward takes NumPy arrays; for torch tensors call backward() on the loss")
    check_keys("index_loss_backward", keys, index_q)
    size = size_of_entry("index_loss_backward", keys, keys_per_entry)
    from . import numpy_select

    return numpy_select.index_loss_backward(
        dloss, index_q, index_k, w, k_scale, q, k, lse, keys, size, rows, scale, softcap, backend
    )


def _count(function: str, name: str, number: Any) -> int:
    count = as_integer(number, f"{function}: {name}")
    if count < 1:
        raise ValueError(f"{function}: {name} is {count}; expected 1 or more entries for each query")
    return count
