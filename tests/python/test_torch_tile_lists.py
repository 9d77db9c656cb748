# tests/python/test_torch_tile_lists.py
"""keyhole.TileLists of torch tensors: values, gradients, whatever looks at a call, CUDA graphs, errors."""

import copy

import keyhole
import numpy as np
import pytest
import torch
import torch._dynamo.testing
from keyhole.torch_attention import encoded, ops
from tile_reference import FORMS, SIZES, draw_lists, pairs_of
from torch.utils import checkpoint
from torch_reference import DEVICES, ERRORS_ALLOWED, captured, check_close, check_each, draw, draw_qkv, needs_gpu


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def on(device, lists):
    """The arguments of TileLists, as tensors there."""
    return {name: x if name == "tile" else torch.from_numpy(x).to(device) for name, x in lists.items()}


def pairs(lists, q, k):
    arrays = {name: x if name == "tile" else x.cpu().numpy() for name, x in lists.items()}
    return torch.from_numpy(pairs_of(arrays, q.shape[1], q.shape[2], k.shape[2])).to(q.device)


def reference(q, k, v, named, *, scale=None, softcap=0.0, sink=None):
    """(out, lse) in fp64, by definition, differentiable; `named` says how often each query names each key."""
    group = q.shape[1] // k.shape[1]
    k, v = k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = q.double() @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    weights = named * torch.exp(scores)
    total = weights.sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink.double())[:, None, None]
    is_empty = total == 0
    total = torch.where(is_empty, 1, total)
    return weights @ v / total, torch.where(is_empty, -torch.inf, torch.log(total)).squeeze(-1)


def attend(q, k, v, lists, **options):
    return keyhole.attention(q * 1.0, k, v, keyhole.TileLists(**lists), **options) + 1.0


def check_step(function, lists, device="cpu", dtype=torch.float64, sizes=SIZES, **options):
    """A forward and a backward pass of `function(q, k, v, lists) == attention + 1` against the reference."""
    q, k, v = (x.requires_grad_() for x in draw_qkv(**sizes, device=device, dtype=dtype))
    out = function(q, k, v, lists)
    expected, _ = reference(q, k, v, pairs(lists, q, k), **options)
    check_close("out", out, expected + 1, dtype)
    out.square().sum().backward()
    want = torch.autograd.grad((expected + 1).square().sum(), (q, k, v))
    check_each("dq dk dv", (q.grad, k.grad, v.grad), want, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ERRORS_ALLOWED, ids=str)
@pytest.mark.parametrize("tile", [(64, 64), (128, 128)], ids=str)
@pytest.mark.parametrize(("form", "list_heads"), [*((form, 2) for form in FORMS), ("everything", 1), ("everything", 4)])
def test_values_and_gradients(form, list_heads, tile, dtype, device):
    if device == "cuda" and dtype == torch.float64:
        pytest.skip("no GPU kernel reads f64")
    index_dtype = np.int32 if list_heads == 2 else np.int64
    lists = on(device, draw_lists(form, tile, list_heads=list_heads, dtype=index_dtype))
    for deterministic in (False, True):
        check_step(lambda *x: attend(*x, deterministic=deterministic), lists, device, dtype)  # noqa: B023


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_larger_heads_and_lengths(head_dim, dtype, device):
    """Of kernels that have these sizes of their own."""
    sizes = {"batch": 1, "heads": 4, "kv_heads": 2, "q_len": 700, "k_len": 900}
    lists = on(device, draw_lists("everything", (128, 128), capacity=6, **sizes))
    check_step(attend, lists, device, dtype, {**sizes, "head_dim": head_dim})


