"""Keys chosen from data, on NumPy arrays: against the definition, exactly where that is promised."""

from __future__ import annotations

import builtins

import keyhole
import numpy as np
import pytest
from keyhole import _core
from keyhole.numpy_attention import _tensor
from numpy_reference import ROUNDING, draw
from select_reference import chosen_of, listed_of, loss_of, scores_of

try:
    import ml_dtypes
except ModuleNotFoundError:
    ml_dtypes = None

needs_ml_dtypes = pytest.mark.skipif(ml_dtypes is None, reason="ml_dtypes is not installed: NumPy has no 8-bit floats")

CASES = {
    "one group": {},
    "more keys than queries": {"q_len": 11, "entries": 60},
    "one query": {"q_len": 1, "entries": 300},
    "two groups": {"groups": 2, "batch": 2},
    "no w": {"has_w": False},
    "k_scale": {"has_k_scale": True},
    "one head, odd dim": {"heads": 1, "dim": 13},
    "no queries": {"q_len": 0},
    "no entries": {"entries": 0},
    "long": {"q_len": 5, "entries": 3000, "heads": 2},
}
PATTERNS = [None, "causal", "causal & (window(5) | sinks(2))", "strided(4)"]
ALWAYS = [None, "causal & window(1)", "sinks(3)"]


def indexer(batch=1, heads=4, groups=1, q_len=40, entries=40, dim=16, has_w=True, has_k_scale=False, dtype=np.float64):
    q, k = draw(batch, heads, q_len, dim, dtype=dtype), draw(batch, groups, entries, dim, dtype=dtype, seed=1)
    sums = np.float64 if dtype == np.float64 else np.float32
    w = draw(batch, heads, q_len, dtype=sums, seed=2) if has_w else None
    k_scale = np.abs(draw(batch, groups, entries, dtype=sums, seed=3)) if has_k_scale else None
    return q, k, w, k_scale


def mask_of(pattern, shape):
    if pattern is None:
        return None
    pattern = keyhole.parse(pattern) if isinstance(pattern, str) else pattern
    batch, groups, q_len, entries = shape
    return np.array([[pattern.mask(q_len, entries, batch=b, head=g) for g in range(groups)] for b in range(batch)])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("visible", PATTERNS)
@pytest.mark.parametrize("case", CASES)
def test_scores(case, visible, dtype):
    q, k, w, k_scale = indexer(**CASES[case], dtype=dtype)
    got = keyhole.index_scores(q, k, w, k_scale=k_scale, visible=visible)
    assert got.dtype == (np.float64 if dtype == np.float64 else np.float32)
    mask = mask_of(visible, got.shape)
    want = scores_of(q, k, w, k_scale, mask)
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    finite = np.isfinite(want)
    largest = np.abs(want[finite]).max(initial=1.0)
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=64 * ROUNDING[got.dtype.name] * largest)


@pytest.mark.parametrize("always", ALWAYS)
@pytest.mark.parametrize("visible", PATTERNS)
@pytest.mark.parametrize("case", CASES)
def test_selected_keys_are_the_best_of_the_scores(case, visible, always):
    """The fused call chooses what top_k chooses from the scores of index_scores, bit by bit."""
    q, k, w, k_scale = indexer(**CASES[case], dtype=np.float32)
    scores = keyhole.index_scores(q, k, w, k_scale=k_scale)
    masks = mask_of(visible, scores.shape), mask_of(always, scores.shape)
    options = {"visible": visible, "always": always}
    for count in (1, 7, 64):
        want, counts = chosen_of(scores, count, *masks, takes_short_rows=True)
        got = keyhole.select_keys(q, k, w, k_scale=k_scale, top_k=count, return_counts=True, **options)
        np.testing.assert_array_equal(got[0], want)
        np.testing.assert_array_equal(got[1], counts)
        assert got[0].dtype == got[1].dtype == np.int32
        np.testing.assert_array_equal(keyhole.top_k(scores, count, **options), chosen_of(scores, count, *masks)[0])


