# tests/python/test_pattern.py
"""Patterns: every one of the catalog, their operators, and what makes two of them equal."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import pickle
import re

import keyhole
import numpy as np
import pytest
from keyhole import _core
from keyhole.pattern import from_recipe
from keyhole.recipe import decode_value, encode_value
from notebook_html import svg_inside
from properties import given, settings, st

CATALOG = {row["name"]: row for row in _core.catalog()}
TAKE_THE_REST = ("integers", "patterns")  # parameters that stand for any number of arguments


def function_of(name):
    return getattr(keyhole, f"{name}_" if name == "global" else name, None)


@pytest.mark.parametrize("name", CATALOG)
def test_every_pattern_of_the_catalog_is_a_function(name):
    function = function_of(name)
    assert callable(function), f"src/pattern/catalog.cpp has {name}, python/keyhole/leaves.py does not"
    assert function.__doc__
    assert ">>> " in function.__doc__, f"{name} has no example"
    wanted = [parameter["name"] for parameter in CATALOG[name]["parameters"]]
    kinds = inspect.signature(function).parameters
    found = [n for n, parameter in kinds.items() if parameter.kind is not inspect.Parameter.VAR_POSITIONAL]
    assert (len(found) < len(kinds)) == any(p["kind"] in TAKE_THE_REST for p in CATALOG[name]["parameters"])
    assert [re.sub("_positions$", "", n) for n in found] == wanted
    for parameter in CATALOG[name]["parameters"]:
        if parameter["is_optional"]:
            assert inspect.signature(function).parameters[parameter["name"]].default is None


# How Python writes what the catalog's example writes as text.
CALLS = {
    "dense": lambda: keyhole.dense(),
    "causal": lambda: keyhole.causal(),
    "window(3, 1)": lambda: keyhole.window(3, 1),
    "sinks(2)": lambda: keyhole.sinks(2),
    "blocks(4)": lambda: keyhole.blocks(4),
    "prefix(5)": lambda: keyhole.prefix(5),
    "global(2)": lambda: keyhole.global_(2),
    "global_at(0, 7)": lambda: keyhole.global_at([0, 7]),
    "documents(5, 3, 8)": lambda: keyhole.documents([5, 3, 8]),
    "tree(-1, 0, 0, 1, 1, 2, 2, 3)": lambda: keyhole.tree([-1, 0, 0, 1, 1, 2, 2, 3]),
    "dilated(3)": lambda: keyhole.dilated(3),
    "strided(4)": lambda: keyhole.strided(4),
    "fixed(4, 1)": lambda: keyhole.fixed(4, 1),
    "exponential": lambda: keyhole.exponential(),
    "random(2, 2, 7)": lambda: keyhole.random(2, 2, seed=7),
    "grid(4, 4, 1, 1)": lambda: keyhole.grid(4, 4, 1, 1),
    "neighborhood(4, 4, 1, 1)": lambda: keyhole.neighborhood(4, 4, 1, 1),
    "volume(2, 2, 4, 1, 0, 1)": lambda: keyhole.volume(2, 2, 4, 1, 0, 1),
    "volume_neighborhood(4, 2, 2, 1, 0, 1)": lambda: keyhole.volume_neighborhood(4, 2, 2, 1, 0, 1),
    "streaming(2, 4)": lambda: keyhole.streaming(sinks=2, window=4),
    "longformer(4, 1)": lambda: keyhole.longformer(4, 1),
    "bigbird(2, 3, 1, 1, 7)": lambda: keyhole.bigbird(2, 3, 1, 1, 7),
    "tiles(4, 4, [0, 1, 3, 4, 6], [0, 0, 1, 2, 0, 3])": lambda: keyhole.tiles(
        4, 4, [0, 1, 3, 4, 6], [0, 0, 1, 2, 0, 3]
    ),
    "bitmaps(4, 4, [0, 1, 3, 4], [0, 0, 1, 2], [0, -1, 0, 0], "
    "[[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])": lambda: keyhole.bitmaps(
        4, 4, [0, 1, 3, 4], [0, 0, 1, 2], [0, -1, 0, 0], np.tri(4, dtype=bool)
    ),
    "csr([0, 1, 3, 5, 8], [0, 0, 1, 0, 2, 0, 1, 3])": lambda: keyhole.csr([0, 1, 3, 5, 8], [0, 0, 1, 0, 2, 0, 1, 3]),
    "mask([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 1]])": lambda: keyhole.mask(
        np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 1]], bool)
    ),
    "per_head(causal, window(2))": lambda: keyhole.per_head("causal", keyhole.window(2)),
    "per_batch(causal & documents(5, 11), causal & documents(9, 7))": lambda: keyhole.per_batch(
        keyhole.causal() & keyhole.documents([5, 11]), keyhole.causal() & keyhole.documents([9, 7])
    ),
    "at(q=[4, 0, 5, 1], k=[0, 1, 2, 3, 4, 5], causal)": lambda: keyhole.at([4, 0, 5, 1], range(6), "causal"),
    "packed([5, 2, 6], [5, 7, 4], causal & (window(3) | sinks(1)))": lambda: keyhole.packed(
        [5, 2, 6], [5, 7, 4], "causal & (window(3) | sinks(1))"
    ),
}


def test_every_example_has_its_call():
    assert set(CALLS) == {row["example"] for row in CATALOG.values()}


@pytest.mark.parametrize("text", CALLS)
def test_the_call_and_the_text_are_one_pattern(text):
    called, parsed = CALLS[text](), keyhole.parse(text)
    assert called == parsed
    assert hash(called) == hash(parsed)
    assert str(called) == str(parsed)
    assert pickle.loads(pickle.dumps(called)) == called
    assert eval(repr(called), {"keyhole": keyhole}) == called
    row = next(row for row in CATALOG.values() if row["example"] == text)
    lengths = row["example_q_len"], row["example_k_len"]
    np.testing.assert_array_equal(called.mask(*lengths), parsed.mask(*lengths))


def as_python(text):
    """What print shows, as an expression of Python: names without arguments are called, `global` is a word of its own,
    and arguments with names may not come before others.
    """
    for of_text, of_python in (
        (r"\b(dense|causal|exponential)\b", r"\1()"),
        (r"\bglobal\(", "global_("),
        (r"\b[qk]=", ""),
    ):
        text = re.sub(of_text, of_python, text)
    return text


@pytest.mark.parametrize("text", sorted({*_core.sample_texts()}))
def test_what_is_printed_runs_in_python(text):
    pattern = keyhole.parse(text)
    names = {name: function_of(name.removesuffix("_")) for name in keyhole.__all__} | {"inf": math.inf}
    assert eval(as_python(str(pattern)), names) == pattern


def test_numbers_and_patterns_come_one_by_one_or_in_a_sequence():
    for name, numbers in (("documents", (5, 3, 6)), ("tree", (-1, 0, 0)), ("global_at", (0, 7)), ("documents", (4,))):
        function = function_of(name)
        for called in (
            function(*numbers),
            function(numbers),
            function(np.array(numbers)),
            function(*np.array(numbers)),
        ):
            assert called == keyhole.parse(f"{name}({', '.join(map(str, numbers))})")
    assert keyhole.documents(lengths=[5, 3]) == keyhole.documents(5, 3)
    for name in ("per_head", "per_batch"):
        function, patterns = function_of(name), [keyhole.causal(), "window(2)"]
        for called in (function(*patterns), function(patterns), function(iter(patterns)), function(patterns=patterns)):
            assert called == keyhole.parse(f"{name}(causal, window(2))")
        assert function("causal") == function(["causal"])


DEFINITIONS = {
    "causal": lambda q, k: k <= q,
    "window(3, 1)": lambda q, k: (k - q >= -3) & (k - q <= 1),
    "window(inf, 0)": lambda q, k: k <= q,
    "sinks(2)": lambda q, k: k < 2,
    "blocks(4)": lambda q, k: q // 4 == k // 4,
    "prefix(5)": lambda q, k: (k <= q) | (k < 5),
    "global(2)": lambda q, k: (q < 2) | (k < 2),
    "dilated(3)": lambda q, k: (q - k) % 3 == 0,
    "dilated(3, 2)": lambda q, k: ((q - k) % 3 == 0) & (abs(q - k) < 6),
    "fixed(4, 1)": lambda q, k: (k <= q) & ((q // 4 == k // 4) | (k % 4 >= 3)),
    "streaming(2, 4)": lambda q, k: (k <= q) & ((q - k < 4) | (k < 2)),
    "causal & ~blocks(4) | sinks(1)": lambda q, k: ((k <= q) & ~(q // 4 == k // 4)) | (k < 1),
}


@pytest.mark.parametrize("text", DEFINITIONS)
@pytest.mark.parametrize(("q_len", "k_len", "offset"), [(16, 16, None), (5, 130, None), (70, 3, None), (9, 20, 2)])
def test_mask_is_the_definition(text, q_len, k_len, offset):
    q = np.arange(q_len)[:, None] + (k_len - q_len if offset is None else offset)
    k = np.arange(k_len)[None, :]
    want = np.broadcast_to(DEFINITIONS[text](q, k), (q_len, k_len))
    got = keyhole.parse(text).mask(q_len, k_len, offset=offset)
    assert got.dtype == np.bool_
    np.testing.assert_array_equal(got, want)
    if offset is None:
        assert keyhole.parse(text).count_pairs(q_len, k_len) == want.sum()
        rows = keyhole.parse(text).picture(q_len, k_len).split("\n")
        assert [[c == "#" for c in row.split()] for row in rows] == want.tolist()


def test_masks_of_heads_and_batch_entries():
    pattern = keyhole.per_head("causal", "dense")
    assert pattern.mask(4, head=1).all()
    assert not pattern.mask(4, head=0).all()
    assert keyhole.causal().mask(4, batch=3, head=9).sum() == 10  # the same for all
    with pytest.raises(ValueError, match="per_head"):
        pattern.mask(4, head=2)


def test_operators_take_texts():
    both = keyhole.causal() & "window(3)"
    assert both == "causal" & keyhole.window(3) == keyhole.parse("causal & window(3)")
    assert keyhole.causal() | "window(3)" == keyhole.parse("causal | window(3)")
    assert "causal" | keyhole.window(3) == keyhole.parse("causal | window(3)")
    assert ~keyhole.causal() == keyhole.parse("~causal")


def test_what_is_no_pattern_is_refused():
    with pytest.raises(TypeError):
        keyhole.causal() & 3
    with pytest.raises(TypeError):
        3 | keyhole.causal()
    with pytest.raises(TypeError, match="combine patterns with &, | and ~"):
        keyhole.causal() and keyhole.window(3)
    with pytest.raises(TypeError, match="per_head: pattern 1: expected a pattern or its text, found int"):
        keyhole.per_head("causal", 3)
    with pytest.raises(TypeError, match="Pattern: expected a text"):
        keyhole.Pattern(keyhole.causal())
    assert keyhole.causal() != "causal"  # equal things must have equal hashes


INJECTED = "2, 2, [0, 1], [0]) | causal & tiles(2"


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: keyhole.window("3"), TypeError, r"window: left: expected an int or float\('inf'\), found str"),
        (lambda: keyhole.window(2.0), TypeError, "window: left: expected an int or"),
        (lambda: keyhole.sinks(math.inf), TypeError, "sinks: count: expected an int, found float"),
        (lambda: keyhole.sinks(True), TypeError, "sinks: count: expected an int, found bool"),
        (lambda: keyhole.sinks(None), TypeError, "sinks: count: expected an int, found NoneType"),
        (lambda: keyhole.sinks(-1), ValueError, "sinks"),
        (lambda: keyhole.sinks(2**70), ValueError, "does not fit into 64 bits"),
        (lambda: keyhole.blocks(0), ValueError, "blocks"),
        (lambda: keyhole.documents([1.5]), TypeError, "documents: lengths must be integers, found float64"),
        (lambda: keyhole.documents([-1]), ValueError, "documents"),
        (lambda: keyhole.documents(["a"]), TypeError, "must be integers"),
        (lambda: keyhole.tree([0]), ValueError, "tree"),
        (lambda: keyhole.csr([0, 2], [0]), ValueError, "csr"),
        (lambda: keyhole.csr(np.arange(200), [0]), ValueError, "csr"),
        (lambda: keyhole.csr(np.array([2**63], np.uint64), [0]), ValueError, "does not fit"),
        (lambda: keyhole.tiles(True, 2, [0, 1], [0]), TypeError, "tiles: tile_q: expected an int, found bool"),
        (lambda: keyhole.tiles(2, 2.0, [0, 1], [0]), TypeError, "tiles: tile_k: expected an int, found float"),
        (lambda: keyhole.tiles(2, "2", [0, 1], [0]), TypeError, "tiles: tile_k: expected an int, found str"),
        (lambda: keyhole.tiles(INJECTED, 2, [0, 1], [0]), TypeError, "tiles: tile_q: expected an int, found str"),
        (lambda: keyhole.tiles(0, 2, [0, 1], [0]), ValueError, '"tile_q" of tiles'),
        (lambda: keyhole.bitmaps(1, True, [0, 1], [0], [0], [[1]]), TypeError, "bitmaps: tile_k: expected an int"),
        (lambda: keyhole.bitmaps("1", 1, [0, 1], [0], [0], [[1]]), TypeError, "bitmaps: tile_q: expected an int"),
        (lambda: keyhole.mask([1, 0]), ValueError, r"mask: rows has shape \[2\]"),
        (lambda: keyhole.mask(np.zeros((20, 20))), TypeError, "must be bools, found float64"),
        (lambda: keyhole.mask(np.full((20, 20), 2)), ValueError, "entries other than 0 and 1"),
        (lambda: keyhole.parse("window(3"), ValueError, r"\^"),
        (lambda: keyhole.parse("mask(file=secret.npy)"), ValueError, "reading files is not allowed"),
        (lambda: keyhole.parse(3), TypeError, "found int"),
        (
            lambda: keyhole.documents([5], 3),
            TypeError,
            r"lengths 0 is a list .* documents\(1, 2\), .* documents\(\[1, 2\]\)",
        ),
        (lambda: keyhole.tree(-1, 0.0), TypeError, "parents 1: expected an int, found float"),
        (lambda: keyhole.per_head([]), ValueError, "per_head: got no patterns"),
        (lambda: keyhole.per_batch("causal", ["dense"]), TypeError, "per_batch: pattern 1"),
        (lambda: keyhole.causal().mask(-1), ValueError, "q_len"),
        (lambda: keyhole.causal().mask(3.5), TypeError, "q_len: expected an int, found float"),
        (lambda: keyhole.causal().mask(4, head=-1), ValueError, "head -1"),
        (lambda: keyhole.causal().picture(True), TypeError, "found bool"),
    ],
)
def test_wrong_arguments(make, error, match):
    with pytest.raises(error, match=match):
        make()


INSTEAD_OF_PATTERNS = {
    "a function of ours": (lambda: keyhole.causal, r"Call it: keyhole\.causal\(\)$"),
    "one with arguments": (lambda: keyhole.window, r"Call it: keyhole\.window\(\.\.\.\)$"),
    "a function": (lambda: lambda b, h, q, k: q >= k, r"keyhole\.from_mask_mod\(function, q_len, k_len\)$"),
    "an array": (lambda: np.tri(4, dtype=bool), r"keyhole\.from_dense\(mask\)$"),
    "a list": (lambda: [[True]], r"keyhole\.from_dense\(mask\)$"),
    "a tensor": (lambda: pytest.importorskip("torch").ones(4, 4).tril() > 0, r"keyhole\.from_dense\(mask\)$"),
    "a sparse tensor": (lambda: pytest.importorskip("torch").eye(4).to_sparse(), r"keyhole\.from_csr\(matrix\)"),
    "a block mask": (
        lambda: pytest.importorskip("torch.nn.attention.flex_attention").create_block_mask(
            lambda b, h, q, k: q >= k, None, None, 4, 4, device="cpu"
        ),
        r"keyhole\.from_block_mask\(block_mask\)$",
    ),
}
Q = np.zeros((1, 1, 4, 8), np.float32)
TAKE_PATTERNS = {
    "plan": lambda what: keyhole.plan(what, 4),
    "per_head": lambda what: keyhole.per_head("causal", what),
    "at": lambda what: keyhole.at([0], [0], what),
    "attention": lambda what: keyhole.attention(Q, Q, Q, what),
    "&": lambda what: keyhole.causal() & what,
    "|": lambda what: what | keyhole.causal(),
}


@pytest.mark.parametrize("take", TAKE_PATTERNS)
@pytest.mark.parametrize("name", INSTEAD_OF_PATTERNS)
def test_what_is_no_pattern_is_told_the_way_to_one(name, take):
    make, way = INSTEAD_OF_PATTERNS[name]
    what = make()
    if take in "&|" and not callable(what):
        way = "unsupported operand|found"  # arrays and tensors have operators of their own
    with pytest.raises(TypeError, match=way):
        TAKE_PATTERNS[take](what)


def test_numbers_may_be_of_numpy():
    assert keyhole.tiles(np.int64(2), np.int8(1), [0, 1], [0]) == keyhole.parse("tiles(2, 1, [0, 1], [0])")
    assert keyhole.window(np.int32(3), np.int64(1)) == keyhole.window(3, 1)
    assert keyhole.window(math.inf, 0) == keyhole.window(2**62, 0) == keyhole.parse("window(inf, 0)")
    for lengths in ((5, 3), np.array([5, 3], np.int16), range(5, 1, -2), iter([5, 3]), np.array([[5], [3]])):
        assert keyhole.documents(lengths) == keyhole.parse("documents(5, 3)")
    torch = pytest.importorskip("torch")
    assert keyhole.documents(torch.tensor([5, 3])) == keyhole.parse("documents(5, 3)")


ONE, TWO, FOUR = np.array([3, 0, 5]), np.array([[0, 1, 2], [5, 6, 7]]), np.arange(12).reshape(2, 2, 3) % 7


POSITIONS = [(TWO, ONE), (ONE, TWO), (TWO, TWO), (FOUR, ONE), (FOUR, TWO), (TWO[:, None], FOUR)]
POSITIONS += [(FOUR[:1], FOUR), (FOUR[:, :1], ONE)]  # one for all entries, or heads


@pytest.mark.parametrize(("q", "k"), POSITIONS, ids=str)
def test_positions_of_each_entry_and_head(q, k):
    pattern = keyhole.at(q, k, "causal")
    full_q, full_k = (np.broadcast_to(x[:, None] if x.ndim == 2 else x, (2, 2, 3)) for x in (q, k))
    for batch, head in np.ndindex(2, 2):
        expected = full_k[batch, head][None, :] <= full_q[batch, head][:, None]
        assert np.array_equal(pattern.mask(3, batch=batch, head=head), expected)


def test_positions_are_told_apart_by_their_shape():
    q, k, v = np.zeros((3, 1, 2, 3, 4))
    with pytest.raises(ValueError, match="per_batch: got 2 patterns for 1 batch entries"):
        keyhole.attention(q, k, v, keyhole.at(TWO, ONE, "causal"))  # not one for each head
    with pytest.raises(ValueError, match=r"those of q_positions \[2, 2\] and k_positions \[3, 1\]; they must be equal"):
        keyhole.at(FOUR, np.zeros((3, 3), int), "causal")
    with pytest.raises(ValueError, match=r"q_positions has shape \[\]; expected \[length\], \[batch, length\]"):
        keyhole.at(3, ONE, "causal")
    assert keyhole.at(ONE[None, None], ONE, "causal") == keyhole.at(ONE, ONE, "causal")


def long_patterns():
    rng = np.random.default_rng(0)
    rows = rng.random((40, 40)) < 0.3
    offsets = np.arange(0, 41 * 3, 3)
    keys = np.sort(np.argsort(rng.random((40, 40)), axis=1)[:, :3], axis=1).ravel()
    return {
        "mask": keyhole.mask(rows),
        "csr": keyhole.csr(offsets, keys),
        "tiles": keyhole.tiles(1, 2, np.arange(0, 82, 2), np.tile([0, 3], 40)),
        "at": keyhole.at(np.arange(5000), np.arange(5000), "causal"),
        "documents": keyhole.documents(np.full(5000, 1)),
        "mixed": ~(keyhole.causal() & "window(3)" & keyhole.mask(rows)) | "sinks(2)",
        "per_head": keyhole.per_head("causal", keyhole.mask(rows)),
    }


@pytest.mark.parametrize("name", long_patterns())
def test_patterns_of_long_arrays_travel_by_content(name):
    pattern, again = long_patterns()[name], long_patterns()[name]
    assert pattern.recipe[0] != "text"
    assert pattern == again
    assert hash(pattern) == hash(again)
    there = pickle.loads(pickle.dumps(pattern))
    assert there == pattern
    assert there.recipe == pattern.recipe
    length = 5000 if name in ("at", "documents") else 40
    assert there.count_pairs(length) == pattern.count_pairs(length)
    assert repr(pattern).startswith("<keyhole.Pattern ")
    assert from_recipe(decode_value(encode_value(pattern.recipe))) == pattern


def test_long_arrays_mean_what_they_hold():
    rng = np.random.default_rng(3)
    rows = rng.random((37, 41)) < 0.4
    np.testing.assert_array_equal(keyhole.mask(rows).mask(37, 41, offset=0), rows)
    offsets = np.concatenate([[0], np.cumsum(rows.sum(1))])
    np.testing.assert_array_equal(keyhole.csr(offsets, np.nonzero(rows)[1]).mask(37, 41, offset=0), rows)
    big = np.kron(rows, np.ones((3, 2), bool))
    tiles = keyhole.tiles(3, 2, offsets, np.nonzero(rows)[1])
    np.testing.assert_array_equal(tiles.mask(111, 82, offset=0), big)


def test_other_content_is_another_pattern():
    rows = np.zeros((40, 40), bool)
    other = rows.copy()
    other[3, 3] = True
    assert keyhole.mask(rows) != keyhole.mask(other)
    assert keyhole.mask(rows) != keyhole.mask(rows[:, :39])
    changed = keyhole.mask(rows)
    rows[0, 0] = True  # the pattern has a copy
    assert changed == keyhole.mask(np.zeros((40, 40), bool))


def test_associativity_does_not_make_two_patterns_of_one():
    mask = long_patterns()["mask"]
    parsed = keyhole.parse("causal & window(3)")
    assert (mask & keyhole.causal()) & keyhole.window(3) == mask & parsed == mask & (keyhole.causal() & "window(3)")
    assert keyhole.causal() & (keyhole.window(3) & mask) == parsed & mask
    assert mask & parsed != parsed & mask


def test_copies_are_the_pattern_itself():
    pattern = keyhole.causal()
    assert copy.copy(pattern) is pattern
    assert copy.deepcopy(pattern) is pattern


def test_pictures_in_notebooks():
    svg = keyhole.parse("causal & ~window(2)")._repr_svg_()
    assert svg.startswith("<svg ")
    assert "causal &amp; ~window(2)" in svg
    assert keyhole.per_head("causal", "dense")._repr_svg_().startswith("<svg ")
    assert keyhole.at([0, 1], [0, 1], "causal")._repr_svg_() is None


def test_a_notebook_that_prefers_html_sees_the_picture_and_how_pairs_grow():
    pattern = keyhole.parse("causal & ~window(2)")
    html = pattern._repr_html_()
    assert svg_inside(html) == pattern._repr_svg_()
    assert 'alt="causal &amp; ~window(2)"' in html
    assert "keyhole.parse(&#x27;causal &amp; ~window(2)&#x27;)" in html
    for length in (64, 1024, 4096):
        pairs = (length - 3) * (length - 2) // 2
        assert f"{length:>6}{pairs:>12}{pairs / length**2:>9.1%}\n" in html.replace("</pre>", "\n")
    assert "head 0" not in html
    assert "of head 0 of batch entry 0" in keyhole.per_head("causal", "dense")._repr_html_()


@pytest.mark.parametrize("length", [64, 2])
def test_html_of_a_pattern_that_has_a_length_of_its_own(length):
    """Where there is an SVG there is HTML, and where there is none a notebook takes the text."""
    pattern = keyhole.at(np.arange(length), np.arange(length), "causal")
    html = pattern._repr_html_()
    assert (html is None) == (pattern._repr_svg_() is None) == (length == 2)
    if html is not None:
        assert svg_inside(html) == pattern._repr_svg_()
        assert "    64        2080    50.8%</pre>" in html


def test_show_writes_files(tmp_path):
    keyhole.causal().show(8, path=tmp_path / "causal.svg")
    assert (tmp_path / "causal.svg").read_text(encoding="utf-8").startswith("<svg ")
    keyhole.causal().show(8, 12, path=tmp_path / "causal.html")
    assert (tmp_path / "causal.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(ValueError, match=r"ends neither in .svg nor in .html"):
        keyhole.causal().show(path=tmp_path / "causal.png")


atoms = st.one_of(
    st.sampled_from(["causal", "dense", "exponential"]).map(keyhole.parse),
    st.builds(keyhole.window, st.integers(0, 9), st.one_of(st.none(), st.integers(0, 9))),
    st.builds(keyhole.sinks, st.integers(0, 5)),
    st.builds(keyhole.dilated, st.integers(1, 5)),
    st.integers(0, 2**32 - 1).map(lambda s: keyhole.mask(np.random.default_rng(s).random((13, 13)) < 0.5)),
)
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(patterns, patterns)
def test_algebra_of_masks(a, b):
    np.testing.assert_array_equal((a & b).mask(9, 13), a.mask(9, 13) & b.mask(9, 13))
    np.testing.assert_array_equal((a | b).mask(9, 13), a.mask(9, 13) | b.mask(9, 13))
    np.testing.assert_array_equal((~a).mask(9, 13), ~a.mask(9, 13))
    there = pickle.loads(pickle.dumps(a))
    assert there == a
    assert hash(there) == hash(a)
    np.testing.assert_array_equal(there.mask(9, 13), a.mask(9, 13))
    if a == b:
        np.testing.assert_array_equal(a.mask(9, 13), b.mask(9, 13))


values = st.recursive(
    st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.text(), st.binary()),
    lambda inner: st.lists(inner).map(tuple),
    max_leaves=20,
)


@given(values)
def test_values_survive_their_encoding(value):
    assert decode_value(encode_value(value)) == value


@given(st.binary(max_size=60))
def test_bytes_from_a_stranger_are_a_value_or_a_value_error(data):
    with contextlib.suppress(ValueError):
        assert encode_value(decode_value(data)) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"i1234567",
        b"s" + b"\xff" * 8,
        b"t" + b"\xff" * 8,
        b"t\x01" + bytes(7),
        b"nn",
        b"s\x01" + bytes(7) + b"\xff",
        (b"t\x01" + bytes(7)) * 1000 + b"n",
    ],
)
def test_damaged_values_are_refused(data):
    with pytest.raises(ValueError, match=".+"):
        decode_value(data)


@pytest.mark.parametrize(
    "recipe",
    [
        None,
        (),
        (1,),
        ("text",),
        ("text", 3),
        ("and",),
        ("and", ()),
        ("and", (("text", "causal"),)),
        ("and", (1, 2)),
        ("not", "causal"),
        ("nothing", 3),
        ("window",),
        ("window", 1, 2, 3),
        ("csr", b"1234567", b""),
        ("csr", "a", "b"),
        ("mask", (b"", 8, 8)),
        ("mask", (b"", 1 << 62, 1 << 62)),
        ("mask", (b"", -1, 8)),
        ("mask", b""),
        ("per_head", ()),
        ("at", b"", b"", 3),
    ],
)
def test_what_is_no_recipe_is_refused(recipe):
    with pytest.raises((ValueError, TypeError)):
        from_recipe(recipe)