@pytest.mark.parametrize("device", DEVICES)
def test_options(device):
    dtype = torch.float32
    sink = draw(4, device=device).requires_grad_()
    q, k, v = (x.requires_grad_() for x in draw_qkv(**SIZES, v_head_dim=24, device=device, dtype=dtype))
    lists = on(device, draw_lists("everything"))
    options = {"sink": sink, "softcap": 2.0, "scale": 0.4}
    swapped = [x.transpose(1, 2) for x in (q, k, v)]
    out, lse = keyhole.attention(*swapped, keyhole.TileLists(**lists), layout="bshd", return_lse=True, **options)
    want, want_lse = reference(q, k, v, pairs(lists, q, k), **options)
    check_each("out lse", (out.transpose(1, 2), lse), (want, want_lse), dtype)
    weight = torch.randn_like(lse)
    loss, want_loss = (out.square().sum() + (lse * weight).sum(), want.square().sum() + (want_lse * weight).sum())
    inputs = (q, k, v, sink)
    check_each("dq dk dv dsink", torch.autograd.grad(loss, inputs), torch.autograd.grad(want_loss, inputs), dtype)


def test_gradcheck():
    q, k, v = (
        x.requires_grad_() for x in draw_qkv(heads=2, kv_heads=1, q_len=5, k_len=37, head_dim=3, dtype=torch.double)
    )
    lists = keyhole.TileLists(torch.tensor([[[[1, 0, 2, 1]]]]), tile=(16, 16))  # one of them twice
    torch.autograd.gradcheck(lambda *x: keyhole.attention(*x, lists, return_lse=True), (q, k, v))


@pytest.mark.parametrize("device", DEVICES)
def test_lists_of_nothing(device):
    q, k, v = (x.requires_grad_() for x in draw_qkv(**SIZES, device=device))
    lists = on(device, draw_lists())
    empty = {
        "no capacity": {**lists, "tiles": lists["tiles"][..., :0]},
        "counts of 0": {**lists, "counts": torch.zeros_like(lists["tiles"][..., 0])},
        "padding": {**lists, "tiles": torch.full_like(lists["tiles"], -1)},
    }
    for name, of_nothing in empty.items():
        out, lse = keyhole.attention(q, k, v, keyhole.TileLists(**of_nothing), return_lse=True)
        assert torch.all(out == 0), name
        assert torch.all(lse == -torch.inf), name
        for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
            assert torch.all(gradient == 0), name