def rows_of_scores():
    """Rows that tell an order apart from another, by name."""
    few = np.random.default_rng(0).integers(-2, 3, 200).astype(np.float64)
    zeros = np.where(np.arange(200) % 2 == 0, 0.0, -0.0)
    broken = np.random.default_rng(1).standard_normal(200)
    broken[::3], broken[1::7], broken[2::11] = np.nan, np.inf, -np.inf
    return {
        "random": np.random.default_rng(2).standard_normal(200),
        "ties": few,
        "zeros of both signs": zeros,
        "small and zeros": np.where(np.arange(200) % 5 == 0, -1e-30, zeros),
        "NaN and inf": broken,
        "all NaN": np.full(200, np.nan),
        "all -inf": np.full(200, -np.inf),
        "all inf": np.full(200, np.inf),
        "all equal": np.full(200, -3.0),
        "rising": np.arange(200.0),
        "falling": -np.arange(200.0),
        "subnormal": np.arange(200) * 1e-42,
    }


DTYPES = ["float64", "float32", "float16", pytest.param("bfloat16", marks=needs_ml_dtypes)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", rows_of_scores())
def test_the_order_is_exact(name, dtype):
    dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    with np.errstate(over="ignore"):
        scores = rows_of_scores()[name].astype(dtype)[None, None, None].repeat(3, 2)
    for count in (1, 2, 63, 64, 65, 199, 200, 201, 500):
        for visible, always in ((None, None), ("sinks(150)", "sinks(4)"), ("window(5)", None), (None, "sinks(3)")):
            masks = mask_of(visible, scores.shape), mask_of(always, scores.shape)
            want, counts = chosen_of(scores, count, *masks)
            got = keyhole.top_k(scores, count, visible=visible, always=always, return_counts=True)
            np.testing.assert_array_equal(got[0], want, err_msg=f"{name}, k {count}, {visible}, {always}")
            np.testing.assert_array_equal(got[1], counts)


def test_rows_shorter_than_k_take_all_that_is_visible():
    q, k, w, _ = indexer(q_len=30, entries=30)
    w[:] = np.nan  # not even read where everything is taken
    chosen, counts = keyhole.select_keys(q, k, w, top_k=30, visible="causal", return_counts=True)
    for t in range(30):
        assert chosen[0, 0, t].tolist() == [*range(t + 1), *[-1] * (29 - t)]
    assert counts[0, 0].tolist() == list(range(1, 31))


def test_always_may_fill_the_list():
    scores = np.arange(20.0)[None, None, None].repeat(20, 2)
    chosen, counts = keyhole.top_k(scores, 3, visible="causal", always="window(9)", return_counts=True)
    assert counts[0, 0].tolist() == [1, 2, *[3] * 18]
    assert chosen[0, 0, 19].tolist() == [10, 11, 12]  # the first three of ten


def test_20_runs_are_equal_and_batches_do_not_see_each_other():
    q, k, w, _ = indexer(batch=3, q_len=50, entries=700, dtype=np.float32)
    first = keyhole.select_keys(q, k, w, top_k=33, visible="causal")
    for _ in range(20):
        np.testing.assert_array_equal(keyhole.select_keys(q, k, w, top_k=33, visible="causal"), first)
    order = [2, 0, 1]
    np.testing.assert_array_equal(
        keyhole.select_keys(q[order], k[order], w[order], top_k=33, visible="causal"), first[order]
    )
    for b in range(3):
        alone = keyhole.select_keys(q[b : b + 1], k[b : b + 1], w[b : b + 1], top_k=33, visible="causal")
        np.testing.assert_array_equal(alone[0], first[b])


def test_arrays_of_any_memory_order():
    q, k, w, k_scale = indexer(batch=2, groups=2, has_k_scale=True, q_len=30, entries=50)
    want = keyhole.index_scores(q, k, w, k_scale=k_scale)
    turned = [np.asfortranarray(x) for x in (q, k, w, k_scale)]
    np.testing.assert_array_equal(keyhole.index_scores(*turned[:3], k_scale=turned[3]), want)
    by_length = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (q, k)]
    np.testing.assert_array_equal(keyhole.index_scores(*by_length, w, k_scale=k_scale), want)
    np.testing.assert_array_equal(keyhole.top_k(want[..., ::-1], 5), keyhole.top_k(want[..., ::-1].copy(), 5))
    swapped = want.swapaxes(0, 1)
    np.testing.assert_array_equal(keyhole.top_k(swapped, 5), keyhole.top_k(swapped.copy(), 5))


