# tests/python/numpy_reference.py
"""Attention in fp64 as the textbook has it, over a boolean mask [batch, q_heads, q_len, k_len]; and its gradients.

Knows nothing of keyhole, so that the two can disagree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


class Forward(NamedTuple):
    out: np.ndarray
    lse: np.ndarray


class Gradients(NamedTuple):
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    dsink: np.ndarray


def draw(*shape, dtype=np.float64, seed=0):
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(dtype)


def draw_qkv(batch, heads, kv_heads, q_len, k_len, head_dim=16, v_head_dim=24, dtype=np.float64, **_):
    return (
        draw(batch, heads, q_len, head_dim, dtype=dtype),
        draw(batch, kv_heads, k_len, head_dim, dtype=dtype, seed=1),
        draw(batch, kv_heads, k_len, v_head_dim, dtype=dtype, seed=2),
    )


def forward(q, k, v, mask, *, scale=None, softcap=0.0, sink=None) -> Forward:
    """Masked scores are left out, never added to: rows without any key are 0, and -inf in lse."""
    scores, _, v = _scores(q, k, v, scale, softcap)
    weights, lse = _softmax(scores, mask, sink)
    return Forward(weights @ v, lse)


def counted(q, k, v, counts, *, scale=None, softcap=0.0, sink=None) -> Forward:
    """The same, where counts [batch, q_heads, q_len, k_len] says how often a query names a key."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x.astype(np.float64), group, axis=1) for x in (k, v))
    scores = q.astype(np.float64) @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    weights = counts * np.exp(scores)
    total = weights.sum(-1) + (0 if sink is None else np.exp(sink.astype(np.float64))[None, :, None])
    with np.errstate(divide="ignore"):
        lse = np.log(total)
    return Forward((weights @ v) / np.where(total == 0, 1, total)[..., None], lse)


def backward(dout, q, k, v, mask, *, scale=None, softcap=0.0, sink=None) -> Gradients:
    """By hand, through softmax, softcap and the product."""
    group = q.shape[1] // k.shape[1]
    scores, slope, v64 = _scores(q, k, v, scale, softcap)
    weights, lse = _softmax(scores, mask, sink)
    dout = dout.astype(np.float64)
    dweights = dout @ np.swapaxes(v64, -1, -2)
    out_dot = (dweights * weights).sum(-1, keepdims=True)
    dscores = weights * (dweights - out_dot) * slope * _scale(q, scale)
    dk = np.swapaxes(dscores, -1, -2) @ q.astype(np.float64)
    dv = np.swapaxes(weights, -1, -2) @ dout
    dq = dscores @ np.repeat(k.astype(np.float64), group, axis=1)
    dsink = np.zeros(q.shape[1])
    if sink is not None:
        sink_weight = np.exp(sink.astype(np.float64)[None, :, None] - lse)
        dsink = -(sink_weight * out_dot[..., 0]).sum((0, 2))
    return Gradients(dq, _per_group(dk, group), _per_group(dv, group), dsink)


def check(name, got, want, *, factor=64.0):
    """Within `factor` roundings of the largest element, and special values in exactly the same places."""
    assert got.shape == want.shape, f"{name}: shape {got.shape}, expected {want.shape}"
    dtype = got.dtype.name
    got = got.astype(np.float64)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want), err_msg=name)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite], err_msg=name)
    largest = np.abs(want[finite]).max(initial=1.0)
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=factor * ROUNDING[dtype] * largest, err_msg=name)


def _scale(q, scale):
    return q.shape[-1] ** -0.5 if scale is None else scale


def _scores(q, k, v, scale, softcap):
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = _scale(q, scale) * (q @ np.swapaxes(k, -1, -2))
    if softcap == 0:
        return scores, 1.0, v
    bent = np.tanh(scores / softcap)
    return softcap * bent, 1 - bent**2, v


def _softmax(scores, mask, sink):
    scores = np.where(mask, scores, -np.inf)
    logits = scores if sink is None else np.concatenate([scores, np.broadcast_to(
        sink.astype(np.float64)[None, :, None, None], (*scores.shape[:3], 1))], axis=-1)  # fmt: skip
    top = logits.max(-1, keepdims=True, initial=-np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = np.where(np.isfinite(top), top + np.log(np.exp(logits - top).sum(-1, keepdims=True)), -np.inf)
        weights = np.where(np.isfinite(lse), np.exp(scores - lse), 0.0)
    return weights, lse[..., 0]


def _per_group(gradient, group):
    batch, heads, length, dim = gradient.shape
    return gradient.reshape(batch, heads // group, group, length, dim).sum(2)