@pytest.mark.parametrize("device", DEVICES)
def test_any_strides_and_packed_bits(device):
    q, k, v = draw_qkv(**SIZES, device=device)
    lists = on(device, draw_lists("everything"))
    kept = keyhole.TileLists(**lists)
    want = keyhole.attention(q, k, v, kept)
    forms = {
        "every other": lambda x: x.repeat_interleave(2, -1)[..., ::2],
        "lists first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        "bits apart": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    }
    assert kept.bitmaps.dtype == torch.int64
    words = {"int64": kept.bitmaps, "uint64": kept.bitmaps.view(torch.uint64)}
    words["strided"] = kept.bitmaps.repeat_interleave(2, 0)[::2]
    for name, form in forms.items():
        changed = {key: form(lists[key]) for key in ("tiles", "counts", "bitmap_of")}
        assert torch.equal(keyhole.attention(q, k, v, keyhole.TileLists(**{**lists, **changed})), want), name
    for name, bitmaps in words.items():
        assert torch.equal(keyhole.attention(q, k, v, keyhole.TileLists(**{**lists, "bitmaps": bitmaps})), want), name


def test_the_same_bits_as_of_numpy():
    for tile in ((64, 64), (16, 80), (32, 16), (16, 130)):
        arrays = draw_lists("bitmaps", tile)
        of_torch, of_numpy = keyhole.TileLists(**on("cpu", arrays)).bitmaps, keyhole.TileLists(**arrays).bitmaps
        assert np.array_equal(of_torch.numpy(), of_numpy), tile


@pytest.mark.parametrize("name", ["tiles", "counts", "bitmap_of", "bitmaps"])
def test_lists_that_change_before_backward_are_noticed(name):
    q, k, v = (x.requires_grad_() for x in draw_qkv(**SIZES))
    lists = keyhole.TileLists(**on("cpu", draw_lists("everything")))
    out = keyhole.attention(q, k, v, lists)
    getattr(lists, name).zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
def test_opcheck(form, device):
    is_all = form == "everything"
    q, k, v = draw_qkv(**SIZES, head_dim=16, v_head_dim=24 if is_all else None, device=device)
    sink = draw(4, device=device) if is_all else None
    lists = keyhole.TileLists(**on(device, draw_lists(form)))
    options = (0.3, 5.0, 1.0, 0, True, "auto") if is_all else (None, 0.0, 1.0, 0, True, "auto")
    forward = (*encoded.parts_of(lists), sink, *options)
    torch.library.opcheck(ops.attention_forward, (q, k, v, *forward))
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    with_sink = None if sink is None else sink.clone().requires_grad_()
    torch.library.opcheck(ops.attention_forward, (*inputs, *forward[:2], with_sink, *forward[3:]))
    with torch.no_grad():
        out, lse, support = ops.attention_forward(q, k, v, *forward)
        dlse = torch.where(torch.isfinite(lse), 0.5, 0) if is_all else None
        torch.library.opcheck(
            ops.attention_backward, (torch.randn_like(out), dlse, q, k, v, out, lse, support, *forward)
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", ["tiles", "everything"])
def test_one_graph_serves_every_selection(form, backend, device):
    """Also where bits are packed inside of it."""
    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    for seed in range(3):
        check_step(compiled, on(device, draw_lists(form, seed=seed)), device, torch.float32)
    assert counter.frame_count == 1


@pytest.mark.parametrize("device", DEVICES)
def test_lists_that_are_passed_into_a_graph(device):
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda *x: keyhole.attention(*x) + 1.0, fullgraph=True, backend=counter)

    def function(q, k, v, lists):
        return compiled(q, k, v, keyhole.TileLists(**lists))

    for seed in range(3):
        check_step(function, on(device, draw_lists("everything", seed=seed)), device, torch.float32)
    assert counter.frame_count == 1


def best_tiles(q, k, kept):
    """Whose means fit best: [batch, kv_heads, q_tiles, kept]."""
    means = [torch.stack([part.mean(2) for part in x.split(64, 2)], 2) for x in (q, k)]
    scores = means[0].unflatten(1, (k.shape[1], -1)).mean(2) @ means[1].transpose(-1, -2)
    return scores.topk(kept).indices


class Selecting(torch.nn.Module):
    def forward(self, q, k, v):
        return keyhole.attention(q, k, v, keyhole.TileLists(best_tiles(q, k, 2), tile=(64, 64)))


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_a_selection_inside_of_the_graph(device):
    q, k, v = draw_qkv(**SIZES, device=device)
    want = Selecting()(q, k, v)
    named = pairs({"tiles": best_tiles(q, k, 2), "tile": (64, 64)}, q, k)
    check_close("out", want, reference(q, k, v, named)[0], torch.float32)
    check_close("compiled", torch.compile(Selecting(), fullgraph=True)(q, k, v), want, torch.float32)
    exported = torch.export.export(Selecting(), (q, k, v))
    check_close("exported", exported.module()(q, k, v), want, torch.float32)


@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_activation_checkpointing(use_reentrant):
    def function(*arguments):
        return checkpoint.checkpoint(attend, *arguments, use_reentrant=use_reentrant)

    check_step(function, on("cpu", draw_lists("everything")))


def test_autocast():
    q, k, v = draw_qkv(**SIZES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = keyhole.attention(q, k, v, keyhole.TileLists(**on("cpu", draw_lists())))
    assert out.dtype == torch.bfloat16


@pytest.mark.parametrize("form", ["tiles", "everything"])
@pytest.mark.parametrize("place", ["fake", "meta"])
def test_without_values_there_are_shapes(place, form):
    q, k, v = draw_qkv(**SIZES)
    lists = on("cpu", draw_lists(form))
    if place == "meta":
        q, k, v = (x.to("meta") for x in (q, k, v))
        out, lse = keyhole.attention(q, k, v, keyhole.TileLists(**on_meta(lists)), return_lse=True)
    else:
        with torch._subclasses.FakeTensorMode() as mode:
            q, k, v = (mode.from_tensor(x) for x in (q, k, v))
            fake = {name: x if name == "tile" else mode.from_tensor(x) for name, x in lists.items()}
            out, lse = keyhole.attention(q, k, v, keyhole.TileLists(**fake), return_lse=True)
    assert (out.shape, lse.shape) == ((2, 4, 150, 16), (2, 4, 150))


def on_meta(lists):
    return {name: x if name == "tile" else x.to("meta") for name, x in lists.items()}


def test_copies_follow_the_same():
    q, k, v = draw_qkv(**SIZES)
    lists = keyhole.TileLists(**on("cpu", draw_lists("everything")))
    assert torch.equal(keyhole.attention(q, k, v, copy.deepcopy(lists)), keyhole.attention(q, k, v, lists))


def _with(name, value):
    def change(lists):
        lists[name][1, 0, 2, 3] = value
        lists["counts"].fill_(5)
        return lists

    return change


def _as(name, function):
    return lambda lists: {**lists, name: function(lists[name])}


ERRORS = {
    "tile beyond": (_with("tiles", 4), ValueError, r"attention: tiles\[1, 0, 2, 3\] is 4; accepted are 0 to 3, and -1"),
    "count": (_as("counts", lambda x: x * 0 + 6), ValueError, "is 6; accepted are 0 to 5"),
    "dtype": (_as("tiles", lambda x: x.short()), TypeError, "tiles is a torch tensor of torch.int16, .*; accepted are"),
    "mask": (_as("tiles", lambda x: x > 0), TypeError, "tiles is a torch tensor of torch.bool"),
    "rank": (_as("tiles", lambda x: x[0]), ValueError, r"tiles has shape \[2, 3, 5\]; expected \[batch, heads, ceil"),
    "counts": (
        _as("counts", lambda x: x[:, :1]),
        ValueError,
        r"counts has shape .*; expected \[2, 2, 3\], as tiles is",
    ),
    "NumPy counts": (
        _as("counts", lambda x: x.numpy()),
        TypeError,
        "counts is a NumPy array .*pass torch tensors only",
    ),
    "bits": (
        _as("bitmaps", lambda x: x.float()),
        TypeError,
        "bitmaps is a torch tensor of torch.float32.*accepted are",
    ),
    "meta counts": (_as("counts", lambda x: x.to("meta")), ValueError, "counts is on meta, and tiles on cpu; all must"),
    "meta bitmaps": (_as("bitmaps", lambda x: x.to("meta")), ValueError, "bitmaps is on meta, and tiles on cpu"),
    "meta": (on_meta, TypeError, "attention: tiles is on meta, where tensors have no values, and q is not"),
    "sparse": (_as("tiles", lambda x: x.to_sparse()), TypeError, "tiles has layout torch.sparse_coo; accepted is"),
}


@pytest.mark.parametrize("with_gradient", [False, True], ids=["", "gradient"])
@pytest.mark.parametrize("name", ERRORS)
def test_errors(name, with_gradient):
    change, kind, text = ERRORS[name]
    q, k, v = draw_qkv(**SIZES)
    with pytest.raises(kind, match=text):
        attend(q.requires_grad_(with_gradient), k, v, change(on("cpu", draw_lists("everything"))))


def test_mixed_worlds_are_refused():
    q, k, v = draw_qkv(**SIZES)
    arrays = draw_lists()
    with pytest.raises(TypeError, match="tiles is a ndarray; pass torch tensors only, or NumPy arrays only"):
        keyhole.attention(q, k, v, keyhole.TileLists(**arrays))
    with pytest.raises(TypeError, match="the TileLists are torch.Tensor, and q is a NumPy array; pass torch tensors"):
        keyhole.attention(q.numpy(), k.numpy(), v.numpy(), keyhole.TileLists(**on("cpu", arrays)))
    indices = np.zeros((2, 2, 150, 3), np.int64)
    with pytest.raises(TypeError, match=r"lists is a NumPy array .*a NumPy array or a torch tensor as q is"):
        keyhole.attention(q, k, v, indices)
    with pytest.raises(TypeError, match="lists is a torch tensor of torch.int64"):
        keyhole.attention(q.numpy(), k.numpy(), v.numpy(), torch.from_numpy(indices))


NO_LISTS = {
    "mask": (torch.ones(150, 201, dtype=torch.bool), TypeError, r"a torch tensor of torch.bool, \[150, 201\]"),
    "mask of rank 4": (torch.ones(1, 1, 150, 201, dtype=torch.bool), TypeError, "a torch tensor of torch.bool"),
    "rank": (torch.zeros(150, 4, dtype=torch.int64), ValueError, r"a torch tensor of torch.int64, \[150, 4\]"),
    "floats": (torch.zeros(2, 2, 150, 4), TypeError, "a torch tensor of torch.float32"),
    "bytes": (torch.zeros(2, 2, 150, 4, dtype=torch.uint8), TypeError, "a torch tensor of torch.uint8"),
    "a function": (lambda b, h, q, k: q >= k, TypeError, "a function"),
    "nothing": (None, TypeError, "None"),
}

WAYS = {"a function": r"keyhole\.from_mask_mod\(", "nothing": r"keyhole\.from_dense\(mask\).*keyhole\.from_mask_mod\("}


@pytest.mark.parametrize("way", ["plain", "gradient", "compiled"])
@pytest.mark.parametrize("name", NO_LISTS)
def test_what_are_no_lists_has_a_way_out(name, way):
    lists, kind, text = NO_LISTS[name]
    q, k, v = draw_qkv(**SIZES)
    attention = torch.compile(keyhole.attention, backend="eager") if way == "compiled" else keyhole.attention
    way_out = r".*; accepted are a pattern.*TileLists.*" + WAYS.get(name, r"keyhole\.from_dense\(mask\)")
    with pytest.raises(kind, match=f"^attention: lists is {text}{way_out}"):
        attention(q.requires_grad_(way == "gradient"), k, v, lists)


@pytest.mark.parametrize("device", DEVICES)
def test_indices_are_lists_too(device):
    q, k, v = (x.requires_grad_() for x in draw_qkv(**SIZES, device=device))
    indices = torch.randint(-1, SIZES["k_len"], (2, 2, 150, 12), device=device)
    both = [
        function(q, k, v, indices, deterministic=True) for function in (keyhole.attention, keyhole.gather_attention)
    ]
    assert torch.equal(*both)
    for a, b in zip(*(torch.autograd.grad(out.sum(), (q, k, v)) for out in both), strict=True):
        assert torch.equal(a, b)


PARTS = {
    "none": ([], []),
    "two": ([torch.zeros(1), torch.zeros(1)], []),
    "a tile beside indices": ([torch.zeros(2, 2, 150, 3, dtype=torch.int64)], [64, 64]),
    "three and a tile": ([torch.zeros(1)] * 3, [64, 64]),
    "no tile": ([torch.zeros(2, 2, 3, 3, dtype=torch.int64)] * 4, [0, 0]),
}


@pytest.mark.parametrize("name", PARTS)
def test_tensors_that_no_op_can_follow(name):
    q, k, v = draw_qkv(**SIZES)
    with pytest.raises(
        ValueError,
        match=r"expected \[plan\], \[plan, kept, sequences\] or \[indices\] and no tile \(\[0, 0\]\), \[indices",
    ):
        ops.attention_forward(q, k, v, *PARTS[name], None, None, 0.0, 1.0, 0, False, "auto")


@needs_gpu
def test_entries_that_are_no_tiles_are_padding_on_a_gpu():
    lists = on("cuda", draw_lists("everything"))
    hostile = torch.tensor([-2, 4, 2**32, 2**40 + 3, -(2**63)], device="cuda")
    which = torch.arange(lists["tiles"].numel(), device="cuda").reshape(lists["tiles"].shape) % 5
    changed = {**lists, "tiles": torch.where(lists["tiles"] < 0, hostile[which], lists["tiles"])}

    def function(q, k, v, _):
        return attend(q, k, v, changed)

    check_step(function, lists, "cuda", torch.float32)


@needs_gpu
def test_lists_on_another_device_than_q_are_refused():
    q, k, v = draw_qkv(**SIZES, device="cuda")
    with pytest.raises(ValueError, match="q is on GPU 0 but tiles are in host memory"):
        attend(q, k, v, on("cpu", draw_lists()))
    lists = on("cuda", draw_lists("counts"))
    with pytest.raises(ValueError, match="counts is on cpu, and tiles on cuda:0"):
        keyhole.TileLists(**{**lists, "counts": lists["counts"].cpu()})


@needs_gpu
def test_the_current_stream_is_used_and_nothing_waits():
    q, k, v = draw_qkv(**SIZES, device="cuda", dtype=torch.bfloat16)
    lists = on("cuda", draw_lists("everything"))
    want = attend(q, k, v, lists)
    torch.cuda.synchronize()
    stream, other = torch.cuda.Stream(), {**lists, "tiles": torch.full_like(lists["tiles"], -1)}
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        other["tiles"].copy_(lists["tiles"])
        out = attend(q, k, v, other)
        assert not stream.query()  # queued behind the sleep: the call came back before its lists were there
    stream.synchronize()
    assert torch.equal(out, want)


@needs_gpu
@pytest.mark.parametrize("deterministic", [False, True], ids=["", "deterministic"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_cuda_graph_fills_lists_and_follows_them_forward_and_back(head_dim, deterministic):
    dtype = torch.bfloat16
    q, k, v = (x.requires_grad_() for x in draw_qkv(**SIZES, head_dim=head_dim, device="cuda", dtype=dtype))
    dout = draw(*q.shape, device="cuda", dtype=dtype, seed=9)
    scores = torch.zeros(2, 2, 3, 4, device="cuda")  # of key tiles, written before each replay
    wanted = torch.zeros(2, 2, 3, dtype=torch.int32, device="cuda")
    allowed = torch.zeros(2, 64, 64, dtype=torch.bool, device="cuda")

    def made():
        tiles = scores.topk(3).indices
        return {
            "tiles": tiles,
            "tile": (64, 64),
            "counts": wanted.clamp(0, 3),
            "bitmap_of": torch.where(tiles % 2 == 0, tiles // 2, -1),
            "bitmaps": ~allowed,
        }

    def step():
        out = keyhole.attention(q, k, v, keyhole.TileLists(**made()), deterministic=deterministic)
        return out, *torch.autograd.grad(out, (q, k, v), dout)

    graph, results = captured(step)
    for seed in range(3):
        scores.copy_(draw(2, 2, 3, 4, seed=seed))
        wanted.copy_(torch.randint(0, 4, wanted.shape, generator=torch.Generator().manual_seed(seed)))
        allowed.copy_(draw(2, 64, 64, seed=seed) > 0)
        graph.replay()
        out, _ = reference(q, k, v, pairs(made(), q, k))
        expected = (out, *torch.autograd.grad(out, (q, k, v), dout.double()))
        check_each("out dq dk dv", results, expected, dtype)
        if deterministic:
            assert all(torch.equal(a, b) for a, b in zip(results, step(), strict=True))
