# tests/python/test_plan.py
"""Plans: what they tell, how they travel, and the cache that makes each only once."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import threading
import weakref

import keyhole
import numpy as np
import numpy_reference
import pytest
from keyhole.cache import Cache
from keyhole.plan import plan_for
from notebook_html import svg_inside
from properties import HealthCheck, given, settings, st


@pytest.fixture(autouse=True)
def fresh_cache():
    keyhole.plan_cache.clear()
    keyhole.plan_cache.resize(64)


def array_pattern(seed=0):
    return keyhole.mask(np.random.default_rng(seed).random((40, 40)) < 0.3)


PLANS = {
    "causal": lambda: keyhole.plan("causal", 100),
    "decode": lambda: keyhole.plan("causal", 1, 100),
    "heads": lambda: keyhole.plan("per_head(causal, window(3))", 33, batch=2, heads=2),
    "offset": lambda: keyhole.plan("causal", 10, 20, offset=4),
    "array": lambda: keyhole.plan(array_pattern() & "causal", 40, heads=3),
    "empty": lambda: keyhole.plan("causal", 0, 0),
}


def test_lengths_and_defaults():
    plan = keyhole.plan("causal", 5, 9)
    assert (plan.q_len, plan.k_len, plan.batch, plan.heads, plan.offset) == (5, 9, 1, 1, 4)
    assert plan == keyhole.plan(keyhole.causal(), 5, 9, offset=4)
    assert keyhole.plan("causal", 5) == keyhole.plan("causal", 5, 5)
    assert plan != keyhole.plan("causal", 5, 9, offset=3)
    assert plan != keyhole.plan("causal", 5, 9, heads=2)
    assert plan != keyhole.plan("dense", 5, 9)
    assert plan != "causal"


@pytest.mark.parametrize("name", PLANS)
def test_plans_travel(name, tmp_path):
    plan = PLANS[name]()
    assert pickle.loads(pickle.dumps(plan)) is plan  # alive: nothing is compiled again
    assert copy.copy(plan) is copy.deepcopy(plan) is plan
    encoded, pairs = plan.encode(), plan.explain().pairs
    plan.save(tmp_path / "a.plan")
    text = repr(plan)
    del plan
    keyhole.plan_cache.clear()
    gc.collect()
    there = keyhole.Plan.decode(encoded)
    assert there == PLANS[name]()
    assert hash(there) == hash(PLANS[name]())
    assert there.encode() == encoded
    assert there.explain().pairs == pairs
    assert repr(there) == text
    if name not in ("array", "empty"):
        assert eval(text, {"keyhole": keyhole}) == there
    if name != "empty":
        loaded = keyhole.Plan.load(str(tmp_path / "a.plan"))
        assert loaded.explain().pairs == pairs
        assert (loaded == there) == (name != "array")


def test_plan_travels_to_another_process():
    plan = keyhole.plan(array_pattern() & "causal", 40, heads=3)
    code = (
        "import sys, keyhole\n"
        "plan = keyhole.Plan.decode(sys.stdin.buffer.read())\n"
        "print(plan.explain().pairs, plan.digest.hex())\n"
    )
    said = subprocess.run([sys.executable, "-c", code], input=plan.encode(), capture_output=True, check=True).stdout
    assert said.split() == [str(plan.explain().pairs).encode(), plan.digest.hex().encode()]


@pytest.mark.parametrize("is_looked_at", [False, True], ids=["as made", "looked at"])
def test_a_loaded_plan_without_its_pattern_still_works_and_travels(tmp_path, is_looked_at):
    plan = keyhole.plan(array_pattern(), 40)
    if is_looked_at:
        plan.explain()  # makes lists for a tile that no kernel of the CPU takes
    plan.save(tmp_path / "a.plan")
    loaded = keyhole.Plan.load(tmp_path / "a.plan")
    assert loaded.explain().tile == ((128, 128) if is_looked_at else (64, 64))
    assert f"pairs     {plan.explain().pairs} of 1600" in str(loaded)
    assert loaded.pattern is None
    assert "40 x 40" in repr(loaded)
    assert loaded._repr_svg_() is None
    with pytest.raises(ValueError, match="does not hold the arrays"):
        loaded.show()
    encoded = loaded.encode()
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1, 40, 8))
    want = keyhole.attention(q, k, v, plan)
    np.testing.assert_allclose(keyhole.attention(q, k, v, loaded), want)
    del loaded
    gc.collect()
    there = keyhole.Plan.decode(encoded)
    np.testing.assert_allclose(keyhole.attention(q, k, v, there), want)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_one_changed_byte_is_found(place, flip):
    encoded = bytearray(keyhole.plan(array_pattern(1), 40).encode())
    encoded[place % len(encoded)] ^= flip
    keyhole.plan_cache.clear()  # a living plan is known by its digest alone
    with pytest.raises(ValueError, match="plan"):
        keyhole.Plan.decode(bytes(encoded))


@pytest.mark.parametrize("length", [0, 7, 8, 39, 40, 41, 100])
def test_cut_plans_are_refused(length):
    encoded = keyhole.plan(array_pattern(2), 40).encode()
    keyhole.plan_cache.clear()
    gc.collect()
    with pytest.raises(ValueError, match="plan"):
        keyhole.Plan.decode(encoded[:length])


def test_valid_digests_of_nonsense_are_refused():
    import hashlib

    from keyhole.recipe import encode_value

    mark = keyhole.plan("causal", 4).encode()[:8]
    for recipe in [
        None,
        (),
        ("plan",),
        ("plan", ("text", "causal"), 1, 1, 1, 1, "x"),
        ("plan", ("text", "nonsense"), 1, 1, 1, 1, 0),
        ("plan", ("text", "causal"), -1, 1, 1, 1, 0),
        ("plan", ("text", "causal"), 1, 1, 1 << 60, 1 << 60, 0),
        ("plan file", b"nonsense"),
        ("plan file", 3),
    ]:
        body = encode_value(recipe)
        with pytest.raises(ValueError, match=".+"):
            keyhole.Plan.decode(mark + hashlib.blake2b(body, digest_size=32).digest() + body)


def test_decode_takes_any_bytes():
    plan = keyhole.plan("causal", 4)
    encoded = plan.encode()
    for data in (bytearray(encoded), memoryview(encoded), memoryview(np.frombuffer(encoded, np.uint8))):
        assert keyhole.Plan.decode(data) is plan
    with pytest.raises(TypeError):
        keyhole.Plan.decode("text")


def test_report():
    report = keyhole.plan("causal & window(255)", 1024, heads=2).explain(tile=(128, 128), head_dim=64, element_bytes=2)
    assert report.all_pairs == 2 * 1024 * 1024
    assert report.pairs == 2 * keyhole.parse("causal & window(255)").count_pairs(1024)
    assert report.tile == (128, 128)
    assert report.flops_forward == 4 * 64 * report.pairs
    assert sum(part.visited_pairs for part in report.parts) == report.visited_pairs
    assert report.parts[0].form == "tiles"
    assert str(report).startswith("pairs     459008 of 2097152 (21.9%)\n")
    assert '"pattern"' in report.json
    with pytest.raises(ValueError, match="tile"):
        keyhole.plan("causal", 4).explain(tile=(0, 0))


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: keyhole.plan("causal", -1), ValueError, "q_len"),
        (lambda: keyhole.plan("causal", 2.0), TypeError, "q_len: expected an int"),
        (lambda: keyhole.plan("causal", 2, batch=0.5), TypeError, "batch: expected an int"),
        (lambda: keyhole.plan(3, 4), TypeError, "pattern: expected a pattern or its text, found int"),
        (lambda: keyhole.plan("per_head(causal, dense)", 4, heads=3), ValueError, "per_head"),
        (lambda: keyhole.Plan.load("/nonexistent.plan"), ValueError, "nonexistent"),
    ],
)
def test_wrong_arguments(make, error, match):
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("parameter", ["q_len", "k_len", "batch", "heads", "offset"])
@pytest.mark.parametrize("convert", [float, str, bool, np.float64, lambda value: [value]])
def test_only_ints_are_lengths_whether_the_plan_is_cached_or_not(is_cached, parameter, convert):
    shape = {"q_len": 1, "k_len": 1, "batch": 1, "heads": 1, "offset": 1}
    if is_cached:
        keyhole.plan("causal", **shape)
    wrong = convert(shape[parameter])
    with pytest.raises(TypeError, match=f"^plan: {parameter}: expected an int, found {type(wrong).__name__}$"):
        keyhole.plan("causal", **shape | {parameter: wrong})


def test_lengths_may_be_of_numpy():
    plan = keyhole.plan("causal", np.int64(5), np.uint8(9), batch=np.int32(2), heads=np.int16(3), offset=np.int64(4))
    assert plan is keyhole.plan("causal", 5, 9, batch=2, heads=3, offset=4)


def test_pictures():
    plan = keyhole.plan("causal & ~window(2)", 40, heads=2)
    assert plan._repr_svg_().startswith("<svg ")
    html = plan._repr_html_()
    assert svg_inside(html) == plan._repr_svg_()
    assert 'alt="causal &amp; ~window(2)"' in html
    assert f"<pre>{plan}</pre>" in html


def test_show(tmp_path, capsys):
    plan = keyhole.plan("per_head(causal, dense)", 2, heads=2)
    plan.show(head=1)
    assert capsys.readouterr().out.endswith("# #\n# #\n")
    plan.show(tmp_path / "plan.html")
    assert "visited" in (tmp_path / "plan.html").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="head 2"):
        plan.show(head=2)


def test_verify_is_silent_about_a_good_plan():
    plan = keyhole.plan("bigbird(4, 3, 1, 1, 7)", 100)
    plan.explain()
    plan.verify()


def test_the_cache_makes_each_plan_once():
    first = keyhole.plan("causal", 64)
    assert keyhole.plan(keyhole.causal(), 64, 64, offset=0) is first
    assert keyhole.plan_cache.info() == (1, 1, 1, 64)
    q, k, v = np.zeros((3, 2, 3, 64, 8), np.float32)
    keyhole.attention(q, k, v, "causal")
    keyhole.attention(q, k, v, keyhole.causal())
    assert keyhole.plan_cache.info()[:3] == (3, 1, 1)


@pytest.mark.parametrize(
    "pattern",
    [
        "causal & (window(5) | sinks(2))",
        keyhole.packed([10, 6], [8, 8], "random(2, 1, 3)"),
        keyhole.at(np.arange(16)[::-1], np.arange(16), "causal"),
        keyhole.mask(np.tri(16, dtype=bool)),
    ],
    ids=["text", "packed", "at", "mask"],
)
def test_one_plan_serves_every_batch_size_and_number_of_heads(pattern):
    rng = np.random.default_rng(1)
    pairs = (keyhole.parse(pattern) if isinstance(pattern, str) else pattern).mask(16)
    for batch, heads in ((1, 1), (2, 3), (4, 2), (1, 6), (0, 2)):
        q, k, v = rng.standard_normal((3, batch, heads, 16, 8), np.float32)
        out = keyhole.attention(q, k, v, pattern)
        np.testing.assert_allclose(out, numpy_reference.forward(q, k, v, pairs).out, atol=1e-5)
    assert keyhole.plan_cache.info()[:3] == (4, 1, 1)
    assert plan_for(pattern, 16, 16, 7, 8) is plan_for(pattern, 16, 16, 1, 2)


def test_patterns_of_heads_and_batch_entries_have_a_plan_for_each_shape():
    positions = np.arange(16)
    for pattern, batch, heads in (
        ("per_head(causal, window(3))", 1, 2),
        ("per_batch(causal, window(3)) & window(9)", 2, 1),
        (keyhole.at(np.stack([positions, positions[::-1]]), positions, "causal"), 2, 3),
    ):
        made = plan_for(pattern, 16, 16, batch, heads)
        assert (made.batch, made.heads) == (batch, heads)
        with pytest.raises(ValueError, match="per_head: got 2|per_batch: got 2|at: q has 32"):
            plan_for(pattern, 16, 16, batch + 1, heads + 1)


def test_a_plan_by_hand_keeps_its_shape():
    assert keyhole.plan("causal", 8, batch=2, heads=3).explain().pairs == 6 * 36


@pytest.mark.parametrize("length", [2**31, 2**38, 2**40])
def test_lengths_that_no_list_can_number_are_refused_when_the_plan_is_made(length):
    with pytest.raises(ValueError, match=f"k_len is {length}; accepted are 0 to 2147483647; plan longer .* in pieces"):
        keyhole.plan("causal", 1, length)
    with pytest.raises(ValueError, match=f"q_len is {length} and k_len is {length}; accepted are"):
        keyhole.plan("causal", length)


def test_a_plan_that_is_made_can_be_explained():
    with pytest.raises(ValueError, match=r"1024 heads x 134217728 queries x 134217728 keys are more pairs than"):
        keyhole.plan("dense", 2**27, heads=2**10)
    assert keyhole.plan("dense", 2**24, heads=2**14).explain().pairs == 2**62


def test_the_cache_is_bounded_and_an_evicted_plan_lives_on():
    keyhole.plan_cache.resize(2)
    plans = [keyhole.plan("causal", length) for length in (1, 2, 3)]
    assert keyhole.plan_cache.info().size == 2
    assert plans[0].explain().pairs == 1
    assert keyhole.plan("causal", 1) is not plans[0]
    keyhole.plan_cache.resize(0)
    alone = weakref.ref(keyhole.plan("causal", 7))
    gc.collect()
    assert alone() is None
    for wrong, error in ((-1, ValueError), (2.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="resize"):
            keyhole.plan_cache.resize(wrong)


def test_threads_share_the_cache():
    keyhole.plan_cache.resize(4)
    errors = []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for _ in range(60):
                length = int(rng.integers(1, 9))
                q, k, v = rng.standard_normal((3, 1, 1, length, 4))
                out = keyhole.attention(q, k, v, "causal & window(3)")
                np.testing.assert_allclose(out[0, 0, 0], v[0, 0, 0])
                assert keyhole.plan("causal", length).q_len == length
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert keyhole.plan_cache.info().size <= 4


def test_the_first_of_two_threads_wins():
    cache = Cache(capacity=1)
    assert cache.put("a", 1) == 1
    assert cache.put("a", 2) == 1
