# tests/python/test_torch_splash.py
"""alpha-entmax and top_k: weights, gradients, refusals; SplashAttention with positions."""

import math

import keyhole
import numpy as np
import pytest
import torch
from torch_reference import DEVICES, captured, needs_gpu

ALPHAS = [1.0, 1.1, 1.25, 1.5, 1.75, 2.0]


def weights_of(scores, alpha, top_k=None):
    """The weights of a row and lambda in fp64, by bisection."""
    scores = np.asarray(scores, np.float64)
    weights = np.zeros_like(scores)
    chosen = np.argsort(-scores, kind="stable")[:top_k]
    chosen = chosen[np.isfinite(scores[chosen])]
    if not len(chosen):
        return weights, -np.inf
    z = scores[chosen]
    if alpha == 1:
        lse = np.logaddexp.reduce(z)
        weights[chosen] = np.exp(z - lse)
        return weights, lse
    low, high = z.max(), z.max() + 1 / (alpha - 1) + math.log(len(z))
    for _ in range(200):
        middle = (low + high) / 2
        total = (np.maximum(1 + (alpha - 1) * (z - middle), 0) ** (1 / (alpha - 1))).sum()
        low, high = (middle, high) if total > 1 else (low, middle)
    weights[chosen] = np.maximum(1 + (alpha - 1) * (z - low), 0) ** (1 / (alpha - 1))
    return weights, low


