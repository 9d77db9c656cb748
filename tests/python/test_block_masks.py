# tests/python/test_block_masks.py
"""Mask functions and BlockMasks of torch against torch's own create_mask and create_block_mask, in both directions."""

from __future__ import annotations

import copy
import ctypes
import pickle

import keyhole
import numpy as np
import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

from torch_reference import DEVICES  # noqa: E402

DOCUMENTS = torch.tensor([[0] * 100 + [1] * 150 + [2] * 50, [0] * 10 + [1] * 200 + [2] * 90])
LENGTHS = torch.tensor([300, 77])


def causal(b, h, q, k):
    return q >= k


def sliding(b, h, q, k):
    return (q >= k) & (q - k < 100)


def by_entry(b, h, q, k):
    return (DOCUMENTS[b, q] == DOCUMENTS[b, k]) & (q >= k)


def by_head(b, h, q, k):
    return (q - k).abs() <= 20 * h


def by_both(b, h, q, k):
    return (k < LENGTHS[b]) & ((q + h) % 7 != k % 5)


def chained(b, h, q, k):  # indexing step by step, as only vmap understands it
    return DOCUMENTS[b][q] == DOCUMENTS[b][k]


def same_document(b, h, q, k):
    return DOCUMENTS[0][q] == DOCUMENTS[0][k]


def threshold(b, h, q, k):  # as ALiBi's slopes
    return (q - k) * torch.exp2(-(h + 1.0)) < 30


def borrowing(b, h, q, k):  # the shape and the device of b and h, but none of their values
    return (q >= k + h.ndim) & torch.ones_like(b, dtype=torch.bool) & torch.tensor(True, device=h.device)


def in_place(b, h, q, k):  # writes over values that have nothing to do with b and h
    mask = q >= k
    mask &= q - k < 100
    return mask


def nothing(b, h, q, k):
    return (q < 0) & (k < 0)


FUNCTIONS = [causal, sliding, by_entry, by_head, by_both, chained, nothing, flex.noop_mask]
FUNCTIONS += [flex.and_masks(causal, by_entry), flex.or_masks(sliding, by_head)]
B, H = 2, 3


def name_of(function):
    return getattr(function, "__name__", "noop")


def dense(pattern, q_len, k_len, batch=B, heads=H):
    masks = [[pattern.mask(q_len, k_len, batch=b, head=h) for h in range(heads)] for b in range(batch)]
    return torch.from_numpy(np.array(masks).reshape(batch, heads, q_len, k_len))


@pytest.mark.parametrize("function", FUNCTIONS, ids=name_of)
@pytest.mark.parametrize(("q_len", "k_len"), [(300, 300), (129, 256), (256, 100), (1, 300)])
def test_from_mask_mod_is_create_mask(function, q_len, k_len):
    pattern = keyhole.from_mask_mod(function, q_len, k_len, batch=B, heads=H)
    assert torch.equal(dense(pattern, q_len, k_len), flex.create_mask(function, B, H, q_len, k_len, device="cpu"))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (causal, ""),
        (by_entry, "per_batch"),
        (by_head, "per_head"),
        (by_both, "per_batch(per_head"),
        (chained, "per_batch"),
        (flex.and_masks(causal, sliding), ""),
        (flex.or_masks(sliding, by_head), "per_head"),
        (same_document, ""),
        (threshold, "per_head"),
        (borrowing, ""),
        (in_place, ""),
    ],
    ids=["causal", "entry", "head", "both", "chained", "and", "or", "documents", "threshold", "borrowing", "in place"],
)
def test_from_mask_mod_finds_what_a_function_looks_at(function, expected):
    calls = []

    def counted(b, h, q, k):
        calls.append(1)
        return function(b, h, q, k)

    text = str(keyhole.from_mask_mod(counted, 300, 300, batch=B, heads=H))
    assert text.startswith(f"from_mask_mod(<{B}x{H}x300x300>, {expected or 'bitmaps'}")
    asked = {"": 1, "per_batch": B, "per_head": H, "per_batch(per_head": B * H}[expected]
    assert len(calls) == asked + 1  # and once to be watched


TABLE = [0, 3, 1]


def written(b, h, q, k):
    shift = torch.zeros(1, dtype=torch.long)
    shift[0] = 3 * h
    return q >= k + shift[0]


def assigned(b, h, q, k):
    shift = torch.zeros((), dtype=torch.long)
    shift.data = 3 * h
    return q >= k + shift


def branching_on_the_entry(b, h, q, k):
    return q >= k + h if b.item() == 1 else q >= k