def test_patterns_may_differ_between_entries_and_groups():
    scores = draw(2, 2, 10, 12)
    visible = keyhole.per_batch(keyhole.per_head("causal", "dense"), keyhole.per_head("sinks(3)", "window(2)"))
    want, _ = chosen_of(scores, 4, mask_of(visible, scores.shape))
    np.testing.assert_array_equal(keyhole.top_k(scores, 4, visible=visible), want)
    plan = keyhole.plan(visible, 10, 12, batch=2, heads=2)
    np.testing.assert_array_equal(keyhole.top_k(scores, 4, visible=plan), want)
    with pytest.raises(ValueError, match=r"2 patterns for 1 query heads \(in a selection: groups\)"):
        keyhole.top_k(scores[:, :1], 4, visible="per_head(causal, dense)")


def test_plans_come_from_the_cache():
    scores = draw(1, 1, 33, 44)
    keyhole.top_k(scores, 4, visible="causal & window(13)")
    before = keyhole.plan_cache.info().misses
    keyhole.top_k(scores, 4, visible="causal & window(13)")
    after = keyhole.plan_cache.info().misses
    assert after == before


def attended(case, dtype=np.float64, sink=None, scale=None, softcap=0.0, lists=None, k_len=None):
    """q, k and lse of an attention over the keys of an indexer."""
    sizes = {"batch": 1, "groups": 1, "q_len": 40, "entries": 40, **CASES[case]}
    batch, kv_heads = sizes["batch"], max(2, sizes["groups"])
    q = draw(batch, 4, sizes["q_len"], 8, dtype=dtype, seed=4)
    k = draw(batch, kv_heads, sizes["entries"] if k_len is None else k_len, 8, dtype=dtype, seed=5)
    _, lse = keyhole.attention(q, k, k, lists, sink=sink, scale=scale, softcap=softcap, return_lse=True)
    return q, k, lse


LOSSES = [case for case in CASES if case != "long"]


@pytest.mark.parametrize("is_chosen", [True, False], ids=["chosen", "dense"])
@pytest.mark.parametrize("case", LOSSES)
def test_loss(case, is_chosen):
    q, k, w, k_scale = indexer(**CASES[case])
    scores = scores_of(q, k, w, k_scale)
    lists = keyhole.select_keys(q, k, w, k_scale=k_scale, top_k=6, visible="causal") if is_chosen else "causal"
    mask = listed_of(lists, k.shape[2]) if is_chosen else mask_of("causal", scores.shape)
    target = attended(case, lists=lists)
    got = keyhole.index_loss(q, k, w, *target, lists, k_scale=k_scale)
    np.testing.assert_allclose(got, loss_of(scores, *target, mask), rtol=1e-9, atol=1e-9)


def test_loss_with_the_options_of_attention():
    """The lse is that of the whole softmax, with its sinks and keys that the list does not have."""
    q, k, w, _ = indexer()
    sink = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
    target = attended("one group", sink=sink, scale=0.7, softcap=2.0, lists="causal")
    lists = keyhole.select_keys(q, k, w, top_k=6, visible="causal")
    got = keyhole.index_loss(q, k, w, *target, lists, scale=0.7, softcap=2.0)
    want = loss_of(scores_of(q, k, w), *target, listed_of(lists, 40), scale=0.7, softcap=2.0)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", ["pattern", "entries", "entries up to the query, counts", "single keys"])
