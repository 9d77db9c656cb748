# tests/python/test_torch_plain_call.py
"""_core.forward_if_plain, the short way of keyhole.attention: when it is taken, that it gives what the long way gives,
in bits and in words, and that it leaves alone what is not for it."""

import contextlib
import gc
import sys
import threading
import timeit
import types
import weakref

import keyhole
import numpy
import pytest
import torch
import torch.utils.flop_counter
from keyhole import _core
from keyhole.torch_attention import call
from keyhole.torch_attention.tensors import MEMORY
from torch.autograd import forward_ad
from torch_reference import DEVICES, EXCHANGE, Spy, asked_by_methods, draw_qkv, needs_gpu, other_memory

pytestmark = pytest.mark.skipif(EXCHANGE is None, reason="torch before 2.10 has no table of C functions for tensors")


def plan_of(q, k):
    return keyhole.plan("causal & window(9)", q.shape[2], k.shape[2])


def short_way(q, k, v, plan, scale=None, softcap=0.0, backend="auto"):
    return _core.forward_if_plain(q, k, v, plan, scale, softcap, backend)


def long_way(q, k, v, plan, scale=None, softcap=0.0, backend="auto"):
    return call.attention(q, k, v, plan, scale=scale, softcap=softcap, backend=backend)


TENSORS = {
    "as they come": lambda: draw_qkv(),
    "grouped heads": lambda: draw_qkv(batch=2, heads=6, kv_heads=2),
    "decoding": lambda: draw_qkv(q_len=3, k_len=77),
    "other width of values": lambda: draw_qkv(head_dim=24, v_head_dim=40),
    "length first": lambda: [x.transpose(1, 2) for x in draw_qkv(batch=2, heads=40, q_len=4)],
    "batch last but one": lambda: [x.permute(1, 2, 0, 3).contiguous().permute(2, 0, 1, 3) for x in draw_qkv(batch=3)],
    "inside of a larger one": lambda: list(torch.stack(draw_qkv(batch=2, heads=4), 3).unbind(3)),
    "one and the same": lambda: [draw_qkv()[0]] * 3,
    "parameters": lambda: [torch.nn.Parameter(x, requires_grad=False) for x in draw_qkv()],
    "fp64": lambda: draw_qkv(dtype=torch.float64),
    "bf16": lambda: draw_qkv(dtype=torch.bfloat16),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", TENSORS)
def test_both_ways_give_the_same(name, device):
    if device == "cuda" and name == "fp64":
        pytest.skip("no GPU kernel reads f64")
    q, k, v = (x.to(device) for x in TENSORS[name]())
    plan = plan_of(q, k)
    for options in ({}, {"scale": 0.3}, {"scale": 2, "softcap": 1.5}):
        out, expected = short_way(q, k, v, plan, **options), long_way(q, k, v, plan, **options)
        assert torch.equal(out, expected)
        assert (out.dtype, out.stride(), out.device) == (expected.dtype, expected.stride(), expected.device)
        assert torch.equal(keyhole.attention(q, k, v, plan, **options), expected)


@pytest.mark.parametrize(
    "mode", [contextlib.nullcontext, torch.no_grad, torch.inference_mode], ids=lambda m: m.__name__
)
def test_without_gradients_it_is_the_way(monkeypatch, mode):
    spy = Spy(monkeypatch, "forward")  # of the long way
    q, k, v = draw_qkv()
    with mode():
        keyhole.attention(q, k, v, plan_of(q, k))
    with torch.no_grad():
        keyhole.attention(q.requires_grad_(), k, v, plan_of(q, k))
    assert not spy.calls


OTHERS = {
    "a gradient of q": lambda q, k, v: [q.requires_grad_(), k, v],
    "a gradient of v": lambda q, k, v: [q, k, v.requires_grad_()],
    "an array": lambda q, k, v: [q, k.numpy(), v],
    "None": lambda q, k, v: [q, None, v],
    "three dimensions": lambda q, k, v: [q, k, v[0]],
    "columns far apart": lambda q, k, v: [q, k.mT.contiguous().mT, v],
    "integers": lambda q, k, v: [x.int() for x in (q, k, v)],
    "on meta": lambda q, k, v: [x.to("meta") for x in (q, k, v)],
    "sparse": lambda q, k, v: [x.to_sparse() for x in (q, k, v)],
    "no elements": lambda q, k, v: [q[:, :0], k[:, :0], v[:, :0]],
    "a class of its own": lambda q, k, v: [q.as_subclass(type("Own", (torch.Tensor,), {})), k, v],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_tensors_go_the_long_way(name):
    q, k, v = draw_qkv()
    assert short_way(*OTHERS[name](q, k, v), plan_of(q, k)) is None


@pytest.mark.parametrize("what", [None, 3, b"causal"], ids=str)
def test_what_is_no_pattern_goes_the_long_way(what):
    assert short_way(*draw_qkv(), what) is None


@pytest.mark.parametrize(
    "what", ["causal", keyhole.causal() & keyhole.window(9), keyhole.per_head("causal", "window(3)")], ids=str
)
def test_patterns_have_their_plan_from_the_cache(what):
    q, k, v = draw_qkv(batch=2, q_len=30, k_len=40)
    keyhole.plan_cache.clear()
    out = short_way(q, k, v, what)
    assert keyhole.plan_cache.info()[:3] == (0, 1, 1)
    assert torch.equal(out, long_way(q, k, v, what))
    assert torch.equal(out, short_way(q, k, v, what))
    assert keyhole.plan_cache.info()[:3] == (2, 1, 1)


LOOKING = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "a mode": lambda: torch.utils.flop_counter.FlopCounterMode(display=False),
    "forward mode": forward_ad.dual_level,
}


@pytest.mark.parametrize("name", LOOKING)
def test_whoever_looks_sees_the_call(name):
    q, k, v = draw_qkv()
    with LOOKING[name]():
        assert short_way(q, k, v, plan_of(q, k)) is None
    assert short_way(q, k, v, plan_of(q, k)) is not None


def test_transforms_and_traces_see_the_call():
    q, k, v = draw_qkv()
    plan = plan_of(q, k)
    seen = []

    def look(x):
        seen.append(short_way(q, k, v, plan))
        return x * 1

    torch.vmap(look)(torch.ones(2))
    torch.func.grad(look)(torch.tensor(1.0))
    torch.jit.trace(look, torch.ones(2), check_trace=False)
    assert seen == [None, None, None]


@contextlib.contextmanager
def other_answers(**answers):
    _core.know_plain_calls(**{**call._PLAIN_CALLS, **answers})
    try:
        yield
    finally:
        _core.know_plain_calls(**call._PLAIN_CALLS)


@pytest.mark.parametrize("question", range(len(call._PLAIN_CALLS["questions"])))
def test_each_question_counts(question):
    q, k, v = draw_qkv()
    questions = [lambda: None, lambda: False, lambda: 0, lambda: None]
    with other_answers(questions=tuple(questions)):
        assert short_way(q, k, v, "causal") is not None
    questions[question] = lambda: 1
    with other_answers(questions=tuple(questions)):
        assert short_way(q, k, v, "causal") is None


GC_THRESHOLD = gc.get_threshold()
EMPTY = {"cpu": "empty_on_cpu", "cuda": "empty_on_gpu"}


@pytest.mark.parametrize("device", DEVICES)
def test_memory_for_the_result(device):
    """It is asked for as compiled graphs ask. Where torch has no such function, or the current GPU is not that of q, it
    is had another way; so is a result that does not lie as q does."""
    q, k, v = (x.to(device, torch.bfloat16) for x in draw_qkv(head_dim=64))
    wide, turned = torch.cat([v, v], -1), [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    plan, asked = plan_of(q, k), []

    def noted(shape, strides, dtype):
        asked.append((shape, strides, dtype))
        return MEMORY[EMPTY[device]](shape, strides, dtype)

    def refused(shape, strides, dtype):
        raise AssertionError("another GPU is the current one")

    ways = {"noted": {EMPTY[device]: noted}, "no function": {EMPTY[device]: None}}
    if device == "cuda":
        ways["another GPU"] = {"empty_on_gpu": refused, "current_gpu": lambda: 1}
        ways["no GPUs"] = {"empty_on_gpu": refused, "current_gpu": None}
    for name, way in ways.items():
        with other_memory(**way):
            for inputs in ((q, k, v), (q, k, wide), turned):
                out, expected = short_way(*inputs, plan), long_way(*inputs, plan)
                assert torch.equal(out, expected), name
                assert (out.stride(), out.device) == (expected.stride(), expected.device), name
    assert asked == [(tuple(q.shape), q.stride(), q.dtype)]
    with torch.inference_mode():
        assert short_way(q, k, v, plan).is_inference()
    assert not short_way(q, k, v, plan).is_inference()


class Taking:
    """When it is collected, it takes the numbers and the memory of a tensor away."""

    def __init__(self, tensor):
        self.tensor, self.itself = tensor, self

    def __del__(self):
        self.tensor.fill_(torch.nan)
        self.tensor.untyped_storage().resize_(0)


@pytest.mark.slow
def test_the_collector_may_run_in_a_call():
    """Before Python 3.12 it runs wherever an object is made, since then when a call has returned. No result may come of
    memory that it took away."""
    q, k, v = draw_qkv()
    plan = plan_of(q, k)
    expected = short_way(q, k, v, plan)
    errors = []
    try:
        for threshold in range(1, 12):
            gc.collect()
            taken = k.clone()
            Taking(taken)
            gc.set_threshold(threshold)
            try:
                out = short_way(q, taken, v, plan)
                assert out is None or torch.equal(out, expected), threshold
            except ValueError as error:
                errors.append(str(error))
    finally:
        gc.set_threshold(*GC_THRESHOLD)
    assert all("its data pointer is null" in error for error in errors)


def test_threads_of_torch_are_obeyed():
    asked = []
    q, k, v = draw_qkv()
    with other_answers(num_threads=lambda: asked.append(1) or 1):
        one = keyhole.attention(q, k, v, "causal")
    assert asked == [1]
    assert torch.equal(one, long_way(q, k, v, "causal"))


def without_memory(x):
    x.untyped_storage().resize_(0)
    return x


ERRORS = {
    "another length": ({}, lambda q, k, v: (q, k[:, :, 1:], v[:, :, 1:])),
    "two dtypes": ({}, lambda q, k, v: (q, k.double(), v)),
    "two widths": ({}, lambda q, k, v: (q, k[..., 1:], v)),
    "heads": ({}, lambda q, k, v: (q[:, :1], k, v)),
    "memory that has gone": ({}, lambda q, k, v: (q, without_memory(k), v)),
    "scale": ({"scale": float("nan")}, None),
    "a scale too large for a float": ({"scale": 10**400}, None),
    "softcap": ({"softcap": -1.0}, None),
    "backend": ({"backend": "cpx"}, None),
    "a backend that is no text": ({"backend": "\ud800"}, None),
    "a text that is none": ({"plan": "cusal"}, None),
    "a pattern that does not fit": ({"plan": keyhole.per_head("causal", "causal", "causal")}, None),
}


@pytest.mark.parametrize("name", ERRORS)
def test_both_ways_refuse_with_the_same_words(name):
    options, change = dict(ERRORS[name][0]), ERRORS[name][1]
    tensors = draw_qkv()
    plan = plan_of(*tensors[:2])
    tensors = change(*tensors) if change else tensors
    plan = options.pop("plan", plan)
    refusals = []
    for way in (short_way, long_way):
        with pytest.raises(Exception, match=r".") as refused:
            way(*tensors, plan, **options)
        refusals.append((refused.type, str(refused.value)))
    assert refusals[0] == refusals[1]


OTHER_OPTIONS = [
    *({"scale": "1"}, {"softcap": "1"}, {"softcap": None}, {"backend": 1}, {"backend": None}),
    *({name: torch.tensor(0.5)} for name in ("scale", "softcap")),
]


@pytest.mark.parametrize("options", OTHER_OPTIONS, ids=str)
def test_options_of_other_types_go_the_long_way(options):
    q, k, v = draw_qkv()
    assert short_way(q, k, v, plan_of(q, k), **options) is None
    with pytest.raises(TypeError, match=next(iter(options))):
        keyhole.attention(q, k, v, "causal", **options)


@pytest.mark.parametrize("scale", [2, 0.5, numpy.float64(0.5)], ids=repr)
def test_numbers_of_any_kind_go_the_short_way(scale):
    q, k, v = draw_qkv()
    assert torch.equal(short_way(q, k, v, "causal", scale=scale), long_way(q, k, v, "causal", scale=scale))


@pytest.mark.parametrize("which", range(3), ids="qkv")
def test_tensors_are_judged_before_the_pattern(which):
    tensors = list(draw_qkv())
    tensors[which] = tensors[which][0]
    assert short_way(*tensors, "cusal") is None
    with pytest.raises(ValueError, match=f"{'qkv'[which]} has 3 dimensions"):
        keyhole.attention(*tensors, "cusal")


@pytest.mark.parametrize("which", range(3), ids="qkv")
@pytest.mark.parametrize("what", ["a plan", "a pattern"])
def test_tensors_are_judged_before_the_options(what, which):
    tensors = list(draw_qkv())
    plan = plan_of(*tensors[:2]) if what == "a plan" else "causal"
    tensors[which] = tensors[which][0]
    assert short_way(*tensors, plan, scale=10**400) is None
    with pytest.raises(ValueError, match=f"{'qkv'[which]} has 3 dimensions"):
        keyhole.attention(*tensors, plan, scale=10**400)


class Takes:
    """A scale that does something when it is asked for its value."""

    def __init__(self, act):
        self.act = act

    def __float__(self):
        self.act()
        return 1.0


def test_a_scale_that_does_something_is_not_asked():
    q, k, v = draw_qkv()
    gone = Takes(lambda: k.untyped_storage().resize_(0))
    assert short_way(q, k, v, plan_of(q, k), scale=gone) is None
    assert k.untyped_storage().size() > 0


def test_meta_tensors_go_the_long_way_at_once():
    q, k, v = (x.to("meta") for x in draw_qkv())
    plan = plan_of(q, k)
    assert short_way(q, k, v, plan) is None
    # torch raises when it is asked where they lie, which takes it milliseconds: found by the clock alone.
    assert min(timeit.repeat(lambda: short_way(q, k, v, plan), number=10, repeat=5)) < 0.005


def test_numpy_beside_a_module_that_calls_itself_torch(monkeypatch):
    arrays = [x.numpy() for x in draw_qkv()]
    expected = keyhole.attention(*arrays, "causal")
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=torch.Tensor))
    assert numpy.array_equal(keyhole.attention(*arrays, "causal"), expected)