def reference(q, k, v, visible, alpha, top_k=None, scale=None):
    """out and lambda of [heads, length, head_dim] in fp64. visible: [q_len, k_len]."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out, lse = np.zeros((*q.shape[:2], v.shape[-1])), np.zeros(q.shape[:2])
    for head in range(q.shape[0]):
        kv_head = head // (q.shape[0] // k.shape[0])
        scores = np.where(visible, scale * q[head].astype(np.float64) @ k[kv_head].T.astype(np.float64), -np.inf)
        for i, row in enumerate(scores):
            weights, lse[head, i] = weights_of(row, alpha, top_k)
            out[head, i] = weights @ v[kv_head]
    return out, lse


def draw(*shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


VECTORS = {
    "1.5": ([1, 0, -1], 1.5, [(4 + 7**0.5) / 8, (4 - 7**0.5) / 8, 0]),
    "sparsemax": ([1, 0, -1], 2.0, [1, 0, 0]),
    "one key left": ([0, -2], 1.5, [1, 0]),
    "far from 0": ([1000.5, 1000, 999], 1.5, [0.671163994158, 0.324040998540, 0.00479500730241]),
    "1.25": ([1, 0.5, -2], 1.25, [0.645532078674, 0.354009129316, 0.000458792010221]),
}


@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name):
    scores, alpha, expected = VECTORS[name]
    n = len(scores)
    k = np.array(scores, np.float64).reshape(1, 1, n, 1)
    out = keyhole.attention(np.ones((1, 1, 1, 1)), k, np.eye(n).reshape(1, 1, n, n), "dense", scale=1.0, alpha=alpha)
    assert np.allclose(out.ravel(), expected, rtol=0, atol=2e-12)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # bf16 cannot hold 1000.5
@pytest.mark.parametrize("name", VECTORS)
def test_gpu_vectors(name, dtype):
    scores, alpha, expected = VECTORS[name]
    k = torch.zeros(1, 1, len(scores), 64, dtype=dtype, device="cuda")
    v, q = torch.eye(len(scores), 64, dtype=dtype, device="cuda")[None, None], torch.zeros_like(k[:, :, :1])
    k[0, 0, :, 0], q[..., 0] = torch.tensor(scores, dtype=dtype), 1
    out = keyhole.attention(q, k, v, "dense", scale=1.0, alpha=alpha)[0, 0, 0, : len(scores)].double().cpu().numpy()
    assert np.allclose(out, expected, rtol=0, atol=2e-6 if dtype == torch.float32 else 5e-4)


@pytest.mark.parametrize("top_k", [None, 1, 3, 1000])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("pattern", ["causal", "dense", "causal & window(9)", "strided(8)", "blocks(16) | sinks(2)"])
def test_numpy_agrees_with_the_definition(pattern, alpha, top_k):
    q, k, v = draw(1, 4, 70, 16), draw(1, 2, 70, 16, seed=1), draw(1, 2, 70, 8, seed=2)
    out, lse = keyhole.attention(q, k, v, pattern, alpha=alpha, top_k=top_k, return_lse=True)
    visible = keyhole.parse(pattern).mask(70, 70)
    want, want_lse = reference(q[0], k[0], v[0], visible, alpha, top_k)
    assert np.allclose(out[0], want, rtol=0, atol=1e-9)
    assert np.allclose(lse[0], want_lse, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_torch_agrees_with_the_definition(alpha, dtype):
    q, k, v = (torch.from_numpy(draw(1, 2, 130, 32, seed=i)).to(dtype) for i in range(3))
    out = keyhole.attention(q, k, v, "causal", alpha=alpha)
    want, _ = reference(*(x[0].double().numpy() for x in (q, k, v)), keyhole.causal().mask(130, 130), alpha)
    rounding = 2 * torch.finfo(dtype).eps * np.abs(want).max()
    assert np.abs(out[0].double().numpy() - want).max() <= 1e-5 + rounding


@pytest.mark.parametrize("top_k", [None, 3])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_gradients_agree_with_differences(alpha, top_k, softcap):
    q, k, v = (torch.from_numpy(draw(1, heads, 12, 4, seed=heads + 3 * i)) for i, heads in enumerate((4, 2, 2)))

    def attend(q, k, v):
        return keyhole.attention(
            q, k, v, "causal", alpha=alpha, top_k=top_k, softcap=softcap, return_lse=True, deterministic=True
        )

    assert torch.autograd.gradcheck(attend, [x.requires_grad_() for x in (q, k, v)], eps=1e-7, atol=1e-5)


def test_known_gradients():
    q, k, v, dout = (
        torch.tensor(x, dtype=torch.float64)[None, None]
        for x in (
            [[1, 0], [0, 1], [1, 1], [2, -1]],
            [[1, 0], [0, 1], [1, 1], [-1, 2]],
            [[1, 0], [0, 1], [2, 2], [-1, 3]],
            [[1, 0], [0, 1], [1, -1], [2, 1]],
        )
    )
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out = keyhole.attention(q, k, v, "causal", scale=1.0, alpha=1.5)
    dq, dk = torch.autograd.grad(out, (q, k), dout)
    assert torch.allclose(out[0, 0, 1], torch.tensor([0.169281086117, 0.830718913883], dtype=torch.float64))
    assert torch.allclose(dq[0, 0, 3], torch.tensor([0, 1.13389341903], dtype=torch.float64))
    assert torch.allclose(dk[0, 0, 0], torch.tensor([-1.90740722803, 1.2107996743], dtype=torch.float64))
    out = keyhole.attention(q, k, v, "causal", scale=1.0, alpha=1.5, top_k=2)
    (dk,) = torch.autograd.grad(out, k, dout)
    assert torch.allclose(out[0, 0, 2], torch.tensor([1.83071891388, 1.66143782777], dtype=torch.float64))
    assert torch.allclose(dk[0, 0, 0], torch.tensor([-1.9843134833, 1.13389341903], dtype=torch.float64))


def test_numpy_gradients_are_those_of_torch():
    q, k, v, dout = (draw(2, 2, 50, 8, seed=i) for i in range(4))
    out, lse = keyhole.attention(q, k, v, "causal", alpha=1.5, top_k=6, return_lse=True)
    got = keyhole.attention_backward(dout, q, k, v, out, lse, "causal", alpha=1.5, top_k=6)
    tensors = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
    keyhole.attention(*tensors, "causal", alpha=1.5, top_k=6).backward(torch.from_numpy(dout))
    for ours, tensor in zip(got, tensors, strict=True):
        assert np.allclose(ours, tensor.grad.numpy(), rtol=0, atol=1e-12)


def test_a_sink_takes_weight():
    q, k, v = (torch.from_numpy(draw(1, 2, 20, 8, seed=i)).requires_grad_() for i in range(3))
    sink = torch.tensor([5.0, -100.0], requires_grad=True)
    out = keyhole.attention(q, k, torch.ones_like(v), "causal", alpha=1.5, sink=sink)
    assert (out[0, 0] < 0.999).all()
    assert torch.allclose(out[0, 1], torch.ones_like(out[0, 1]))  # it is below every threshold
    dsink = torch.autograd.grad(keyhole.attention(q, k, v, "causal", alpha=1.5, sink=sink).sum(), sink)[0]
    assert dsink[1] == 0
    moved = [
        keyhole.attention(q, k, v, "causal", alpha=1.5, sink=torch.tensor([5.0 + step, -100.0])).sum()
        for step in (1e-3, -1e-3)
    ]
    assert torch.allclose(dsink[0].double(), (moved[0] - moved[1]) / 2e-3, rtol=1e-3, atol=1e-4)


def test_softmax_keeps_its_bits():
    q, k, v = (torch.from_numpy(draw(1, 2, 90, 16, seed=i, dtype=np.float32)) for i in range(3))
    assert torch.equal(keyhole.attention(q, k, v, "causal", alpha=1), keyhole.attention(q, k, v, "causal"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("device", DEVICES)
def test_values_without_weight_are_not_read(device, dtype):
    q, k, v = (torch.from_numpy(draw(1, 1, 64, 16, seed=i)).to(device, dtype) for i in range(3))
    q = 8 * q
    want = keyhole.attention(q, k, v, "causal", alpha=2.0)
    eye = torch.eye(64, device=device, dtype=dtype)[None, None]
    unused = (keyhole.attention(q, k, eye, "causal", alpha=2.0)[0, 0] == 0).all(0)
    assert unused.any()
    v[0, 0, unused] = torch.nan
    got = keyhole.attention(q, k, v, "causal", alpha=2.0)
    if device == "cpu":
        assert torch.equal(got, want)
    assert torch.allclose(got, want, rtol=4 * torch.finfo(dtype).eps, atol=max(1e-5, torch.finfo(dtype).eps))


@pytest.mark.parametrize("top_k", [None, 4])
def test_compiled_in_one_graph(top_k):
    def step(q, k, v):
        return keyhole.attention(q, k, v, "causal & window(20)", alpha=1.5, top_k=top_k)

    inputs = [torch.from_numpy(draw(1, 2, 40, 16, seed=i, dtype=np.float32)).requires_grad_() for i in range(3)]
    others = [x.detach().clone().requires_grad_() for x in inputs]
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)(*inputs)
    eager = step(*others)
    assert torch.equal(compiled, eager)
    compiled.sum().backward()
    eager.sum().backward()
    for ours, other in zip(inputs, others, strict=True):
        assert torch.equal(ours.grad, other.grad)


def test_autocast():
    q, k, v = (torch.from_numpy(draw(1, 2, 40, 16, seed=i, dtype=np.float32)) for i in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        out = keyhole.attention(q, k, v, "causal", alpha=1.5)
    assert torch.equal(out, keyhole.attention(*(x.bfloat16() for x in (q, k, v)), "causal", alpha=1.5))


# ---- on a GPU


def dense_reference(q, k, v, dout, alpha, top_k=None):
    """out, dq, dk and dv of causal attention, [heads, length, head_dim], in fp64 over all pairs."""
    q, k, v, dout = (x.double() for x in (q, k, v, dout))
    scale, power = q.shape[-1] ** -0.5, 1 / (alpha - 1)
    visible = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    scores = (scale * q @ k.mT).masked_fill(~visible, -math.inf)
    if top_k is not None and top_k < k.shape[-2]:
        scores = scores.masked_fill(scores < scores.topk(top_k).values[..., -1:], -math.inf)
    low = scores.amax(-1, keepdim=True)
    high = low + power + math.log(k.shape[-2])
    for _ in range(80):
        middle = (low + high) / 2
        is_low = ((1 + (alpha - 1) * (scores - middle)).clamp(min=0) ** power).sum(-1, keepdim=True) > 1
        low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
    x = (1 + (alpha - 1) * (scores - low)).clamp(min=0)
    weights, slopes = x**power, torch.where(x > 0, x ** (power - 1), 0)
    dweights = dout @ v.mT
    delta = (slopes * dweights).sum(-1, keepdim=True) / slopes.sum(-1, keepdim=True)
    dscores = slopes * (dweights - delta) * scale
    return weights @ v, dscores @ k, dscores.mT @ q, weights.mT @ dout


def on_gpu(*shape, dtype=torch.bfloat16, count=4):
    generator = torch.Generator("cuda").manual_seed(5)
    return [torch.randn(shape, generator=generator, device="cuda").to(dtype) for _ in range(count)]


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [200, 1500])
@pytest.mark.parametrize(("alpha", "top_k"), [(1.25, None), (1.5, None), (1.5, 8), (1.75, None)])
def test_gpu_agrees_with_the_definition(alpha, top_k, length, dtype):
    q, k, v, dout = on_gpu(1, 2, length, 64, dtype=dtype)
    want = dense_reference(q[0], k[0], v[0], dout[0], alpha, top_k)
    tensors = [x.requires_grad_() for x in (q, k, v)]
    out = keyhole.attention(*tensors, "causal", alpha=alpha, top_k=top_k)
    grads = torch.autograd.grad(out, tensors, dout)
    for name, got, expected in zip(("out", "dq", "dk", "dv"), (out, *grads), want, strict=True):
        error = (got[0].double() - expected).abs().max() / expected.abs().max()
        assert error < 1e-4 + 2 * torch.finfo(dtype).eps, f"{name} is off by {error:.1e} of its largest"


@needs_gpu
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("alpha", [1.25, 1.5])
def test_gpu_in_a_cuda_graph(alpha, deterministic):
    q, k, v, dout = on_gpu(1, 2, 700, 64)
    tensors = [x.requires_grad_() for x in (q, k, v)]

    def step():
        out = keyhole.attention(*tensors, "causal", alpha=alpha, deterministic=deterministic)
        return (out, *torch.autograd.grad(out, tensors, dout))

    graph, results = captured(step)
    with torch.no_grad():
        q.copy_(k.flip(2))  # other numbers, the same graph
    graph.replay()
    for got, want in zip(results, step(), strict=True):
        if deterministic:
            assert torch.equal(got, want)
        else:
            assert (got - want).abs().max() <= 0.01 * want.abs().max()


@needs_gpu
def test_gpu_compiled_in_one_graph_under_autocast():
    q, k, v = on_gpu(1, 2, 300, 64, dtype=torch.float32, count=3)

    def attend(q, k, v):
        return keyhole.attention(q, k, v, "causal", alpha=1.5)

    with torch.autocast("cuda", torch.bfloat16):
        compiled = torch.compile(attend, fullgraph=True)(q, k, v)
    assert compiled.dtype == torch.bfloat16
    assert torch.equal(compiled, attend(*(x.bfloat16() for x in (q, k, v))))


@needs_gpu
def test_gpu_splash_with_positions():
    splash = keyhole.nn.SplashAttention(64, alpha=1.5, k_keep=8)
    q, k, v = on_gpu(2, 8, 512, 64, count=3)
    positions = torch.arange(512, device="cuda").expand(2, 8, -1)
    assert torch.equal(splash(q, k, v, positions, positions), splash(q, k, v))


BAD = {
    "alpha below 1": ({"alpha": 0.5}, ValueError, "alpha is 0.5; accepted are numbers from 1"),
    "alpha above 2": ({"alpha": 2.5}, ValueError, "alpha is 2.5"),
    "alpha NaN": ({"alpha": math.nan}, ValueError, "alpha is nan"),
    "alpha a text": ({"alpha": "1.5"}, TypeError, "alpha is a str"),
    "alpha a bool": ({"alpha": True}, TypeError, "alpha is a bool"),
    "alpha a tensor": ({"alpha": torch.tensor(1.5)}, TypeError, "get no gradient: pass float"),
    "top_k 0": ({"top_k": 0}, ValueError, "top_k is 0; pass an int of 1 or more, or None"),
    "top_k negative": ({"top_k": -3}, ValueError, "top_k is -3"),
    "top_k a float": ({"top_k": 8.0}, TypeError, "top_k is a float"),
    "top_k a bool": ({"top_k": True}, TypeError, "top_k is a bool"),
}


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("name", BAD)
def test_refusals(name, kind):
    options, error, text = BAD[name]
    x = np.zeros((1, 1, 4, 2), np.float32)
    q = torch.from_numpy(x) if kind == "torch" else x
    with pytest.raises(error, match=text):
        keyhole.attention(q, q, q, "causal", **options)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("options", [{"alpha": 1.5}, {"top_k": 8}, {"alpha": 2.0, "top_k": 1}], ids=str)
def test_merge_refuses_what_does_not_add_up(options, kind):
    results = [np.ones((1, 1, 4, 2), np.float32), np.zeros((1, 1, 4), np.float32)] * 2
    if kind == "torch":
        results = [torch.from_numpy(x) for x in results]
    with pytest.raises(NotImplementedError, match=r"merge: .*cannot be joined; attend to all keys in one call"):
        keyhole.merge(*results, **options)
    with pytest.raises(ValueError, match="merge: alpha is 3"):
        keyhole.merge(*results, alpha=3.0)
    keyhole.merge(*results, alpha=1.0, top_k=None)


# ---- SplashAttention


@pytest.mark.parametrize("device", DEVICES)
def test_a_script_for_the_original_runs(device):
    splash = keyhole.nn.SplashAttention(head_dim=64, alpha=1.5, k_keep=8, sm_scale=0.125)
    batch, heads, length = 2, 8, 512
    q, k, v = (torch.randn(batch, heads, length, 64, device=device) for _ in range(3))
    q_idx, k_idx = (
        torch.arange(length, device=device).unsqueeze(0).unsqueeze(0).expand(batch, heads, -1) for _ in range(2)
    )
    out = splash(q, k, v, q_idx, k_idx)
    assert torch.equal(out, keyhole.attention(q, k, v, "causal", alpha=1.5, top_k=8, scale=0.125))
    scores = (0.125 * q @ k.mT).masked_fill(k_idx[..., None, :] > q_idx[..., None], -torch.inf)
    best, keys = scores.double().topk(8)
    _, lse = keyhole.attention(q, k, v, "causal", alpha=1.5, top_k=8, scale=0.125, return_lse=True)
    tau = 0.5 * lse.double()[..., None] - 1  # in the words of the original
    weights = torch.zeros_like(scores.double()).scatter(-1, keys, (0.5 * best - tau).clamp(min=0) ** 2)
    torch.testing.assert_close(out.double(), weights @ v.double(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", ["length", "batch", "heads", "flat"])
def test_positions_in_any_order(shape):
    batch, heads, q_len, k_len = 2, 3, 20, 33
    random = np.random.default_rng(3)
    q_idx, k_idx = (torch.from_numpy(random.integers(-3, 12, (batch, heads, n))) for n in (q_len, k_len))
    if shape in ("length", "batch"):
        q_idx, k_idx = q_idx[:, 0], k_idx[:, 0]
    if shape == "length":
        q_idx, k_idx = q_idx[0], k_idx[0]
    if shape == "flat":
        q_idx, k_idx = q_idx.flatten(0, 1), k_idx.flatten(0, 1)
    q, k, v = draw(batch, heads, q_len, 8), draw(batch, heads, k_len, 8, seed=1), draw(batch, heads, k_len, 8, seed=2)
    splash = keyhole.nn.SplashAttention(8, alpha=1.5, k_keep=5)
    got = splash(*map(torch.from_numpy, (q, k, v)), q_idx, k_idx).numpy()
    whole_q = np.broadcast_to(q_idx.reshape(-1, heads if q_idx.numel() > batch * q_len else 1, q_len), q.shape[:3])
    whole_k = np.broadcast_to(k_idx.reshape(-1, heads if k_idx.numel() > batch * k_len else 1, k_len), k.shape[:3])
    for b in range(batch):
        for h in range(heads):
            visible = whole_k[b, h][None, :] <= whole_q[b, h][:, None]
            want, _ = reference(q[b, h : h + 1], k[b, h : h + 1], v[b, h : h + 1], visible, 1.5, 5)
            assert np.allclose(got[b, h], want[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("is_flat", [False, True])
def test_positions_of_key_heads(is_flat):
    """They hold for every query head that shares the key head."""
    random = np.random.default_rng(4)
    q, k, v = (torch.from_numpy(draw(2, heads, 20, 8, seed=heads)) for heads in (4, 2, 2))
    q_idx, k_idx = (torch.from_numpy(random.integers(-3, 12, (2, heads, 20))) for heads in (4, 2))
    splash = keyhole.nn.SplashAttention(8, k_keep=5)
    whole = splash(q, *(x.repeat_interleave(2, 1) for x in (k, v)), q_idx, k_idx.repeat_interleave(2, 1))
    assert torch.equal(splash(q, k, v, q_idx, k_idx.flatten(0, 1) if is_flat else k_idx), whole)


def test_positions_that_change_are_read_again():
    splash = keyhole.nn.SplashAttention(8)
    q, k, v = (torch.from_numpy(draw(1, 1, 6, 8, seed=i)) for i in range(3))
    positions = torch.arange(6)
    before = splash(q, k, v, positions, positions)
    assert torch.equal(before, splash(q, k, v))
    positions.zero_()
    assert torch.equal(splash(q, k, v, positions, positions), keyhole.attention(q, k, v, "dense", alpha=1.5))


X = torch.zeros(2, 3, 5, 8)
BAD_CALLS = {
    "one of two": (lambda splash: splash(X, X, X, torch.arange(5)), ValueError, "Q_idx is given and K_idx is not"),
    "floats": (lambda splash: splash(X, X, X, torch.zeros(5), torch.arange(5)), TypeError, "expected integers"),
    "an array": (lambda splash: splash(X, X, X, np.arange(5), torch.arange(5)), TypeError, "Q_idx is a ndarray"),
    "batch of 3": (lambda splash: splash(X, X, X, torch.zeros(3, 5).long(), torch.arange(5)), ValueError, "has shape"),
    "head_dim": (lambda splash: splash(X[..., :4], X, X), ValueError, "make it with head_dim=4"),
    "alpha": (lambda splash: keyhole.nn.SplashAttention(8, alpha=3), ValueError, "SplashAttention: alpha is 3"),
    "k_keep": (lambda splash: keyhole.nn.SplashAttention(8, k_keep=0), ValueError, "k_keep is 0"),
    "head_dim a float": (lambda splash: keyhole.nn.SplashAttention(8.0), TypeError, "head_dim: expected an int"),
    "scale a tensor": (
        lambda splash: keyhole.nn.SplashAttention(8, sm_scale=torch.ones(())),
        TypeError,
        "sm_scale is a Tensor; .*multiply Q by it",
    ),
    "scale a text": (lambda splash: keyhole.nn.SplashAttention(8, sm_scale="1"), TypeError, "sm_scale is a str"),
    "NumPy": (lambda splash: splash(X.numpy(), X, X), TypeError, "Q is a ndarray; .*call keyhole.attention"),
    "three dimensions": (lambda splash: splash(X[0], X[0], X[0]), ValueError, "q has 3 dimensions"),
    "too short": (
        lambda splash: splash(X, X, X, torch.arange(5), torch.arange(4)),
        ValueError,
        r"K_idx has shape \[4\]; expected .*, here \[5\], \[2, 5\], \[2, 3, 5\] or \[6, 5\]",
    ),
    "key heads for queries": (
        lambda splash: splash(X, X[:, :1], X[:, :1], torch.zeros(2, 1, 5).long(), torch.arange(5)),
        ValueError,
        r"Q_idx has shape \[2, 1, 5\]",
    ),
    "block": (lambda splash: keyhole.nn.SplashAttention(8, BLOCK_M=0), ValueError, "BLOCK_M is 0"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_splash_refuses(name):
    call, error, text = BAD_CALLS[name]
    with pytest.raises(error, match=text):
        call(keyhole.nn.SplashAttention(8))


def test_splash_shows_what_it_is():
    assert repr(keyhole.nn.SplashAttention(64, k_keep=8)) == "SplashAttention(64, alpha=1.5, k_keep=8)"
    assert not list(keyhole.nn.SplashAttention(64).parameters())