@pytest.mark.parametrize(("keys_per_entry", "k_len"), [(4, 40), (4, 41), (3, 100), (64, 40)])
def test_loss_of_entries_that_stand_for_several_keys(keys_per_entry, k_len, form):
    entries = -(-k_len // keys_per_entry)
    q, k, w, _ = indexer(entries=entries)
    chosen, counts = keyhole.select_keys(q, k, w, top_k=3, return_counts=True)
    single = np.arange(0, k_len, 3, dtype=np.int32)[None, None, None].repeat(40, 2)
    lists = {
        "pattern": "causal & dilated(2)",
        "entries": keyhole.KeyLists(chosen, keys_per_entry=keys_per_entry),
        "entries up to the query, counts": keyhole.KeyLists(
            chosen, counts=np.maximum(counts - 1, 0), keys_per_entry=keys_per_entry, causal=True
        ),
        "single keys": single,
    }[form]
    mask = mask_of(lists, (1, 1, 40, k_len)) if form == "pattern" else listed_of(single, k_len)
    if form.startswith("entries"):
        used = chosen if form == "entries" else np.where(np.arange(3) < counts[..., None] - 1, chosen, -1)
        mask = listed_of(used, entries).repeat(keys_per_entry, -1)[..., :k_len]
        if form != "entries":
            mask &= np.arange(k_len) <= np.arange(40)[:, None] + k_len - 40
    target = attended("one group", k_len=k_len, lists=lists)
    options = {} if form.startswith("entries") else {"keys_per_entry": keys_per_entry}
    want = loss_of(scores_of(q, k, w), *target, mask, keys_per_entry=keys_per_entry)
    np.testing.assert_allclose(keyhole.index_loss(q, k, w, *target, lists, **options), want, rtol=1e-9, atol=1e-9)
    dq, dk, dw = keyhole.index_loss_backward(np.ones((1, 1, 40)), q, k, w, *target, lists, **options)
    for learned, gradient in ((q, dq), (k, dk), (w, dw)):
        direction, step = draw(*learned.shape, seed=7), 1e-6
        ahead, behind = (
            keyhole.index_loss(
                *(x + sign * step * direction if x is learned else x for x in (q, k, w)), *target, lists, **options
            )
            for sign in (1, -1)
        )
        slope = (ahead - behind).sum() / (2 * step)
        np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("rows", [[0, 3, 39], list(range(40)), [], np.array([7])])
def test_loss_of_some_rows(rows):
    q, k, w, _ = indexer()
    target = attended("one group", lists="causal")
    whole = keyhole.index_loss(q, k, w, *target, "causal")
    got = keyhole.index_loss(q, k, w, *target, "causal", rows=rows)
    chosen = np.isin(np.arange(40), np.asarray(rows))
    np.testing.assert_array_equal(got, np.where(chosen, whole, 0))


def test_a_query_without_keys_has_no_loss():
    q, k, w, _ = indexer()
    lists = np.full((1, 1, 40, 3), -1, np.int32)
    lists[0, 0, 5] = [-1, 2, 4]
    target = attended("one group", lists=lists)
    loss = keyhole.index_loss(q, k, w, *target, lists)
    assert np.flatnonzero(loss[0, 0]).tolist() == [5]
    dq, dk, dw = keyhole.index_loss_backward(np.ones((1, 1, 40)), q, k, w, *target, lists)
    others = [t for t in range(40) if t != 5]
    assert (dq[:, :, others] == 0).all()
    assert (dw[:, :, others] == 0).all()
    assert (np.flatnonzero(np.abs(dk[0, 0]).sum(-1)) == [2, 4]).all()


@pytest.mark.parametrize("is_chosen", [True, False], ids=["chosen", "dense"])
@pytest.mark.parametrize("case", ["one group", "two groups", "no w", "k_scale", "more keys than queries"])
def test_gradients_by_differences(case, is_chosen):
    q, k, w, k_scale = indexer(**CASES[case])
    lists = keyhole.select_keys(q, k, w, k_scale=k_scale, top_k=6, visible="causal") if is_chosen else "causal"
    target = attended(case, lists=lists)

    def loss(*learned):
        learned = learned if w is not None else (*learned, None)
        return keyhole.index_loss(*learned, *target, lists, k_scale=k_scale)

    learned = [q, k] if w is None else [q, k, w]
    dloss = draw(*loss(*learned).shape, seed=9)
    gradients = keyhole.index_loss_backward(dloss, q, k, w, *target, lists, k_scale=k_scale)
    assert len(gradients) == len(learned)
    for i, gradient in enumerate(gradients):
        direction = draw(*learned[i].shape, seed=i)
        step = 1e-6
        ahead, behind = (
            [x + sign * step * direction if j == i else x for j, x in enumerate(learned)] for sign in (1, -1)
        )
        slope = ((loss(*ahead) - loss(*behind)) * dloss).sum() / (2 * step)
        np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-5, atol=1e-7)


