# tests/python/test_torch_sdpa.py
"""keyhole.scaled_dot_product_attention beside torch's own."""

import keyhole
import pytest
import torch
from keyhole.torch_attention import attn_masks, read_masks
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch_reference import DEVICES, check_close, check_each, draw, needs_gpu

ours, torchs = keyhole.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention


def padding(*lengths, k_len=24):
    return torch.arange(k_len) < torch.tensor(lengths)[:, None, None, None]


def bits(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.4


SELF = ((2, 4, 24, 16), (2, 4, 24, 16))
CROSS = ((2, 4, 9, 16), (2, 4, 24, 16))
CASES = {  # shapes of q and of k and v, then the arguments
    "dense": (*SELF, {}),
    "causal": (*SELF, {"is_causal": True}),
    "causal, fewer queries": (*CROSS, {"is_causal": True}),
    "causal, more queries": (CROSS[1], CROSS[0], {"is_causal": True}),
    "scale": (*SELF, {"scale": 0.7}),
    "grouped heads": ((2, 6, 24, 16), (2, 2, 24, 16), {"enable_gqa": True, "is_causal": True}),
    "three dimensions": ((5, 24, 16), (5, 30, 16), {}),
    "three dimensions and a mask": ((5, 24, 16), (5, 30, 16), {"attn_mask": bits(5, 24, 30)}),
    "two dimensions": ((24, 16), (30, 16), {"attn_mask": bits(24, 30)}),
    "five dimensions": ((2, 3, 4, 24, 16), (2, 3, 4, 24, 16), {"attn_mask": bits(2, 1, 4, 24, 24)}),
    "leading dimensions broadcast": ((2, 4, 24, 16), (1, 4, 24, 16), {"is_causal": True}),
    "mask": (*CROSS, {"attn_mask": bits(9, 24)}),
    "mask for each head": (*CROSS, {"attn_mask": bits(1, 4, 9, 24)}),
    "mask for each entry": (*CROSS, {"attn_mask": bits(2, 1, 9, 24)}),
    "mask for each of both": (*CROSS, {"attn_mask": bits(2, 4, 9, 24)}),
    "mask of queries": (*CROSS, {"attn_mask": bits(9, 1)}),
    "padding on the right": (*CROSS, {"attn_mask": padding(24, 7)}),
    "padding on the left": (*SELF, {"attn_mask": ~padding(5, 0)}),
    "padding of everything": (*SELF, {"attn_mask": padding(0, 3)}),
    "padding in many runs": (*SELF, {"attn_mask": torch.arange(24)[None] % 2 == 0}),
    # Without elements. Rows without keys are 0 here, as in torch.
    "no queries": ((2, 4, 0, 16), (2, 4, 9, 16), {"attn_mask": bits(0, 9)}),
    "no keys": ((2, 4, 6, 16), (2, 4, 0, 16), {"attn_mask": bits(6, 0)}),
    "no keys to pad": ((2, 4, 6, 16), (2, 4, 0, 16), {"attn_mask": padding(0, 0, k_len=0)}),
    "neither": ((2, 4, 0, 16), (2, 4, 0, 16), {"attn_mask": bits(0, 0)}),
    "no entries": ((0, 4, 6, 16), (0, 4, 9, 16), {"attn_mask": bits(0, 1, 6, 9)}),
    "no heads": ((2, 0, 6, 16), (2, 0, 9, 16), {"attn_mask": bits(2, 1, 6, 9)}),
    "five dimensions without queries": ((2, 3, 4, 0, 16), (2, 3, 4, 9, 16), {}),
    "five dimensions without keys": ((2, 3, 4, 6, 16), (2, 3, 4, 0, 16), {"attn_mask": bits(6, 0)}),
    "five dimensions without entries": ((2, 0, 4, 6, 16), (2, 0, 4, 9, 16), {"attn_mask": bits(2, 1, 1, 6, 9)}),
    "three dimensions without queries": ((5, 0, 16), (5, 9, 16), {"attn_mask": bits(0, 9)}),
    "two dimensions without queries": ((0, 16), (9, 16), {"attn_mask": bits(0, 9)}),
}


def expected_of(q, k, v, **options):
    """By torch. Without heads by the definition, which leaves no elements: there torch divides by the number of heads,
    and on x86_64 that ends the process.
    """
    q, k, v = q.double(), k.double(), v.double()
    if q.dim() > 2 and q.shape[-3] == 0:
        return q @ k.transpose(-1, -2) @ v
    return torchs(q, k, v, **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_torch(name, device):
    q_shape, k_shape, options = CASES[name]
    options = {key: x.to(device) if isinstance(x, torch.Tensor) else x for key, x in options.items()}
    q, k, v = (
        draw(*shape, device=device, seed=i).requires_grad_() for i, shape in enumerate((q_shape, k_shape, k_shape))
    )
    out, expected = ours(q, k, v, **options), expected_of(q, k, v, **options)
    check_close("out", out, expected, torch.float32)
    dout = draw(*out.shape, device=device, seed=8)
    got = torch.autograd.grad(out, (q, k, v), dout)
    check_each("dq dk dv", got, torch.autograd.grad(expected, (q, k, v), dout.double()), torch.float32)


def test_padding_is_told_in_a_few_runs(monkeypatch):
    monkeypatch.setattr(attn_masks, "_MOST_RUNS", 2)
    many = torch.tensor([1, 0, 1, 0, 1], dtype=torch.bool)
    assert attn_masks._pattern_of(many[:3], (1, 1, 7, 3)) == keyhole.parse("sinks(1) | sinks(3) & ~sinks(2)")
    assert attn_masks._pattern_of(many, (1, 1, 7, 5)) == keyhole.mask(many.expand(7, 5).numpy())


def by_its_methods(mask, shared):
    mask.logical_not_()


def through_numpy(mask, shared):
    shared[:, 4:] = False


def through_data(mask, shared):
    mask.data[:, 4:] = False


def other_memory(mask, shared):
    mask.data = bits(24, 24, seed=1)


def other_order(mask, shared):
    mask.data = mask.data.t()


def by_one_bit(mask, shared):
    shared[-1, -1] ^= True


WRITES = [by_its_methods, through_numpy, through_data, other_memory, other_order, by_one_bit]


@pytest.mark.parametrize("many", [0, 1 << 30], ids=["by words", "by elements"])
@pytest.mark.parametrize("is_inference", [False, True], ids=["", "inference"])
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_a_mask_is_read_again_only_when_it_changed(write, is_inference, many, monkeypatch):
    """Though torch counts few of these changes."""
    read = []
    pattern_of = attn_masks._pattern_of
    monkeypatch.setattr(attn_masks, "_pattern_of", lambda *x: read.append(1) or pattern_of(*x))
    monkeypatch.setattr(read_masks, "_MANY", many)
    q, shared = draw(1, 2, 24, 16), bits(24, 24).numpy()
    with torch.inference_mode(is_inference):
        mask = torch.from_numpy(shared)
        for changes, times in ((False, 1), (False, 1), (True, 2), (False, 2)):
            if changes:
                write(mask, shared)
            check_close("out", ours(q, q, q, mask), torchs(q, q, q, mask), torch.float32)
            assert len(read) == times


def test_a_mask_that_was_expanded_is_compared_once():
    row, q = bits(1, 24), draw(1, 2, 24, 16)
    mask = row.expand(24, 24)
    for _ in range(2):
        check_close("out", ours(q, q, q, mask), torchs(q, q, q, mask), torch.float32)
        row.data[:, ::2] = True
    assert read_masks._snapshot(mask)[1].shape == (1, 24)
    mask.data = row.data.expand(23, 24)
    with pytest.raises(ValueError, match=r"\[23, 24\], which does not broadcast"):
        ours(q, q, q, mask)


@needs_gpu
def test_changes_of_a_mask_on_a_gpu_are_counted():
    q, mask = draw(1, 2, 24, 16, device="cuda"), bits(24, 24).cuda()
    for write in (lambda: None, mask.logical_not_, lambda: setattr(mask, "data", bits(24, 24, seed=1).cuda())):
        write()
        check_close("out", ours(q, q, q, mask), torchs(q, q, q, mask), torch.float32)
    with torch.inference_mode():  # counts nothing, so it is read every time
        mask = bits(24, 24).cuda()
        for write in (lambda: None, mask.logical_not_):
            write()
            check_close("out", ours(q, q, q, mask), torchs(q, q, q, mask), torch.float32)


@pytest.mark.parametrize("name", CASES)
def test_the_default_device_does_not_matter(name):
    q_shape, k_shape, options = CASES[name]
    q, k = draw(*q_shape), draw(*k_shape, seed=1)
    expected = ours(q, k, k, **options)
    options = {key: x.clone() if isinstance(x, torch.Tensor) else x for key, x in options.items()}  # not read yet
    with torch.device("meta"):
        assert torch.equal(ours(q, k, k, **options), expected)


def test_under_compile():
    q, k, v = (draw(2, 4, 24, 16, seed=i) for i in range(3))
    causal = torch.compile(lambda *x: ours(*x, is_causal=True), backend="aot_eager", fullgraph=True)
    for k_len in (24, 17):
        k, v = k[:, :, :k_len], v[:, :, :k_len]
        check_close("out", causal(q, k, v), torchs(q, k, v, is_causal=True), torch.float32)
    mask = bits(24, 17)
    masked = torch.compile(
        lambda *x: ours(*x), backend="aot_eager"
    )  # with a break in the graph, where the mask is read
    check_close("out", masked(q, k, v, mask), torchs(q, k, v, mask), torch.float32)


BIASES = {
    "top left": (*CROSS, causal_upper_left(9, 24)),
    "bottom right": (*CROSS, causal_lower_right(9, 24)),
    "either end": (*SELF, causal_lower_right(24, 24)),
    "top left, more queries": (CROSS[1], CROSS[0], causal_upper_left(24, 9)),
    "three dimensions": (CROSS[0][1:], CROSS[1][1:], causal_lower_right(9, 24)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", BIASES)
def test_causal_biases_of_torch(name, device):
    q_shape, k_shape, bias = BIASES[name]
    q, k, v = (draw(*shape, device=device, seed=i) for i, shape in enumerate((q_shape, k_shape, k_shape)))
    expected = torchs(q.double(), k.double(), v.double(), bias._materialize(device))
    check_close("out", ours(q, k, v, attn_mask=bias), expected, torch.float32)


@pytest.mark.filterwarnings("ignore:Lower right causal bias will produce NaNs")
def test_queries_above_a_causal_bias_get_zeros():
    q, k, v = draw(2, 4, 24, 16), draw(2, 4, 9, 16, seed=1), draw(2, 4, 9, 16, seed=2)
    out = ours(q, k, v, causal_lower_right(24, 9))
    assert torch.equal(out[:, :, :15], torch.zeros(2, 4, 15, 16))
    check_close("out", out[:, :, 15:], torchs(q[:, :, 15:], k, v, is_causal=True), torch.float32)


@pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
def test_causal_biases_do_not_break_a_graph(make):
    q, k = draw(2, 4, 9, 16), draw(2, 4, 24, 16, seed=1)
    compiled = torch.compile(lambda *x: ours(*x), backend="aot_eager", fullgraph=True)
    check_close("out", compiled(q, k, k, make(9, 24)), torchs(q, k, k, make(9, 24)), torch.float32)


Q = torch.zeros(1, 4, 24, 16)
ERRORS = {
    "dropout": ({"dropout_p": 0.1}, NotImplementedError, "dropout_p is 0.1"),
    "additive mask": ({"attn_mask": torch.zeros(24, 24)}, NotImplementedError, "additive mask"),
    "integer mask": (
        {"attn_mask": torch.zeros(24, 24, dtype=torch.int32)},
        TypeError,
        "torch.int32; expected torch.bool",
    ),
    "mask and causal": ({"attn_mask": bits(24, 24), "is_causal": True}, ValueError, "were both passed"),
    "shape of the mask": ({"attn_mask": bits(23, 24)}, ValueError, "does not broadcast to"),
    "shape of a mask without elements": ({"attn_mask": bits(0, 24)}, ValueError, "does not broadcast to"),
    "too many dimensions": ({"attn_mask": bits(1, 1, 1, 24, 24)}, ValueError, "does not broadcast to"),
    "lengths of a causal bias": (
        {"attn_mask": causal_lower_right(40, 70)},
        ValueError,
        r"attn_mask is causal_lower_right\(40, 70\), and .* 24 queries and 24 keys; pass causal_lower_right\(24, 24\)",
    ),
    "a causal bias that was copied": (
        {"attn_mask": causal_lower_right(24, 24).clone()},
        TypeError,
        "which serves every",
    ),
    "a causal bias and causal": (
        {"attn_mask": causal_upper_left(24, 24), "is_causal": True},
        ValueError,
        "were both passed",
    ),
    "heads": ({"key": Q[:, :2], "value": Q[:, :2]}, ValueError, "enable_gqa=True"),
    "dimensions": ({"key": Q[0]}, ValueError, "query has 4 dimensions and key 3"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_is_refused(name):
    options, kind, text = ERRORS[name]
    with pytest.raises(kind, match=text):
        ours(**{"query": Q, "key": Q, "value": Q, **options})


@needs_gpu
def test_a_mask_may_stay_on_the_cpu():
    q = draw(1, 2, 24, 16, device="cuda")
    mask = bits(24, 24)
    check_close("out", ours(q, q, q, mask), torchs(q, q, q, mask.cuda()), torch.float32)
