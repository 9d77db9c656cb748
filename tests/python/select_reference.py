"""Selection by its definition, in NumPy and fp64, pair by pair where that is clearest. Knows nothing of keyhole, so
that the two can disagree.
"""

from __future__ import annotations

import numpy as np


def scores_of(q, k, w=None, k_scale=None, visible=None):
    """[batch, groups, q_len, entries]; `visible` broadcasts to that."""
    q, k = q.astype(np.float64), k.astype(np.float64)
    batch, heads, q_len, dim = q.shape
    groups = k.shape[1]
    products = q.reshape(batch, groups, heads // groups, q_len, dim) @ np.swapaxes(k, -1, -2)[:, :, None]
    products = np.maximum(products, 0)
    if w is not None:
        products = products * w.astype(np.float64).reshape(batch, groups, heads // groups, q_len, 1)
    scores = products.sum(2)
    if k_scale is not None:
        scores = scores * k_scale.astype(np.float64)[:, :, None]
    return scores if visible is None else np.where(visible, scores, -np.inf)


def chosen_of(scores, k, visible=None, always=None, takes_short_rows=False):
    """(indices, counts), row by row: those of `always`, then the best, the first of equal ones."""
    shape = scores.shape
    visible = np.broadcast_to(True if visible is None else visible, shape)
    always = np.broadcast_to(False if always is None else always, shape)
    indices, counts = np.full((*shape[:3], k), -1, np.int32), np.zeros(shape[:3], np.int32)
    for row in np.ndindex(*shape[:3]):
        seen = np.flatnonzero(visible[row])
        first = [s for s in seen if always[row][s]]
        others = [s for s in seen if not always[row][s]]
        if not (takes_short_rows and len(seen) <= k):
            others = [s for s in others if not np.isnan(scores[row][s]) and scores[row][s] != -np.inf]
        others.sort(key=lambda s: -float(scores[row][s]))  # stable, and -0.0 == 0.0
        taken = sorted((first + others)[:k])
        indices[row][: len(taken)] = taken
        counts[row] = len(taken)
    return indices, counts


def listed_of(keys, k_len):
    """Indices [batch, heads, q_len, entries] as a mask [batch, heads, q_len, k_len]."""
    mask = np.zeros((*keys.shape[:3], k_len + 1), bool)
    np.put_along_axis(mask, np.where(keys < 0, k_len, keys).astype(np.int64), True, -1)
    return mask[..., :k_len]


def loss_of(scores, q, k, lse, listed, *, scale=None, softcap=0.0, rows=None, keys_per_entry=1):
    """[batch, groups, q_len]: KL(p || softmax(scores)) over the listed keys [batch, groups or 1, q_len, k_len]. An
    entry stands for keys_per_entry keys, and p is summed over those that are listed."""
    batch, groups, q_len, entries = scores.shape
    heads, kv_heads, k_len = q.shape[1], k.shape[1], k.shape[2]
    k = np.repeat(k.astype(np.float64), heads // kv_heads, 1)
    logits = q.astype(np.float64) @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        logits = softcap * np.tanh(logits / softcap)
    listed = np.broadcast_to(listed, (batch, groups, q_len, k_len))
    with np.errstate(all="ignore"):
        weights = np.exp(logits - lse.astype(np.float64)[..., None]).reshape(
            batch, groups, heads // groups, q_len, k_len
        )
        weights = weights.sum(2)
        weights = np.where(listed, weights, 0)
        missing = [(0, 0)] * 3 + [(0, entries * keys_per_entry - k_len)]
        weights, listed = (np.pad(x, missing).reshape(*scores.shape, keys_per_entry) for x in (weights, listed))
        weights, listed = weights.sum(-1), listed.any(-1)
        total = weights.sum(-1, keepdims=True)
        p = np.where(total > 0, weights / total, 0)
        seen = np.where(listed, scores, -np.inf)
        top = seen.max(-1, keepdims=True, initial=-np.inf)
        log_q = seen - top - np.log(np.exp(seen - top).sum(-1, keepdims=True))
        loss = np.where(p > 0, p * (np.log(p) - log_q), 0).sum(-1)
    if rows is not None:
        loss = np.where(np.isin(np.arange(q_len), rows), loss, 0)
    return loss