@needs_ml_dtypes
def test_e4m3():
    q, k, w, _ = indexer(batch=2, groups=2, dim=64, dtype=np.float32)
    (q8, q_scale), (k8, k_scale) = keyhole.quantize_e4m3(q), keyhole.quantize_e4m3(k)
    assert q8.dtype == ml_dtypes.float8_e4m3fn
    got = keyhole.index_scores(q8, k8, w * q_scale, k_scale=k_scale, visible="causal")
    want = scores_of(q8, k8, w * q_scale, k_scale, mask_of("causal", got.shape))  # of the rounded numbers
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=1e-5 * np.abs(want[finite]).max())
    chosen = keyhole.select_keys(q8, k8, w * q_scale, k_scale=k_scale, top_k=5)
    np.testing.assert_array_equal(chosen, chosen_of(keyhole.index_scores(q8, k8, w * q_scale, k_scale=k_scale), 5)[0])


@needs_ml_dtypes
def test_all_e4m3_numbers():
    every = np.arange(256, dtype=np.uint8)
    every = every[~np.isin(every, (0x7F, 0xFF))].view(ml_dtypes.float8_e4m3fn)  # without NaN
    k = np.zeros((1, 1, len(every), 16), ml_dtypes.float8_e4m3fn)
    k[0, 0, :, 3] = every
    for sign in (1, -1):
        q = np.zeros((1, 1, 1, 16), ml_dtypes.float8_e4m3fn)
        q[..., 3] = sign
        want = np.maximum(sign * every.astype(np.float32), 0)
        np.testing.assert_array_equal(keyhole.index_scores(q, k)[0, 0, 0], want)


@needs_ml_dtypes
def test_quantizing():
    x = draw(3, 5, 64, dtype=np.float32)
    x[0, 0], x[1, 1] = 0, 1e6
    values, scale = keyhole.quantize_e4m3(x)
    want = np.maximum(np.abs(x).max(-1), np.float32(1e-4)) / np.float32(448)
    np.testing.assert_array_equal(scale, want)
    back = values.astype(np.float32) * scale[..., None]
    assert (np.abs(back - x) <= np.abs(x) * 2**-4 + scale[..., None] * 2**-10).all()
    values, scale = keyhole.quantize_e4m3(x, power_of_two=True)
    assert (np.log2(scale) % 1 == 0).all()
    assert (scale >= want).all()
    assert (scale < 2 * want).all()
    np.testing.assert_array_equal(keyhole.quantize_e4m3(np.full((1, 4), 448.0), power_of_two=True)[1], [1.0])


def test_quantizing_without_ml_dtypes(monkeypatch):
    real = builtins.__import__

    def missing(name, *rest, **options):
        if name == "ml_dtypes":
            raise ModuleNotFoundError("No module named 'ml_dtypes'", name=name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ModuleNotFoundError, match="pip install ml_dtypes, or pass a torch tensor"):
        keyhole.quantize_e4m3(draw(3, 4))


@pytest.mark.parametrize("dim", [1, 2, 4, 64, 128])
def test_hadamard(dim):
    x, y = draw(3, dim), draw(3, dim, seed=1)
    turned = keyhole.hadamard(x)
    np.testing.assert_allclose(keyhole.hadamard(turned), x, atol=1e-12)
    np.testing.assert_allclose((turned * keyhole.hadamard(y)).sum(-1), (x * y).sum(-1), atol=1e-12)
    one = keyhole.hadamard(np.eye(dim))
    np.testing.assert_allclose(np.abs(one), dim**-0.5)
    matrix = np.ones((1, 1))
    while len(matrix) < dim:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    np.testing.assert_allclose(one, matrix * dim**-0.5)
    assert keyhole.hadamard(x.astype(np.float16)).dtype == np.float16


