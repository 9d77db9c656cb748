# tests/python/test_torch_workspace.py
"""Workspaces of calls on a GPU are memory of torch's allocator, which _core asks for in the midst of a call: once, for
what it needs, on the GPU and the stream of the call."""

import gc
import re
import threading

import keyhole
import pytest
import torch
from keyhole import _core
from keyhole.torch_attention import ops
from keyhole.torch_attention.tensors import MEMORY
from torch_reference import DEVICES, captured, draw, draw_qkv, needs_gpu, other_memory

TEXT = "global(3) | window(100)"  # its longest lists are cut into chunks, so both passes need a workspace on a GPU
LENGTHS = {"cpu": 150, "cuda": 3300}


def inputs(device, seed=0):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    tensors = draw_qkv(heads=2, kv_heads=1, q_len=LENGTHS[device], head_dim=64, device=device, dtype=dtype)
    return [(x + seed / 8).requires_grad_() for x in tensors]


def gradients(q, k, v, out):
    return torch.autograd.grad(out, (q, k, v), torch.ones_like(out), retain_graph=True)


def plain(device):
    q, k, v = (x.detach() for x in inputs(device))
    return lambda: keyhole.attention(q, k, v, TEXT)


def with_lse(device):
    q, k, v = inputs(device)
    return lambda: keyhole.attention(q, k, v, TEXT, return_lse=True)


def through_dispatcher(q, k, v):
    options = (None, None, 0.0, 1.0, 0, True, "auto")
    return ops.attention_forward(q, k, v, [keyhole.parse(TEXT).tensor()], [], *options)[0]


def as_op(device):
    q, k, v = inputs(device)
    return lambda: through_dispatcher(q, k, v)


def backward(device):
    q, k, v = inputs(device)
    out = keyhole.attention(q, k, v, TEXT, deterministic=True)
    return lambda: gradients(q, k, v, out)


def backward_as_op(device):
    q, k, v = inputs(device)
    out = through_dispatcher(q, k, v)
    return lambda: gradients(q, k, v, out)


def backward_of_entmax(device):
    q, k, v = inputs(device)
    out = keyhole.attention(q, k, v, TEXT, alpha=1.5, deterministic=True)
    return lambda: gradients(q, k, v, out)


