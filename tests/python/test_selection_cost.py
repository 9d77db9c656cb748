"""What choosing keys costs: the numbers are those of the library, whose tests have them worked out by hand."""

from __future__ import annotations

import json

import keyhole
import pytest

GROUPED = {"top_k": 2048, "q_heads": 32, "kv_heads": 8}


def test_numbers_text_and_json_agree():
    report = keyhole.explain_selection(131072, **GROUPED)
    assert report.visible_pairs == 131072 * 131073 // 2
    assert report.chosen_pairs == 2048 * 131072 - 2048 * 2047 // 2
    assert report.dense.flops == 4 * 32 * 128 * report.visible_pairs
    assert report.indexer.seconds == pytest.approx(16384 * report.visible_pairs / 1500e12)
    assert report.chosen.seconds == pytest.approx(8 * 512 * report.chosen_pairs / 8.4e12)
    assert report.choosing_seconds == pytest.approx(report.indexer.seconds + report.chosen.seconds)
    assert report.speedup == pytest.approx(report.dense.seconds / report.choosing_seconds)
    assert "dense attention is faster here" in str(report)
    written = json.loads(report.json)
    assert written["wins_from"] == report.wins_from
    assert written["call"]["kv_heads"] == 8
    assert [change["what"] for change in written["changes"]] == [change.what for change in report.changes]
    assert repr(report).startswith("SelectionReport(pattern='causal', is_causal=True, ")


def test_every_argument_arrives():
    def seconds(**changed):
        return keyhole.explain_selection(**{"q_len": 9000, **GROUPED, **changed}).choosing_seconds

    base = seconds()
    for changed in (
        {"q_len": 9001}, {"k_len": 9001}, {"top_k": 2049}, {"q_heads": 4096}, {"kv_heads": 16}, {"head_dim": 129},
        {"v_head_dim": 129}, {"latent_dim": 512, "kv_heads": None}, {"index_heads": 63}, {"index_dim": 127},
        {"index_dtype": "bf16"}, {"shared_by": 2}, {"batch": 2}, {"visible": "causal & window(4000)"},
        {"rates": {"flops_8bit": 1e15}}, {"rates": {"gathered": 1e12}}, {"rates": {"memory": 1e9}},
        {"rates": {"flops_16bit": 1e12}},
    ):  # fmt: skip
        assert seconds(**changed) != base, changed
    assert seconds(dtype="f16") == base
    latent = {"latent_dim": 512, "kv_heads": None}
    assert seconds(**latent, rope_head_dim=65) != seconds(**latent)
    assert keyhole.explain_selection(9000, **GROUPED, groups=4).chosen_pairs == 4 * (2048 * 9000 - 2048 * 2047 // 2)


def test_visible_keys():
    report = keyhole.explain_selection(600, top_k=50, q_heads=4, visible=keyhole.causal() & keyhole.window(99, 0))
    assert report.visible_pairs == 600 * 100 - 99 * 100 // 2
    assert not report.is_causal
    given = keyhole.plan("causal & window(99)", 600)
    assert keyhole.explain_selection(600, top_k=50, q_heads=4, visible=given).visible_pairs == 600 * 100 - 99 * 100 // 2
    heads = keyhole.per_head("causal", "window(0)")
    assert keyhole.explain_selection(600, top_k=50, q_heads=4, groups=2, visible=heads).visible_pairs == 180300 + 600


def test_never_is_none():
    report = keyhole.explain_selection(9000, top_k=512, q_heads=8)
    assert report.wins_from is None
    assert "pays      at no length" in report.text


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"top_k": 0}, ValueError, "explain_selection: top_k is 0; expected 1 or more"),
        ({"top_k": 1.5}, TypeError, "explain_selection: top_k: expected an int, found float"),
        ({"q_len": 64.0}, TypeError, "explain_selection: q_len: expected an int, found float"),
        ({"q_heads": 30}, ValueError, "q_heads is 30 and kv_heads 8; the first must be a multiple of the second"),
        ({"kv_heads": "8"}, TypeError, "kv_heads: expected an int, found str"),
        ({"latent_dim": 512}, ValueError, "latent heads share one key"),
        ({"dtype": "f32"}, ValueError, "attention in f32; accepted are bf16 and f16"),
        ({"dtype": "float8"}, ValueError, 'dtype is "float8"; accepted are bf16, f16'),
        ({"index_dtype": 8}, TypeError, "index_dtype: expected a str, found int"),
        ({"visible": None}, TypeError, "explain_selection: visible"),
        ({"visible": keyhole.plan("causal", 8)}, ValueError, "is for 8 queries and 8 keys, the call has 64 and 64"),
        ({"rates": {"memory": 0}}, ValueError, "the rate memory is 0; it must be a positive number"),
        ({"rates": 3e12}, TypeError, "explain_selection: rates is a float; accepted is a dict"),
        ({"q_len": -1}, ValueError, "explain_selection: q_len is -1; it must not be negative"),
        ({"rates": {"hbm": 1e12}}, ValueError, "rates has 'hbm'; accepted are flops_16bit, flops_8bit, memory"),
        ({"q_len": 1 << 31}, ValueError, "2147483648"),
    ],
)
def test_refusals(changed, error, match):
    with pytest.raises(error, match=match):
        keyhole.explain_selection(**{"q_len": 64, **GROUPED, **changed})