def catching(look):
    """A function that goes on whatever a look at h raises."""

    def function(b, h, q, k):
        try:
            return q >= k + TABLE[look(h)]
        except Exception:
            return q > k

    return function


def remembering(b, h, q, k, memory={}):  # noqa: B006
    memory["h"] = h
    return q >= k + memory["h"]


# Each looks at h or b where no graph of ops shows it.
LEAVING_TORCH = {
    "written": written,
    "assigned": assigned,
    "copy_": lambda b, h, q, k: q >= k + torch.zeros((), dtype=torch.long).copy_(h),
    "out": lambda b, h, q, k: q >= k + torch.add(h, 1, out=torch.zeros((), dtype=torch.long)),
    "numpy": lambda b, h, q, k: q >= k + int(np.array(TABLE)[h.numpy()]),
    "asarray": lambda b, h, q, k: q >= k + int(np.asarray(h)),
    "array of NumPy": lambda b, h, q, k: q >= k + int(np.array(TABLE)[h]),
    "dlpack": lambda b, h, q, k: q >= k + int(np.from_dlpack(h)),
    "tensor": lambda b, h, q, k: q >= k + torch.from_dlpack(h),
    "pointer": lambda b, h, q, k: q >= k + ctypes.c_int64.from_address(h.data_ptr()).value,
    "storage": lambda b, h, q, k: q >= k + h.untyped_storage()[0],
    "pickle": lambda b, h, q, k: q >= k + pickle.loads(pickle.dumps(h)),
    "copy": lambda b, h, q, k: q >= k + copy.deepcopy(h),
    "tolist": lambda b, h, q, k: k < [4, 2][b.tolist()],
    "item": lambda b, h, q, k: q >= k + h.item(),
    "item of a sum": lambda b, h, q, k: q >= k + TABLE[(h + 0).item()],
    "int": lambda b, h, q, k: q >= k + int(h),
    "index": lambda b, h, q, k: q >= k + TABLE[h],
    "slice": lambda b, h, q, k: q >= k + len(TABLE[h:]),
    "range": lambda b, h, q, k: q >= k + len(range(h)),
    "shape": lambda b, h, q, k: q >= k + torch.arange(h + 1).numel(),
    "list": lambda b, h, q, k: q >= k + torch.tensor([h, 3])[0],
    "branch": lambda b, h, q, k: q >= k if h == 0 else q > k + 1,
    "branch on b": branching_on_the_entry,
    "in": lambda b, h, q, k: q >= k + (h in (1, 2)),
    "equal": lambda b, h, q, k: q >= k + torch.equal(h, torch.tensor(1)),
    "text": lambda b, h, q, k: q >= k + {"tensor(1)": 3}.get(str(h), 0),
    "format": lambda b, h, q, k: q >= k + int(f"{h}"),
    "percent": lambda b, h, q, k: q >= k + int("%d" % h),  # noqa: UP031
    "hash": lambda b, h, q, k: q >= k + {hash(h): 1}[hash(h)] * h.item(),
    "dict": lambda b, h, q, k: q >= k + {0: 1, 1: 0, 2: 3}[h.item()],
    "where": lambda b, h, q, k: torch.where(h < 1, q >= k, q > k + 1),
    "fill value": lambda b, h, q, k: q >= k + b.new_full((), h),
    "memory": remembering,
    "caught item": catching(lambda h: h.item()),
    "caught tolist": catching(lambda h: h.tolist()),
    "caught numpy": catching(lambda h: h.numpy()),
    "caught storage": catching(lambda h: h.untyped_storage()[0]),
    "caught copy": catching(lambda h: copy.deepcopy(h).item()),
}


@pytest.mark.parametrize("name", LEAVING_TORCH)
def test_from_mask_mod_asks_every_head_where_values_leave_torch(name):
    function = LEAVING_TORCH[name]
    expected = torch.tensor(
        [[[[bool(function(*map(torch.tensor, (b, h, q, k)))) for k in range(6)] for q in range(6)] for h in range(H)]
         for b in range(B)]
    )  # fmt: skip
    assert torch.equal(dense(keyhole.from_mask_mod(function, 6, batch=B, heads=H), 6, 6), expected)


@pytest.mark.parametrize("keep", [lambda h: h * 0 + 1, lambda h: torch.ones_like(h)], ids=["computed", "borrowed"])
def test_from_mask_mod_asks_a_function_that_keeps_a_tensor_of_its_first_call(keep):
    kept = []

    def function(b, h, q, k):
        if not kept:
            kept.append(keep(h))
        return q >= k + kept[0] * kept[0].item()

    assert torch.equal(
        dense(keyhole.from_mask_mod(function, 6, heads=H), 6, 6), torch.ones(6, 6).tril(-1).bool().expand(B, H, 6, 6)
    )