@pytest.mark.parametrize("sizes", [(0, 1, 3, 5), (1, 0, 3, 5), (1, 1, 0, 5), (1, 1, 3, 0)])
def test_of_nothing(sizes):
    batch, groups, q_len, entries = sizes
    q = np.ones((batch, 2 * groups, q_len, 4), np.float32)
    k = np.ones((batch, groups, entries, 4), np.float32)
    assert keyhole.index_scores(q, k).shape == sizes
    chosen, counts = keyhole.select_keys(q, k, top_k=2, return_counts=True)
    assert chosen.shape == (batch, groups, q_len, 2)
    assert counts.shape == (batch, groups, q_len)
    assert (chosen == -1).all()
    assert (counts == 0).all()


Q, K, W = indexer()[:3]
SCORES = draw(1, 1, 40, 40)
TARGET = attended("one group", lists="causal")


def scores(q=Q, k=K, w=W, **options):
    return keyhole.index_scores(q, k, w, **options)


def select(q=Q, k=K, w=W, top_k=4, **options):
    return keyhole.select_keys(q, k, w, top_k=top_k, **options)


def best(scores=SCORES, k=4, **options):
    return keyhole.top_k(scores, k, **options)


def loss(index_q=Q, index_k=K, w=W, q=TARGET[0], k=TARGET[1], lse=TARGET[2], keys="causal", **options):
    return keyhole.index_loss(index_q, index_k, w, q, k, lse, keys, **options)