def backward_of_tile_lists(device):
    q, k, v = inputs(device)
    tiles = torch.zeros(1, 2, -(-LENGTHS[device] // 128), 1, dtype=torch.int32, device=device)
    out = keyhole.attention(q, k, v, keyhole.TileLists(tiles, tile=(128, 128)), deterministic=True)
    return lambda: gradients(q, k, v, out)


def indexer(device):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    index_q, index_k = (draw(1, heads, 150, 64, device=device, dtype=dtype, seed=heads) for heads in (16, 1))
    return index_q.requires_grad_(), index_k


def select_keys(device):
    index_q, index_k = indexer(device)
    index_q = index_q.detach()
    return lambda: keyhole.select_keys(index_q, index_k, top_k=20, visible="causal")


def index_loss(device, is_backward=False):
    index_q, index_k = indexer(device)
    q, k, v = draw_qkv(heads=16, kv_heads=1, q_len=150, head_dim=64, device=device, dtype=index_q.dtype)
    _, lse = keyhole.attention(q, k, v, "causal", return_lse=True)
    if not is_backward:
        index_q = index_q.detach()
        return lambda: keyhole.index_loss(index_q, index_k, None, q, k, lse, "causal")
    loss = keyhole.index_loss(index_q, index_k, None, q, k, lse, "causal")
    return lambda: torch.autograd.grad(loss.sum(), index_q, retain_graph=True)


CALLS = {
    "plain": plain,
    "with lse": with_lse,
    "as an op": as_op,
    "backward": backward,
    "backward as an op": backward_as_op,
    "backward of entmax": backward_of_entmax,
    "backward of tile lists": backward_of_tile_lists,
    "select_keys": select_keys,
    "index_loss": index_loss,
    "index_loss, backward": lambda device: index_loss(device, is_backward=True),
}


class Asked:
    """Stands before torch's function and keeps the sizes of the workspaces that were asked for."""

    def __init__(self):
        self.sizes = []

    def __call__(self, shape, strides, dtype):
        if dtype == torch.uint8:
            assert (len(shape), strides) == (1, (1,))
            self.sizes.append(shape[0])
        return MEMORY["empty_on_gpu"](shape, strides, dtype)


def refused(*_):
    raise AssertionError("not to be asked")


def all_equal(got, expected):
    got, expected = ([x] if isinstance(x, torch.Tensor) else list(x) for x in (got, expected))
    return all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_calls_on_the_cpu_ask_for_nothing(name):
    call = CALLS[name]("cpu")
    expected = call()
    with other_memory(empty_on_gpu=refused, current_gpu=refused, bytes_on_gpu=refused):
        assert all_equal(call(), expected)


@needs_gpu
@pytest.mark.parametrize("name", CALLS)
def test_each_call_asks_once_wherever_the_memory_comes_from(name):
    call = CALLS[name]("cuda")
    expected = call()
    first, again = Asked(), Asked()
    with other_memory(empty_on_gpu=first):
        assert all_equal(call(), expected)
    assert len(first.sizes) == 1
    assert first.sizes[0] > 0

    def on_another(size, ordinal):
        again.sizes.append(size)
        return MEMORY["bytes_on_gpu"](size, ordinal)

    for ways in ({"empty_on_gpu": None}, {"empty_on_gpu": refused, "current_gpu": lambda: 1}):
        with other_memory(**ways, bytes_on_gpu=on_another):
            assert all_equal(call(), expected)
    assert again.sizes == 2 * first.sizes


@needs_gpu
def test_the_size_is_that_of_the_kernel():
    q, k, v = inputs("cuda")
    plan = keyhole.plan(TEXT, LENGTHS["cuda"], heads=2)
    out = keyhole.attention(q, k, v, plan, deterministic=True)
    said = _core.kernel_for_backward(q, v, plan.core, None, None, 0.0, "auto", True)
    asked = Asked()
    with other_memory(empty_on_gpu=asked):
        gradients(q, k, v, out)
    assert asked.sizes == [int(re.search(r"workspace (\d+) bytes", said)[1])]


@needs_gpu
def test_a_call_without_a_workspace_asks_for_nothing():
    q, k, v = (x.detach() for x in inputs("cuda"))
    asked = Asked()
    with other_memory(empty_on_gpu=asked, bytes_on_gpu=refused):
        keyhole.attention(q, k, v, "causal")
        keyhole.attention(q, k, v, "causal", return_lse=True)
    assert asked.sizes == []


@needs_gpu
def test_torch_counts_it_and_has_it_back():
    q, k, v = inputs("cuda")
    out = keyhole.attention(q, k, v, TEXT, deterministic=True)
    asked = Asked()
    with other_memory(empty_on_gpu=asked):
        grads = gradients(q, k, v, out)
    own = sum(x.numel() * x.element_size() for x in (*grads, out))  # and the gradient of out
    del grads
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    grads = gradients(q, k, v, out)
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    assert own + asked.sizes[0] <= peak <= own + asked.sizes[0] + 4096
    del grads
    assert torch.cuda.memory_stats()["requested_bytes.all.current"] == before


@needs_gpu
def test_a_loop_that_looks_at_its_loss_takes_no_new_memory():
    q, k, v = inputs("cuda")
    seen, losses = [], []
    for _ in range(6):
        loss = keyhole.attention(q, k, v, TEXT, deterministic=True).float().square().mean()
        losses.append((loss.item(), *(x.float().sum().item() for x in torch.autograd.grad(loss, (q, k, v)))))
        seen.append(torch.cuda.memory_stats()["segment.all.allocated"])
    assert seen[2:] == [seen[1]] * 4
    assert losses == [losses[0]] * 6


class FullError(Exception):
    """What an allocator says when it has no memory."""


@needs_gpu
@pytest.mark.parametrize("name", CALLS)
def test_an_error_of_the_allocator_is_that_of_the_call(name):
    call = CALLS[name]("cuda")
    expected = call()

    def full(shape, strides, dtype):
        if dtype == torch.uint8:
            raise FullError
        return MEMORY["empty_on_gpu"](shape, strides, dtype)

    for _ in range(3):
        with other_memory(empty_on_gpu=full), pytest.raises(FullError):
            call()
        assert all_equal(call(), expected)


@needs_gpu
def test_no_object_is_collected_in_the_midst_of_a_call():
    call = backward("cuda")
    expected = call()
    found = []

    def noted(shape, strides, dtype):
        found.append(gc.isenabled())
        return MEMORY["empty_on_gpu"](shape, strides, dtype)

    with other_memory(empty_on_gpu=noted):
        assert all_equal(call(), expected)
        assert gc.isenabled()
        gc.disable()
        try:
            call()
            assert not gc.isenabled()
        finally:
            gc.enable()
    assert found == [False, False]


@needs_gpu
def test_a_captured_graph_owns_its_workspace():
    q, k, v = inputs("cuda")
    plan = keyhole.plan(TEXT, LENGTHS["cuda"], heads=2)

    def step():
        out = keyhole.attention(q, k, v, plan, deterministic=True)
        return out, *gradients(q, k, v, out)

    graph, results = captured(step)
    for factor in (0.5, 2.0):
        with torch.no_grad():
            for x in (q, k, v):
                x.mul_(factor)
        expected = step()
        others = [torch.full((1 << size,), torch.nan, device="cuda") for size in range(8, 24) for _ in range(4)]
        graph.replay()
        torch.cuda.synchronize()
        assert all_equal(results, expected)
        assert all(bool(x.isnan().all()) for x in others), "the graph wrote into memory of others"


@needs_gpu
def test_streams_do_not_share_it():
    """Each stream has its own: if one waited for nobody and took the other's, sums would be wrong."""
    problems = [inputs("cuda", seed) for seed in range(3)]
    outs = [keyhole.attention(*problem, TEXT, deterministic=True) for problem in problems]
    expected = [gradients(*problem, out) for problem, out in zip(problems, outs, strict=True)]
    streams = [torch.cuda.Stream() for _ in problems]
    torch.cuda.synchronize()
    results = []
    for _ in range(10):
        for problem, stream in zip(problems, streams, strict=True):
            with torch.cuda.stream(stream):
                out = keyhole.attention(*problem, TEXT, deterministic=True)
                results.append(gradients(*problem, out))
    torch.cuda.synchronize()
    for i, result in enumerate(results):
        assert all_equal(result, expected[i % 3]), i


@pytest.mark.parametrize("device", DEVICES)
def test_threads_ask_for_their_own(device):
    problems = [inputs(device, seed) for seed in range(4)]

    def both(problem):
        out = keyhole.attention(*problem, TEXT, deterministic=True)
        return out, *gradients(*problem, out)

    expected = [both(problem) for problem in problems]
    equal = []  # an error ends a thread before it says anything

    def repeat(problem, right):
        equal.append(all(all_equal(both(problem), right) for _ in range(5)))

    threads = [threading.Thread(target=repeat, args=pair) for pair in zip(problems, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a call waits for the GIL, or for a lock, for ever"
    assert equal == [True] * 4


@needs_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_memory_is_on_the_gpu_of_the_call():
    with torch.cuda.device(1):
        q, k, v = inputs("cuda")
    out = keyhole.attention(q, k, v, TEXT, deterministic=True)
    before = [torch.cuda.memory_stats(i)["allocated_bytes.all.allocated"] for i in range(2)]
    asked = Asked()
    with other_memory(empty_on_gpu=asked):
        kept = keyhole.attention(q.detach(), k.detach(), v.detach(), TEXT)
    after = [torch.cuda.memory_stats(i)["allocated_bytes.all.allocated"] for i in range(2)]
    assert after[0] == before[0]
    assert after[1] - before[1] >= asked.sizes[0] + kept.numel() * kept.element_size()
    assert torch.equal(kept, out)
    assert torch.cuda.current_device() == 0