def branching_on(index):
    def branching(*indices):
        return indices[2] >= indices[3] if indices[index] == 0 else indices[2] <= indices[3]

    return branching


WIDTHS = torch.tensor([3, 1, 4])
LOOKS_AT = {  # a function, and what it looks at
    "h": (lambda b, h, q, k: q - k >= h, "h"),
    "b": (lambda b, h, q, k: q - k >= b, "b"),
    "h, in a list": (lambda b, h, q, k: q - k < [3, 1, 4][h], "h"),
    "h, in a tensor": (lambda b, h, q, k: q - k < WIDTHS[h], "h"),
    "h, in a branch": (branching_on(1), "h"),
    "b, in a branch": (branching_on(0), "b"),
    "neither": (lambda b, h, q, k: q >= k, ""),
    "neither, beside numbers out of torch": (lambda b, h, q, k: q - k < float(WIDTHS.max()), ""),
}


ASKED_BY = [(name, xp) for name in LOOKS_AT for xp in (torch, np) if xp is torch or "tensor" not in name]


@pytest.mark.parametrize(("name", "xp"), ASKED_BY, ids=[f"{name}, {xp.__name__}" for name, xp in ASKED_BY])
def test_from_mask_mod_does_not_take_head_0_for_all(name, xp):
    function, looks_at = LOOKS_AT[name]
    counts = {"h": "heads", "b": "batch"}
    if looks_at:
        count = counts.pop(looks_at)
        with pytest.raises(ValueError, match=f"reads {looks_at}, and {count} is not given: .* pass {count}=N"):
            keyhole.from_mask_mod(function, 6, **dict.fromkeys(counts.values(), 2), xp=xp)
        keyhole.from_mask_mod(function, 6, **{count: 2}, xp=xp)
        keyhole.from_mask_mod(function, 6, **{count: 1}, xp=xp)
    else:
        keyhole.from_mask_mod(function, 6, xp=xp)


def only_in_entry_1(b, h, q, k):
    return q >= k + h if b == 1 else q >= k


@pytest.mark.parametrize("xp", [torch, np], ids=["torch", "numpy"])
def test_from_mask_mod_refuses_h_in_any_entry(xp):
    with pytest.raises(ValueError, match="reads h, and heads is not given"):
        keyhole.from_mask_mod(only_in_entry_1, 6, batch=2, xp=xp)
    keyhole.from_mask_mod(only_in_entry_1, 6, batch=2, heads=1, xp=xp)
    keyhole.from_mask_mod(only_in_entry_1, 6, batch=1, xp=xp)


@pytest.mark.parametrize(
    "function",
    [
        lambda b, h, q, k: q - k < float(WIDTHS.max()) + h,
        lambda b, h, q, k: q - k < len(str(WIDTHS)) + h,
        lambda b, h, q, k: q >= k + len(str(k + h)),
        lambda b, h, q, k: q - k < WIDTHS.numpy().max() + WIDTHS[h],
    ],
)
def test_from_mask_mod_refuses_h_after_other_values_left_torch(function):
    with pytest.raises(ValueError, match="reads h, and heads is not given"):
        keyhole.from_mask_mod(function, 6)


USES_AND = "branches on the values of its indices .* write & for and"
TAKES_OUT = r"converts an index from torch to Python or NumPy .* torch.as_tensor\(table\), or pass xp=numpy"
GIVES = "must return a tensor of bools, found {}; write torch.ones_like"


@pytest.mark.parametrize("counts", [{}, {"batch": B, "heads": H}], ids=["one", "several"])
@pytest.mark.parametrize(
    ("function", "match", "cause"),
    [
        (lambda b, h, q, k: q >= k and k > 2, USES_AND, RuntimeError),
        (lambda b, h, q, k: 0 <= k <= q, USES_AND, RuntimeError),
        (lambda b, h, q, k: q >= k if q > 2 else k < 1, USES_AND, RuntimeError),
        (lambda b, h, q, k: np.array(TABLE)[q] == np.array(TABLE)[k], TAKES_OUT, RuntimeError),
        (lambda b, h, q, k: k <= TABLE[q], TAKES_OUT, RuntimeError),
        (lambda b, h, q, k: k <= int(q), TAKES_OUT, RuntimeError),
        (lambda b, h, q, k: True, GIVES.format("True"), type(None)),
        (lambda b, h, q, k: None, GIVES.format("None"), type(None)),
        (lambda b, h, q, k: (q >= k, q), GIVES.format("tuple"), type(None)),
        (lambda b, h, q, k: q - k, "must return bools, found torch.int64; a score_mod", type(None)),
    ],
)
def test_from_mask_mod_names_the_mistake(function, match, cause, counts):
    with pytest.raises(TypeError, match=f"^from_mask_mod: the function {match}") as caught:
        keyhole.from_mask_mod(function, 3, **counts)
    assert isinstance(caught.value.__cause__, cause)