def test_without_the_table_of_c_functions_all_go_the_long_way():
    q, k, v = draw_qkv()
    expected = short_way(q, k, v, plan_of(q, k))
    with asked_by_methods():
        assert short_way(q, k, v, plan_of(q, k)) is None
        assert torch.equal(keyhole.attention(q, k, v, plan_of(q, k)), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_two_threads_and_changing_tensors(device):
    """One plan, followed by two threads, each with tensors of changing dtypes, strides and heads."""
    plan = keyhole.plan("causal & window(9)", 40)
    kinds = [
        [
            x.to(device, dtype).transpose(1, 2).contiguous().transpose(1, 2) if is_turned else x.to(device, dtype)
            for x in qkv
        ]
        for qkv in (draw_qkv(head_dim=64), draw_qkv(batch=2, heads=4, kv_heads=2, head_dim=64))
        for dtype in (torch.float32, torch.bfloat16)
        for is_turned in (False, True)
    ]
    expected = [long_way(*qkv, plan) for qkv in kinds]
    wrong = []

    def work(start):
        stream = torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" else contextlib.nullcontext()
        with stream:
            for turn in range(start, start + 400):
                if not torch.equal(keyhole.attention(*kinds[turn % len(kinds)], plan), expected[turn % len(kinds)]):
                    wrong.append(turn)

    if device == "cuda":
        torch.cuda.synchronize()  # the streams of the threads do not wait for the one that made the tensors
    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_a_plan_may_go_while_it_is_followed(device):
    q, k, v = draw_qkv(q_len=512, head_dim=64, device=device)
    expected = long_way(q, k, v, keyhole.plan("causal & window(100)", 512))
    for _ in range(20):
        plan = keyhole.plan("causal & window(100)", 512)
        keyhole.plan_cache.clear()
        out = keyhole.attention(q, k, v, plan)
        del plan
        gc.collect()
        # The lists of this one take the memory that is free.
        other = keyhole.attention(q, k, v, keyhole.plan("causal & window(3)", 512))
        assert torch.equal(out, expected)
        assert not torch.equal(other, expected)


@needs_gpu
def test_a_cuda_graph_holds_the_call():
    q, k, v = draw_qkv(q_len=512, head_dim=64, device="cuda", dtype=torch.bfloat16)
    plan = keyhole.plan("causal & window(100)", 512)
    keyhole.attention(q, k, v, plan)  # its lists are there
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = short_way(q, k, v, plan)
    q.mul_(0.5)
    v.mul_(2)
    graph.replay()
    assert torch.equal(out, long_way(q, k, v, plan))


@needs_gpu
def test_a_plan_may_go_while_the_gpu_follows_it_on_any_stream():
    q, k, v = draw_qkv(q_len=512, head_dim=64, device="cuda", dtype=torch.bfloat16)
    expected = long_way(q, k, v, keyhole.plan("causal & window(100)", 512))
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            plan = keyhole.plan("causal & window(100)", 512)
            keyhole.plan_cache.clear()
            keyhole.attention(q, k, v, plan)  # its lists are there
            watch = weakref.ref(plan)
            torch.cuda._sleep(100_000_000)
            out = keyhole.attention(q, k, v, plan)
            del plan
            assert watch() is None
            assert not stream.query()  # nothing waited
        with torch.cuda.stream(torch.cuda.Stream()):
            for width in range(3, 9):
                keyhole.attention(q, k, v, keyhole.plan(f"causal & window({width})", 512))
        torch.cuda.synchronize()
        assert torch.equal(out, expected)
