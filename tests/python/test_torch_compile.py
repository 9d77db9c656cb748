# tests/python/test_torch_compile.py
"""Keyhole under whatever looks at a call: torch.compile, export, fake tensors, opcheck, checkpointing, pickling."""

import copy
import functools
import io
import pickle
import subprocess
import sys

import keyhole
import pytest
import torch
import torch._dynamo.testing
import torch.utils.flop_counter
from keyhole.torch_attention import encoded, ops, plan_tensors
from torch.utils import checkpoint
from torch_reference import DEVICES, check_close, check_each, draw, draw_qkv, masks_of, needs_gpu, reference

LOCAL = keyhole.causal() & keyhole.window(9)
ARRAYS = keyhole.csr([3 * i for i in range(41)], [j for i in range(40) for j in (0, i // 2, i)])  # not a text


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def counting(function, **options):
    """(compiled function, counter): whole graphs only, and how many of them were made."""
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    return torch.compile(function, fullgraph=True, backend=counter, **options), counter


def attend(q, k, v, pattern, **options):
    return keyhole.attention(q * 1.0, k, v, pattern, **options) + 1.0


def check_step(function, pattern, sizes, device="cpu", dtype=torch.float64, offset=None):
    """A forward and a backward pass of `function(q, k, v, pattern) == attention + 1` against the reference."""
    q, k, v = (x.requires_grad_() for x in draw_qkv(**sizes, device=device, dtype=dtype))
    out = function(q, k, v, pattern)
    shape = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    follows = keyhole.parse(pattern) if isinstance(pattern, str) else getattr(pattern, "pattern", pattern)
    expected, _ = reference(q, k, v, masks_of(follows, *shape, offset=offset))
    check_close("out", out, expected + 1, dtype)
    out.square().sum().backward()
    want = torch.autograd.grad((expected + 1).square().sum(), (q, k, v))
    check_each("dq dk dv", (q.grad, k.grad, v.grad), want, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["plain", "length first", "plan", "everything", "entmax"])
def test_opcheck(name, device):
    q, k, v = draw_qkv(
        batch=2, heads=4, kv_heads=2, head_dim=16, v_head_dim=24 if name == "everything" else None, device=device
    )
    sink = draw(4, device=device) if name == "everything" else None
    if name == "length first":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    lists = [(keyhole.plan(LOCAL, 40) if name == "plan" else LOCAL).tensor()]
    scale, softcap = (0.3, 5.0) if name == "everything" else (None, 0.0)
    normalizer = (1.5, 8) if name == "entmax" else (1.0, 0)
    forward = (lists, [], sink, scale, softcap, *normalizer, False, "auto")
    torch.library.opcheck(ops.attention_forward, (q, k, v, *forward))
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(
        ops.attention_forward,
        (*inputs, lists, [], None if sink is None else sink.clone().requires_grad_(), *forward[3:]),
    )
    with torch.no_grad():
        out, lse, support = ops.attention_forward(q, k, v, *forward)
        dlse = torch.randn_like(lse) if name == "everything" else None
        torch.library.opcheck(
            ops.attention_backward, (torch.randn_like(out), dlse, q, k, v, out, lse, support, *forward)
        )
    parts = [x.detach().requires_grad_() for x in (out, lse, out * 2, lse + 1)]
    torch.library.opcheck(ops.merge, parts)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("place", ["fake", "meta"])
def test_fake_results_are_laid_out_like_real_ones(place, layout, device):
    tensors = draw_qkv(batch=2, heads=4, kv_heads=2, v_head_dim=24, device=device)
    tensors = [x.transpose(1, 2).contiguous() if layout == "bshd" else x for x in tensors]

    def results(*tensors):
        return keyhole.attention(*tensors, "causal", layout=layout, return_lse=True)

    real = results(*tensors)
    if place == "meta":
        told = results(*(x.to("meta") for x in tensors))
    else:
        with torch._subclasses.FakeTensorMode() as mode:
            told = results(*map(mode.from_tensor, tensors))
    for a, b in zip(real, told, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_one_graph_serves_every_pattern(device):
    compiled, counter = counting(attend)
    dtype = torch.float64 if device == "cpu" else torch.float32
    patterns = [LOCAL, keyhole.blocks(8), keyhole.causal(), ARRAYS, keyhole.per_head(keyhole.causal(), keyhole.dense())]
    for pattern in patterns:
        check_step(compiled, pattern, {}, device=device, dtype=dtype)
    assert counter.frame_count == 1


FIRST_CALL = """
import torch, torch._dynamo.testing, keyhole
counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
compiled = torch.compile(lambda q, p: keyhole.attention(q, q, q, p) + 1, fullgraph=True, backend=counter)
for n in (3, 4):
    compiled(torch.randn(1, 2, 40, 16), keyhole.causal() & keyhole.window(n))
assert counter.frame_count == 1
"""


@pytest.mark.slow
def test_the_first_call_of_a_process_may_be_compiled():
    subprocess.run([sys.executable, "-c", FIRST_CALL], check=True)


def test_one_graph_serves_every_plan():
    compiled, counter = counting(attend)
    for text in ("causal", "causal & window(9)", "blocks(8) | sinks(2)"):
        check_step(compiled, keyhole.plan(text, 40), {}, dtype=torch.float64)
    assert counter.frame_count == 1


def test_one_graph_serves_every_length():
    compiled, counter = counting(attend, dynamic=True)
    made = []
    for q_len, k_len in ((40, 40), (57, 57), (90, 110), (33, 120)):
        check_step(compiled, LOCAL, {"q_len": q_len, "k_len": k_len, "batch": 2})
        made.append(counter.frame_count)
    assert made[1] == made[0]  # torch makes one graph for lengths that are equal,
    assert made[2] == made[3] == made[1] + 1  # and another for those that are not


def test_patterns_that_a_function_or_module_holds():
    class Layer(torch.nn.Module):
        def __init__(self, pattern):
            super().__init__()
            self.pattern = pattern

        def forward(self, q, k, v, _):
            return attend(q, k, v, self.pattern)

    compiled, counter = counting(lambda q, k, v, _: attend(q, k, v, LOCAL))
    check_step(compiled, LOCAL, {})
    assert counter.frame_count == 1
    layer = Layer(LOCAL)
    compiled, counter = counting(layer)
    check_step(compiled, LOCAL, {})
    layer.pattern = keyhole.blocks(4)
    check_step(compiled, layer.pattern, {})
    assert counter.frame_count == 1


def test_a_text_is_a_constant_of_its_graph():
    compiled, counter = counting(attend)
    for text in ("causal", "blocks(8)", "causal"):
        check_step(compiled, text, {})
    assert counter.frame_count == 2


@pytest.mark.parametrize("others", [["causal"], ["blocks(8)"], ["causal", "blocks(8)", "dense"]], ids=str)
def test_one_graph_holds_several_texts(others):
    def function(q):
        for text in ("causal", *others):
            q = keyhole.attention(q, q, q, text)
        return q

    q = draw_qkv()[0].requires_grad_()
    compiled, counter = counting(function)
    for _ in range(2):
        assert torch.equal(compiled(q), function(q))
        got, want = (torch.autograd.grad(f(q).square().sum(), q)[0] for f in (compiled, function))
        check_close("dq", got, want, torch.float32)
    assert counter.frame_count == 1


@pytest.mark.parametrize("text", ["__class__", "__dict__", "cusal"])
def test_texts_that_are_no_pattern_under_compile(text):
    q, k, v = draw_qkv()
    with pytest.raises(Exception, match=f'unknown pattern "{text}"'):
        counting(attend)[0](q, k, v, text)


KEPT = torch.arange(40) < torch.tensor([40, 17])[:, None]
SEQUENCES = torch.tensor([[0] * 11 + [1] * 29, [0] * 40])
RESTRICTED = {
    "nothing": (None, None, lambda b, i, j: b >= 0),
    "padding": (KEPT, None, lambda b, i, j: KEPT[b, j]),
    "sequences": (None, SEQUENCES, lambda b, i, j: SEQUENCES[b, i] == SEQUENCES[b, j]),
    "both": (KEPT, SEQUENCES, lambda b, i, j: KEPT[b, j] & (SEQUENCES[b, i] == SEQUENCES[b, j])),
    "holes": (SEQUENCES.cumsum(1) % 3 != 1, None, lambda b, i, j: SEQUENCES.cumsum(1)[b, j] % 3 != 1),
}


@pytest.mark.parametrize("is_compiled", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("name", RESTRICTED)
def test_patterns_that_tensors_restrict(name, is_compiled):
    """One graph, whatever the values."""
    kept, sequences, allows = RESTRICTED[name]

    def function(q, k, v, kept, sequences):
        return attend(q, k, v, encoded.Restricted(LOCAL, kept, sequences))

    compiled, counter = counting(function)
    b, i, j = torch.arange(2)[:, None, None], torch.arange(40)[:, None], torch.arange(40)
    for flipped in (False, True):  # the entries of the batch exchanged
        entries = torch.tensor([1, 0]) if flipped else torch.tensor([0, 1])
        values = [None if x is None else x[entries] for x in (kept, sequences)]
        q, k, v = (x.requires_grad_() for x in draw_qkv(batch=2, dtype=torch.float64))
        mask = torch.from_numpy(LOCAL.mask(40).copy()) & allows(entries[b], i, j)
        expected, _ = reference(q, k, v, mask[:, None].expand(2, q.shape[1], 40, 40))
        out = (compiled if is_compiled else function)(q, k, v, *values)
        check_close("out", out, expected + 1, torch.float64)
        want = torch.autograd.grad(expected.square().sum() + 2 * expected.sum(), (q, k, v))
        check_each("dq dk dv", torch.autograd.grad(out.square().sum(), (q, k, v)), want, torch.float64)
    assert counter.frame_count == (1 if is_compiled else 0)


RESTRICTED_ERRORS = {
    "kept is a tensor of torch.int64": (KEPT.long(), None),
    r"kept .* shape \[2, 39\]": (KEPT[:, :39], None),
    "sequences is a tensor of torch.float32": (None, SEQUENCES.float()),
    "in two pieces": (None, SEQUENCES.cumsum(1) % 2),
}


@pytest.mark.parametrize("match", RESTRICTED_ERRORS)
def test_tensors_that_cannot_restrict(match):
    q, k, v = draw_qkv(batch=2)
    with pytest.raises(ValueError, match=match):
        keyhole.attention(q, k, v, encoded.Restricted(LOCAL, *RESTRICTED_ERRORS[match]))


def test_sequences_of_keys_are_those_of_queries():
    q, k, v = draw_qkv(batch=2, q_len=30, k_len=40)
    with pytest.raises(ValueError, match="30 queries, and packed sequences of 40 keys"):
        keyhole.attention(q, k, v, encoded.Restricted(LOCAL, sequences=SEQUENCES))


def test_only_patterns_are_restricted():
    q, k, v = draw_qkv(batch=2)
    lists = [keyhole.plan(LOCAL, 40).tensor(), KEPT, torch.empty(0)]
    with pytest.raises(ValueError, match="the first of three lists is no pattern"):
        ops.attention_forward(q, k, v, lists, [], None, None, 0.0, 1.0, 0, False, "auto")


def test_options_under_compile():
    sink = draw(4).requires_grad_()
    options = {"sink": sink, "softcap": 2.0, "scale": 0.4, "return_lse": True, "layout": "bshd"}
    q, k, v = (x.transpose(1, 2).requires_grad_() for x in draw_qkv(heads=4, kv_heads=2))

    def both(q, k, v):
        out, lse = keyhole.attention(q, k, v, LOCAL, **options)
        return out.square().sum() + lse.sum()

    compiled, counter = counting(both)
    got = torch.autograd.grad(compiled(q, k, v), (q, k, v, sink))
    check_each("dq dk dv dsink", got, torch.autograd.grad(both(q, k, v), (q, k, v, sink)), torch.float32)
    assert counter.frame_count == 1


def test_autocast_under_compile():
    q, k, v = draw_qkv()
    compiled, _ = counting(lambda q, k, v: keyhole.attention(q, k, v, "causal"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = compiled(q, k, v)
        assert out.dtype == torch.bfloat16
        assert torch.equal(out, keyhole.attention(q, k, v, "causal"))


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_inductor(device):
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(attend, fullgraph=True)
    dtype = torch.float32
    for pattern in (LOCAL, keyhole.blocks(8)):
        check_step(compiled, pattern, {}, device=device, dtype=dtype)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


class Block(torch.nn.Module):
    def __init__(self, pattern):
        super().__init__()
        self.pattern = pattern
        self.projection = torch.nn.Linear(16, 16)

    def forward(self, x):
        q = self.projection(x)
        return keyhole.attention(q, q, q, self.pattern, layout="bshd")


HELD = {  # made anew for each test: nothing has asked for their tensors yet
    "pattern": lambda: keyhole.causal() & keyhole.window(5),
    "text": lambda: "causal",
    "plan": lambda: keyhole.plan(keyhole.causal() & keyhole.window(6), 40),
    "arrays": lambda: keyhole.csr([3 * i for i in range(41)], [j for i in range(40) for j in (1, i // 2, i)]),
}
LOADS = """
import sys, torch, keyhole.torch_attention.ops
for name in sys.argv[2:]:
    x, want = torch.load(f"{sys.argv[1]}/{name}.pt")
    got = torch.export.load(f"{sys.argv[1]}/{name}.pt2").module()(x)
    assert torch.equal(got, want), name
"""


@pytest.mark.slow
def test_exported_programs_run_in_another_process(tmp_path):
    keyhole.plan_cache.clear()
    for name, make in HELD.items():
        block, x = Block(make()), draw(2, 40, 3, 16)
        torch.export.save(torch.export.export(block, (x,)), tmp_path / f"{name}.pt2")
        torch.save((x, block(x).detach()), tmp_path / f"{name}.pt")
    subprocess.run([sys.executable, "-c", LOADS, tmp_path, *HELD], check=True)


LOADS_PACKAGE = """
import sys, torch, torch._inductor.codecache, keyhole.torch_attention.ops
x, want = torch.load(f"{sys.argv[1]}/x.pt")
got = torch._inductor.aoti_load_package(f"{sys.argv[1]}/block.pt2")(x)
assert torch.equal(got, want)
"""


class Sum(torch.nn.Module):
    def forward(self, x):
        return x + x


def runs_ahead_of_time(folder, block, x):
    """What another process that loads the package of a model exits with."""
    exported = torch.export.export(block, (x,))
    torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / "block.pt2"))
    torch.save((x, block(x).detach()), folder / "x.pt")
    return subprocess.run([sys.executable, "-c", LOADS_PACKAGE, folder]).returncode


@pytest.mark.slow
def test_a_model_compiled_ahead_of_time_runs_in_another_process(tmp_path):
    x = draw(2, 40, 3, 16)
    status = runs_ahead_of_time(tmp_path, Block(keyhole.causal() & keyhole.window(5)).eval(), x)
    if status < 0 and runs_ahead_of_time(tmp_path, Sum(), x) == status:
        pytest.skip(f"torch {torch.__version__} crashes here while it loads any package: docs/pytorch.md")
    assert status == 0


@pytest.mark.parametrize("name", HELD)
def test_modules_with_patterns_are_copied_and_saved(name):
    block, x = Block(HELD[name]()), draw(2, 40, 3, 16)
    block(x)
    buffer = io.BytesIO()
    torch.save(block, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block)), torch.load(buffer, weights_only=False)):
        assert other.pattern == block.pattern
        assert torch.equal(other(x), block(x))


@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_activation_checkpointing(use_reentrant):
    def function(q, k, v, pattern):
        return checkpoint.checkpoint(attend, q, k, v, pattern, use_reentrant=use_reentrant)

    check_step(function, LOCAL, {})
    if not use_reentrant:
        check_step(torch.compile(function, backend="aot_eager", fullgraph=True), LOCAL, {})


def test_selective_checkpointing_sees_the_operator():
    saved = []

    def policy(ctx, op, *args, **kwargs):
        is_ours = op is ops.attention_forward
        saved.append(is_ours)
        return checkpoint.CheckpointPolicy.MUST_SAVE if is_ours else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    def function(q, k, v, pattern):
        contexts = functools.partial(checkpoint.create_selective_checkpoint_contexts, policy)
        return checkpoint.checkpoint(attend, q, k, v, pattern, use_reentrant=False, context_fn=contexts)

    check_step(function, LOCAL, {})
    assert any(saved)


K, LSE, ALL_KEYS = draw(1, 2, 40, 16, seed=1), draw(1, 2, 40), torch.arange(40).expand(1, 1, 40, 40)
ALL_TILES = keyhole.TileLists(torch.zeros(1, 1, 1, 1, dtype=torch.int64), tile=(64, 64))


def attend_to(x):
    return keyhole.attention(x, K, K, LOCAL)


def gather_from(x):
    return keyhole.gather_attention(x, K, K, ALL_KEYS)


def follow_tiles(x):
    return keyhole.attention(x, K, K, ALL_TILES)


def merge_with(x):
    return keyhole.merge(x, LSE, K, LSE)[0]


def merge_by_its_op(x):
    return torch.ops.keyhole.merge(x, LSE, K, LSE)[0]


def attend_by_its_op(x):
    plan = keyhole.parse("causal").tensor()
    return torch.ops.keyhole.attention_forward(x, K, K, [plan], [], None, None, 0.0, 1.0, 0, False, "auto")[0]


def gather_by_its_op(x):
    return torch.ops.keyhole.attention_forward(x, K, K, [ALL_KEYS], [], None, None, 0.0, 1.0, 0, False, "auto")[0]


def functional_gradient(function):
    torch.func.grad(lambda x: function(x).sum())(draw(1, 2, 40, 16))


def vmapped(function):
    torch.func.vmap(function)(draw(3, 1, 2, 40, 16))


def dual(function):
    x = draw(1, 2, 40, 16)
    with torch.autograd.forward_ad.dual_level():
        function(torch.autograd.forward_ad.make_dual(x, x))


def jvp(function):
    x = draw(1, 2, 40, 16)
    torch.func.jvp(function, (x,), (x,))


def compiled_jvp(function):
    """Which torch.compile follows; without our word all derivatives would be 0."""
    torch.compile(lambda x: torch.func.jvp(function, (x,), (x,))[1], backend="eager")(draw(1, 2, 40, 16))


TRANSFORMS = {
    vmapped: "torch.vmap is not supported.*flatten",
    dual: "forward-mode differentiation",
    functional_gradient: "torch.func.grad.*not supported",
    jvp: "forward-mode differentiation",
    compiled_jvp: "forward-mode differentiation",
}


@pytest.mark.parametrize(
    "function", [attend_to, gather_from, follow_tiles, merge_with], ids=lambda function: function.__name__
)
@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda transform: transform.__name__)
def test_transforms_are_refused(transform, function):
    with pytest.raises(NotImplementedError, match=TRANSFORMS[transform]):
        transform(function)


def dual_with_gradient(function):
    x = draw(1, 2, 40, 16)
    with torch.autograd.forward_ad.dual_level():
        function(torch.autograd.forward_ad.make_dual(x.clone().requires_grad_(), x))


@pytest.mark.parametrize(
    "function", [merge_by_its_op, attend_by_its_op, gather_by_its_op], ids=lambda function: function.__name__
)
@pytest.mark.parametrize("transform", [dual, dual_with_gradient, jvp, compiled_jvp])
def test_ops_called_directly_do_not_drop_tangents(transform, function):
    name = "merge" if function is merge_by_its_op else "attention"
    with pytest.raises(NotImplementedError, match=f"^{name}: forward-mode differentiation"):
        transform(function)


def test_ops_called_directly_take_tensors_without_tangents_beside_others_that_have_them():
    x = draw(1, 2, 40, 16)
    with torch.autograd.forward_ad.dual_level():
        torch.autograd.forward_ad.make_dual(x, x)
        torch.testing.assert_close(merge_by_its_op(x), merge_with(x))


def is_grads_batched(function, x, gradients):
    return torch.autograd.grad(function(x), x, gradients, is_grads_batched=True)[0]


def vectorized_jacobian(function, x, gradients):
    jacobian = torch.autograd.functional.jacobian(function, x, vectorize=True)
    return torch.einsum("gabcd,abcdefhi->gefhi", gradients, jacobian)


def mapped_gradients(function, x, gradients):
    out = function(x)
    return torch.vmap(lambda gradient: torch.autograd.grad(out, x, gradient, retain_graph=True)[0])(gradients)


BATCHED = [is_grads_batched, vectorized_jacobian, mapped_gradients]
MAPPED = {"x": draw(1, 2, 40, 16).requires_grad_(), "gradients": draw(3, 1, 2, 40, 16)}


@pytest.mark.parametrize("function", [attend_to, gather_from, follow_tiles], ids=lambda function: function.__name__)
@pytest.mark.parametrize("way", BATCHED, ids=lambda way: way.__name__)
def test_batched_gradients_are_refused(way, function):
    with pytest.raises(NotImplementedError, match=r"^attention: batched gradients .* not supported.*once for each"):
        way(function, **MAPPED)


@pytest.mark.parametrize("function", [attend_to, gather_from, follow_tiles], ids=lambda function: function.__name__)
def test_gradcheck_tells_why_it_cannot_batch(function):
    with pytest.raises(RuntimeError, match="While computing batched gradients, got: attention: batched gradients"):
        torch.autograd.gradcheck(function, MAPPED["x"], eps=0.1, atol=1, fast_mode=True, check_batched_grad=True)


@pytest.mark.parametrize("way", BATCHED, ids=lambda way: way.__name__)
def test_batched_gradients_of_merge(way):
    """Whose backward pass torch computes."""
    x, gradients = MAPPED.values()
    each = [torch.autograd.grad(merge_with(x), x, gradient)[0] for gradient in gradients]
    torch.testing.assert_close(way(merge_with, x, gradients), torch.stack(each))


def second_derivative(function=attend):
    q, k, v = (x.requires_grad_() for x in draw_qkv())
    (gradient,) = torch.autograd.grad(function(q, k, v, LOCAL).square().sum(), q, create_graph=True)
    gradient.sum().backward()


def looked_at_second_derivative():
    with torch.utils.flop_counter.FlopCounterMode(display=False):
        second_derivative()


SECOND_DERIVATIVES = {"of the function": second_derivative, "of the op": looked_at_second_derivative}


@pytest.mark.parametrize("name", SECOND_DERIVATIVES)
def test_second_derivatives_are_refused(name):
    with pytest.raises(NotImplementedError, match="second derivatives.*not implemented"):
        SECOND_DERIVATIVES[name]()


def test_a_graph_of_gradients_is_only_refused_when_it_is_differentiated():
    q, k, v = (x.requires_grad_() for x in draw_qkv())
    first = torch.autograd.grad(attend(q, k, v, LOCAL).sum(), q, create_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(attend(q, k, v, LOCAL).sum(), q)[0])


BYTES = {
    "too short": (lambda t: t[:20], "20 bytes"),
    "not ours": (lambda t: torch.zeros(100, dtype=torch.uint8), "not an encoded plan"),
    "damaged": (lambda t: torch.cat([t[:-1], t[-1:] + 1]), None),
    "damaged digest": (lambda t: torch.cat([t[:20], t[20:21] + 1, t[21:]]), "damaged"),
    "cut off": (lambda t: torch.cat([t[:20], t[20:21] + 1, t[21:-3]]), "damaged"),
    "wrong dtype": (lambda t: t.int(), "torch.int32"),
    "two dimensions": (lambda t: t[None], "shape"),
}


@pytest.mark.parametrize("kind", ["pattern", "plan"])
@pytest.mark.parametrize("name", BYTES)
def test_bytes_that_are_no_plan(name, kind):
    change, text = BYTES[name]
    q, k, v = draw_qkv()
    tensor = (LOCAL if kind == "pattern" else keyhole.plan(LOCAL, 40)).tensor()
    arguments = (q, k, v, [change(tensor.clone())], [], None, None, 0.0, 1.0, 0, False, "auto")
    if text is None:  # the digest names a plan that is alive, and that one is followed
        assert torch.equal(ops.attention_forward(*arguments)[0], keyhole.attention(q, k, v, LOCAL))
    else:
        with pytest.raises(ValueError, match=text):
            ops.attention_forward(*arguments)


@pytest.mark.parametrize("kind", ["pattern", "plan"])
def test_a_tensor_made_while_somebody_looks_serves_others(kind):
    pattern = keyhole.causal() & keyhole.window(17)
    follows = pattern if kind == "pattern" else keyhole.plan(pattern, 40)
    with torch.inference_mode(), torch._subclasses.FakeTensorMode(), torch.device("meta"):
        follows.tensor()
    assert type(follows.tensor()) is torch.Tensor
    assert follows.tensor().is_cpu
    check_step(torch.compile(attend, backend="aot_eager", fullgraph=True), follows, {})


def test_a_tensor_outlives_its_pattern(monkeypatch):
    pattern = keyhole.causal() & keyhole.window(13)
    tensor = pattern.tensor()
    q, k, v = draw_qkv()
    expected = keyhole.attention(q, k, v, pattern)
    del pattern
    keyhole.plan_cache.clear()
    assert len(tensor) == len((keyhole.causal() & keyhole.window(13)).tensor())
    got = ops.attention_forward(q, k, v, [tensor], [], None, None, 0.0, 1.0, 0, False, "auto")[0]
    assert torch.equal(got, expected)


def test_equal_patterns_have_equal_tensors():
    assert torch.equal(keyhole.parse("causal & window(9)").tensor(), LOCAL.tensor())
    assert not torch.equal(plan_tensors.tensor_of(encoded.Anchored(LOCAL, 0)), LOCAL.tensor())


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(torch.Tag, "cudagraph_unsafe"), reason="this torch has no tag cudagraph_unsafe")
def test_inductor_keeps_out_of_its_cuda_graphs_what_follows_a_plan():
    assert torch.Tag.cudagraph_unsafe in ops.attention_forward.tags
    assert torch.Tag.cudagraph_unsafe in ops.attention_backward.tags


@needs_gpu
def test_reduce_overhead_runs():
    compiled = torch.compile(attend, fullgraph=True, mode="reduce-overhead")
    for _ in range(3):
        check_step(compiled, LOCAL, {"q_len": 128, "head_dim": 64}, device="cuda", dtype=torch.float32)
