# tests/python/test_torch_key_lists.py
"""keyhole.KeyLists of torch tensors: values, gradients, whatever looks at a call, CUDA graphs, errors."""

import keyhole
import pytest
import torch
import torch._dynamo.testing
from keyhole.torch_attention.encoded import lists_of, parts_of
from torch.utils.flop_counter import FlopCounterMode
from torch_reference import DEVICES, ERRORS_ALLOWED, check_close, check_each, draw_qkv, needs_gpu

SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 40, "k_len": 50}
ENTRIES = 9
OPTIONS = [(1, False), (1, True), (4, False), (7, True)]  # keys_per_entry, causal


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def draw_lists(keys_per_entry, device="cpu", heads=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (SIZES["batch"], heads, SIZES["q_len"], ENTRIES)
    indices = torch.randint(-1, -(-SIZES["k_len"] // keys_per_entry), shape, generator=generator)
    counts = torch.randint(0, ENTRIES + 1, shape[:3], generator=generator)
    return indices.to(device, torch.int32), counts.to(device)


def expanded(indices, counts, keys_per_entry, causal):
    """The same as plain indices of keys, by definition."""
    device, k_len = indices.device, SIZES["k_len"]
    indices = torch.where(torch.arange(ENTRIES, device=device) < counts[..., None], indices.long(), -1)[..., None]
    keys = indices * keys_per_entry + torch.arange(keys_per_entry, device=device)
    is_key = (indices >= 0) & (keys < k_len)
    if causal:
        is_key &= keys <= torch.arange(SIZES["q_len"], device=device)[:, None, None] + k_len - SIZES["q_len"]
    return torch.where(is_key, keys, -1).flatten(3)


def attend(q, k, v, indices, counts, keys_per_entry, causal, **options):
    lists = keyhole.KeyLists(indices, counts=counts, keys_per_entry=keys_per_entry, causal=causal)
    return keyhole.attention(q * 1.0, k, v, lists, **options) + 1.0


def check_step(function, indices, counts, keys_per_entry, causal, device="cpu", dtype=torch.float64, **options):
    """A forward and a backward pass against those over the lists of keys."""
    results = []
    for step in (
        lambda *x: function(*x, indices, counts, keys_per_entry, causal, **options),
        lambda *x: keyhole.attention(*x, expanded(indices, counts, keys_per_entry, causal), **options) + 1,
    ):
        q, k, v = (x.requires_grad_() for x in draw_qkv(**SIZES, device=device, dtype=dtype))
        out = step(q, k, v)
        out.square().sum().backward()
        results.append((out.detach(), q.grad, k.grad, v.grad))
    (out, *got), (want, *gradients) = results
    check_close("out", out, want, dtype)
    check_each("dq dk dv", got, gradients, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ERRORS_ALLOWED, ids=str)
@pytest.mark.parametrize(("keys_per_entry", "causal"), OPTIONS)
def test_values_and_gradients(keys_per_entry, causal, dtype, device):
    if device == "cuda" and dtype == torch.float64:
        pytest.skip("no GPU kernel reads f64")
    lists = draw_lists(keys_per_entry, device)
    for deterministic in (False, True):
        check_step(attend, *lists, keys_per_entry, causal, device, dtype, deterministic=deterministic)


def test_gather_attention_takes_the_same():
    q, k, v = draw_qkv(**SIZES)
    indices, counts = draw_lists(4)
    got = keyhole.gather_attention(q, k, v, indices, counts=counts, keys_per_entry=4, causal=True)
    assert torch.equal(got + 1.0, attend(q, k, v, indices, counts, 4, True))


@pytest.mark.parametrize("device", DEVICES)
def test_one_graph_serves_all_lists(device):
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, backend=counter, fullgraph=True)
    for seed in range(3):
        check_step(compiled, *draw_lists(4, device, seed=seed), 4, True, device, torch.float32)
    assert counter.frame_count == 1


def test_without_counts():
    q, k, v = draw_qkv(**SIZES)
    indices, _ = draw_lists(4)
    everything = torch.full(indices.shape[:3], ENTRIES)
    assert torch.equal(attend(q, k, v, indices, None, 4, False), attend(q, k, v, indices, everything, 4, False))


def test_the_arguments_of_the_ops_are_their_reverse():
    q, k, _ = draw_qkv(**SIZES)
    indices, counts = draw_lists(4)
    for lists in (keyhole.KeyLists(indices, counts=counts, causal=True), keyhole.KeyLists(indices, keys_per_entry=4)):
        again = lists_of(*parts_of(lists), q, k)
        assert repr(again) == repr(lists)
        assert again.indices is lists.indices
        assert again.counts is lists.counts


def test_flops_count_all_keys_of_the_entries():
    q, k, v = draw_qkv(**SIZES)
    with FlopCounterMode(display=False) as counter:
        keyhole.attention(q, k, v, keyhole.KeyLists(draw_lists(4)[0], keys_per_entry=4))
    rows = SIZES["batch"] * SIZES["heads"] * SIZES["q_len"]
    assert counter.get_total_flops() == 2 * rows * ENTRIES * 4 * (q.shape[3] + v.shape[3])


@needs_gpu
def test_a_graph_follows_other_lists_in_the_same_place():
    q, k, v = (x.requires_grad_() for x in draw_qkv(**SIZES, device="cuda", dtype=torch.bfloat16))
    indices, counts = draw_lists(4, "cuda")

    def step():
        out = attend(q, k, v, indices, counts, 4, True, deterministic=True)
        return out, *torch.autograd.grad(out, (q, k, v), torch.ones_like(out))

    with torch.cuda.stream(torch.cuda.Stream()):
        step()  # loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for seed in (5, 6):
        for tensor, other in zip((indices, counts), draw_lists(4, "cuda", seed=seed), strict=True):
            tensor.copy_(other)
        graph.replay()
        for got, want in zip(results, step(), strict=True):
            assert torch.equal(got, want)


def test_what_is_refused():
    q, k, v = draw_qkv(**SIZES)
    indices, counts = draw_lists(1)
    with pytest.raises(TypeError, match="counts is a NumPy array.*pass torch tensors only"):
        keyhole.KeyLists(indices, counts=counts.numpy())
    with pytest.raises(ValueError, match="counts is on meta, and indices on cpu"):
        keyhole.KeyLists(indices, counts=counts.to("meta"))
    with pytest.raises(TypeError, match="indices"):
        keyhole.attention(q, k, v, keyhole.KeyLists(indices.numpy()))
    with pytest.raises(TypeError, match="the KeyLists are torch.Tensor, and q is a NumPy array"):
        keyhole.attention(q.numpy(), k.numpy(), v.numpy(), keyhole.KeyLists(indices))
    with pytest.raises(ValueError, match=r"counts\[0, 0, 0\] is 10; a list has 9 entries"):
        attend(q, k, v, indices, counts * 0 + 10, 1, False)