REFUSED = [
    (best, {"k": 0}, ValueError, "top_k: k is 0; expected 1 or more"),
    (best, {"k": -1}, ValueError, "top_k: k is -1"),
    (best, {"k": 2.0}, TypeError, "top_k: k: expected an int, found float"),
    (best, {"k": True}, TypeError, "top_k: k: expected an int, found bool"),
    (select, {"top_k": 0}, ValueError, "select_keys: top_k is 0; expected 1 or more"),
    (best, {"scores": SCORES.astype(np.int64)}, TypeError, "top_k: scores has dtype int64; accepted are float16"),
    (best, {"scores": SCORES[0]}, ValueError, "top_k: scores has shape .*; expected 4 dimensions"),
    (best, {"scores": SCORES.tolist()}, TypeError, "top_k: scores has type list; pass NumPy arrays only"),
    (best, {"visible": "causl"}, ValueError, 'did you mean "causal"'),
    (best, {"always": "windw(3)"}, ValueError, 'did you mean "window"'),
    (best, {"visible": keyhole.causal}, TypeError, r"top_k: visible: expected a pattern.*Call it: keyhole.causal\(\)"),
    (best, {"visible": np.ones((40, 40), bool)}, TypeError, r"top_k: visible: .*keyhole.from_dense\(mask\)"),
    (best, {"always": 3}, TypeError, "top_k: always: expected a pattern or its text, found int"),
    (best, {"visible": keyhole.plan("causal", 41)}, ValueError, "41"),
    (best, {"backend": "abacus"}, (ValueError, NotImplementedError), "abacus"),
    (scores, {"q": Q.astype(np.int32)}, TypeError, "index_scores: q has dtype int32"),
    (scores, {"k": K.astype(np.float32)}, ValueError, "q|dtype"),
    (scores, {"k": K[..., :8]}, ValueError, "head_dim"),
    (scores, {"w": W[:, :3]}, ValueError, "w"),
    (scores, {"w": W[..., None]}, ValueError, r"w has shape .*; expected 3 dimensions, \[batch, index_heads, q_len\]"),
    (scores, {"w": W.astype(np.int64)}, TypeError, "w has dtype int64; expected float64"),
    (scores, {"w": 1.0}, TypeError, "w has type float; expected a NumPy array, as q is"),
    (scores, {"k_scale": W}, ValueError, "k_scale"),
    (scores, {"q": np.repeat(Q, 2, 1)[:, :3], "k": np.repeat(K, 2, 1), "w": None}, ValueError, "groups|multiple"),
    (select, {"w": W[..., :7]}, ValueError, "w"),
    (loss, {"keys": None}, TypeError, "index_loss: keys is None; accepted are a pattern, its text, a plan, key"),
    (loss, {"keys": keyhole.causal}, TypeError, r"Call it: keyhole.causal\(\)"),
    (loss, {"lse": TARGET[2].astype(np.float32)}, ValueError, "index_loss: lse has dtype float32; expected float64"),
    (loss, {"k": TARGET[1].astype(np.float32)}, ValueError, "index_loss: k has dtype float32; expected float64"),
    (loss, {"index_k": K.astype(np.float32)}, ValueError, "index_k has dtype float32; expected .*as index_q is"),
    (loss, {"keys": "causl"}, ValueError, 'did you mean "causal"'),
    (
        loss,
        {"keys": np.zeros((1, 1, 40, 3))},
        TypeError,
        "index_loss: keys has dtype float64; accepted are int32, int64",
    ),
    (loss, {"keys": np.zeros((40, 3), np.int32)}, ValueError, "index_loss: keys has shape .*lists, entries"),
    (loss, {"keys": np.full((1, 1, 40, 3), 40, np.int32)}, ValueError, "40"),
    (loss, {"keys_per_entry": 0}, ValueError, "index_loss: keys_per_entry is 0; accepted are 1 and more"),
    (loss, {"keys_per_entry": 2.0}, TypeError, "index_loss: keys_per_entry: expected an int, found float"),
    (loss, {"keys_per_entry": 3}, ValueError, "k must have one entry for 3 keys: 14"),
    (
        loss,
        {"keys": keyhole.KeyLists(np.zeros((1, 1, 40, 3), np.int32), keys_per_entry=2)},
        ValueError,
        "k must have one entry for 2 keys: 20",
    ),
    (loss, {"keys": keyhole.TileLists(np.zeros((1, 1, 1, 1), np.int32), tile=(64, 64))}, TypeError, "keyhole.KeyLists"),
    (loss, {"rows": [[1]]}, ValueError, "index_loss: rows is int64 .*ascending"),
    (loss, {"rows": [0.5]}, ValueError, "index_loss: rows is float64"),
    (loss, {"rows": [40]}, ValueError, "40"),
    (loss, {"rows": [3, 2]}, ValueError, r"rows\[1\] is 2; rows ascend"),
    (loss, {"lse": TARGET[2][:, :2]}, ValueError, "lse"),
    (loss, {"k": TARGET[1][:, :, :39]}, ValueError, "39"),
    (loss, {"index_k": K[:, :, :39], "keys": "dense"}, ValueError, "39"),
]


@pytest.mark.parametrize(("call", "options", "error", "match"), REFUSED)
def test_what_is_refused(call, options, error, match):
    with pytest.raises(error, match=match):
        call(**options)


def test_lists_of_torch_beside_arrays():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"index_loss: keys is a torch tensor .*index_q a NumPy array.*keys.numpy\("):
        loss(keys=torch.zeros(1, 1, 40, 3, dtype=torch.int32))


@pytest.mark.parametrize(
    ("x", "error", "match"),
    [
        (draw(3, 12), ValueError, "hadamard: the last dimension of x is 12; expected a power of two"),
        (np.ones((2, 4), np.int64), TypeError, "hadamard: x is int64"),
        ([1.0, 2.0], TypeError, "hadamard: x is a list"),
        (np.float64(1), TypeError, "hadamard: x is a float64"),
    ],
)
def test_what_hadamard_refuses(x, error, match):
    with pytest.raises(error, match=match):
        keyhole.hadamard(x)


def test_the_library_says_which_kernels_it_would_run():
    text = _core.kernel_for_selection(_tensor(Q), _tensor(K), _tensor(W), None, 4, None, None, "auto")
    assert text.startswith("cpu.")


def test_plans_of_the_extension_are_plans():
    with pytest.raises(TypeError, match="visible: expected a _core.Plan or None, found str"):
        _core.index_scores(_tensor(Q), _tensor(K), None, None, "causal", _tensor(SCORES), "auto", 0, 0)