def test_from_mask_mod_passes_on_what_a_function_raises():
    with pytest.raises(KeyError, match="what a function raises"):
        keyhole.from_mask_mod(lambda b, h, q, k: {}["what a function raises"], 3)


@pytest.mark.parametrize("function", FUNCTIONS, ids=name_of)
@pytest.mark.parametrize(("q_len", "k_len"), [(300, 300), (129, 256), (256, 100)])
@pytest.mark.parametrize("block", [128, (64, 32)])
def test_from_block_mask_is_create_mask(function, q_len, k_len, block):
    mask = flex.create_block_mask(function, B, H, q_len, k_len, device="cpu", BLOCK_SIZE=block)
    pattern = keyhole.from_block_mask(mask)
    assert torch.equal(dense(pattern, q_len, k_len), flex.create_mask(function, B, H, q_len, k_len, device="cpu"))


def test_from_block_mask_takes_lists_as_they_are():
    """Blocks that the lists leave out do not attend, whatever the function says of them; full ones are not asked."""

    def asked(b, h, q, k):
        return (q + k) % 2 == 0

    def lists(rows):
        counts = torch.tensor([len(row) for row in rows], dtype=torch.int32)
        padded = torch.tensor([row + [9] * (3 - len(row)) for row in rows], dtype=torch.int32)
        return counts[None, None], padded[None, None]

    partial, full = lists([[1], [0, 2], []]), lists([[0], [1], [2, 0]])
    mask = flex.BlockMask.from_kv_blocks(*partial, *full, BLOCK_SIZE=4, mask_mod=asked, seq_lengths=(11, 12))
    expected = np.zeros((11, 12), bool)
    q, k = np.indices((11, 12))
    for row, columns in enumerate([[1], [0, 2], []]):
        for column in columns:
            expected |= (q // 4 == row) & (k // 4 == column) & ((q + k) % 2 == 0)
    for row, columns in enumerate([[0], [1], [2, 0]]):
        for column in columns:
            expected |= (q // 4 == row) & (k // 4 == column)
    assert (keyhole.from_block_mask(mask).mask(11, 12) == expected).all()


def test_from_block_mask_asks_equal_heads_once():
    calls = []

    def counted(b, h, q, k):
        calls.append(1)
        return q >= k

    mask = flex.create_block_mask(counted, B, H, 300, 300, device="cpu")
    calls.clear()
    assert str(keyhole.from_block_mask(mask)).startswith(f"from_block_mask(<{B}x{H}x300x300>, bitmaps")
    assert len(calls) == 2  # traced, and asked


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_lie_where_they_lie(device):
    """Functions look at tensors on a GPU, lists come from there, and block masks go there."""
    documents = DOCUMENTS.to(device)

    def function(b, h, q, k):
        return (documents[b, q] == documents[b, k]) & (q >= k)

    expected = flex.create_mask(by_entry, B, H, 300, 300, device="cpu")
    assert torch.equal(dense(keyhole.from_mask_mod(function, 300, batch=B, heads=H, device=device), 300, 300), expected)
    mask = flex.create_block_mask(function, B, H, 300, 300, device=device)
    pattern = keyhole.from_block_mask(mask)
    assert torch.equal(dense(pattern, 300, 300), expected)
    back = keyhole.to_block_mask(pattern, 300, batch=B, heads=H, device=device)
    assert back.kv_indices.device.type == device
    assert torch.equal(flex.create_mask(back.mask_mod, B, H, 300, 300, device=device).cpu(), expected)
    assert keyhole.from_dense(expected.to(device)) == keyhole.from_dense(expected)


def test_from_block_mask_says_what_was_passed():
    with pytest.raises(TypeError, match="expected torch's BlockMask, found Tensor"):
        keyhole.from_block_mask(torch.ones(2))


PATTERNS = [
    "causal",
    "dense",
    "~dense",
    "causal & (window(100) | sinks(4))",
    "dilated(8)",
    "random(16, 3, 7)",
    "per_head(causal, window(10), ~dense)",
    "per_batch(causal, per_head(dense, causal, sinks(1)))",
]


@pytest.mark.parametrize("text", PATTERNS)
@pytest.mark.parametrize(("q_len", "k_len"), [(300, 300), (129, 257), (300, 100)])
@pytest.mark.parametrize("block", [128, (64, 32), (16, 40)])
def test_to_block_mask_holds_the_pairs(text, q_len, k_len, block):
    """Its lists are those that torch finds, and its function holds exactly the pairs."""
    pattern = keyhole.parse(text)
    mask = keyhole.to_block_mask(pattern, q_len, k_len, batch=B, heads=H, block_size=block)
    expected = dense(pattern, q_len, k_len)
    assert torch.equal(flex.create_mask(mask.mask_mod, B, H, q_len, k_len, device="cpu"), expected)
    theirs = flex.create_block_mask(
        lambda b, h, q, k: expected[b, h, q, k], B, H, q_len, k_len, device="cpu", BLOCK_SIZE=block
    )
    shape = torch.broadcast_shapes(mask.to_dense().shape, theirs.to_dense().shape)
    assert torch.equal(mask.to_dense().expand(shape), theirs.to_dense())
    assert torch.equal(mask.full_kv_num_blocks.expand(theirs.full_kv_num_blocks.shape), theirs.full_kv_num_blocks)


def test_to_block_mask_serves_flex_attention():
    pattern = keyhole.parse("causal & (window(100) | sinks(4))")
    q, k, v = torch.randn(3, 2, 3, 300, 16)
    out = flex.flex_attention(q, k, v, block_mask=keyhole.to_block_mask(pattern, 300))
    ours = keyhole.attention(q.numpy(), k.numpy(), v.numpy(), pattern)
    assert torch.allclose(out, torch.from_numpy(ours), atol=1e-5)


@pytest.mark.parametrize("text", PATTERNS)
def test_there_and_back(text):
    plan = keyhole.plan(text, 300, 200, batch=B, heads=H)
    back = keyhole.from_block_mask(keyhole.to_block_mask(plan))
    assert torch.equal(dense(back, 300, 200), dense(keyhole.parse(text), 300, 200))


def test_to_block_mask_drops_dimensions_that_do_not_vary():
    assert keyhole.to_block_mask("causal", 300, batch=B, heads=H).shape == (1, 1, 300, 300)
    by_head = keyhole.per_head("causal", "dense", "dense")
    assert keyhole.to_block_mask(by_head, 300, batch=B, heads=H).shape == (1, H, 300, 300)
    by_entry_ = keyhole.per_batch("causal", "dense")
    assert keyhole.to_block_mask(by_entry_, 300, batch=B, heads=H).shape == (B, 1, 300, 300)


def test_to_block_mask_says_what_was_passed():
    with pytest.raises(TypeError, match="q_len must be given with a pattern"):
        keyhole.to_block_mask("causal")
    with pytest.raises(TypeError, match="a plan has its own lengths"):
        keyhole.to_block_mask(keyhole.plan("causal", 10), 10)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"batch": 0}, ValueError, "batch is 0; expected 1 or more"),
        ({"batch": -1}, ValueError, "batch is -1; expected 1 or more"),
        ({"heads": 0}, ValueError, "heads is 0; expected 1 or more"),
        ({"heads": 2.0}, TypeError, "heads: expected an int, found float"),
        ({"block_size": 0}, ValueError, "block_size is 0; expected 1 or more"),
        ({"block_size": (32, -1)}, ValueError, "block_size is -1; expected 1 or more"),
        ({"block_size": (32, 32, 32)}, ValueError, r"block_size has 3 sides; expected an int, or two for \(q, k\)"),
        ({"block_size": 32.0}, TypeError, "block_size: expected an int, found float"),
        ({"block_size": None}, TypeError, "block_size: expected an int, found NoneType"),
    ],
)
def test_to_block_mask_refuses_shapes_that_are_none(options, error, match):
    with pytest.raises(error, match=f"^to_block_mask: {match}"):
        keyhole.to_block_mask("causal", 100, **options)


def test_to_block_mask_takes_integers_of_numpy():
    for size, sides in ((np.int64(32), (32, 32)), (np.array([32, 64]), (32, 64)), ([32, 64], (32, 64))):
        assert sides == keyhole.to_block_mask("causal", 100, block_size=size).BLOCK_SIZE
    by_head = keyhole.per_head("causal", "dense")
    assert keyhole.to_block_mask(by_head, np.int64(100), batch=np.int64(3), heads=np.int32(2)).shape == (1, 2, 100, 100)
