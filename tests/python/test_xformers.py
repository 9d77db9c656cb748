# tests/python/test_xformers.py
"""from_xformers against the masks that xFormers' documentation defines. The classes here are stand-ins with the names
and attributes of xFormers' own, which is not installed.
"""

import types

import keyhole
import numpy as np
import pytest


def bias_of(name, **attributes):
    made = type(name, (), {"__module__": "xformers.ops.fmha.attn_bias"})()
    vars(made).update(attributes)
    return made


def info_of(lengths):
    return types.SimpleNamespace(seqstart_py=[0, *np.cumsum(lengths).tolist()])


def info_with_gaps(starts, lengths):
    return types.SimpleNamespace(seqstart_py=starts, seqlen_py=lengths)


def in_block(q_len, k_len, *, from_bottom_right=True, left=None, right=None):
    """The mask of one sequence, by row and column."""
    distance = np.arange(k_len) - np.arange(q_len)[:, None] - (k_len - q_len if from_bottom_right else 0)
    mask = np.ones((q_len, k_len), bool)
    if right is not None:
        mask &= distance <= right
    return mask if left is None else mask & (distance >= -left)


def blocks(q_lengths, k_starts, k_lengths, k_len, **options):
    expected, q_start = np.zeros((sum(q_lengths), k_len), bool), 0
    for q_count, k_start, k_count in zip(q_lengths, k_starts, k_lengths, strict=True):
        expected[q_start : q_start + q_count, k_start : k_start + k_count] = in_block(q_count, k_count, **options)
        q_start += q_count
    return expected


TOP_LEFT = {"from_bottom_right": False}
WHOLE = {  # name: attributes, and the options of in_block
    "LowerTriangularMask": ({}, {"right": 0, **TOP_LEFT}),
    "LowerTriangularFromBottomRightMask": ({}, {"right": 0}),
    "LowerTriangularFromBottomRightLocalAttentionMask": ({"_window_size": 3}, {"right": 0, "left": 2}),
    "LocalAttentionFromBottomRightMask": ({"window_left": 1, "window_right": 2}, {"left": 1, "right": 2}),
}
IN_BLOCKS = {
    "BlockDiagonalMask": ({}, {}),
    "BlockDiagonalCausalMask": ({}, {"right": 0, **TOP_LEFT}),
    "BlockDiagonalCausalFromBottomRightMask": ({}, {"right": 0}),
    "BlockDiagonalCausalLocalAttentionMask": ({"_window_size": 2}, {"right": 0, "left": 1, **TOP_LEFT}),
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask": ({"_window_size": 2}, {"right": 0, "left": 1}),
}
WITH_GAPS = {
    "BlockDiagonalPaddedKeysMask": {},
    "BlockDiagonalGappyKeysMask": {},
    "BlockDiagonalCausalWithOffsetPaddedKeysMask": {"right": 0},
    "BlockDiagonalCausalWithOffsetGappyKeysMask": {"right": 0},
}


@pytest.mark.parametrize(("q_len", "k_len"), [(5, 5), (4, 7), (7, 4)])
@pytest.mark.parametrize("name", WHOLE)
def test_one_sequence(name, q_len, k_len):
    attributes, options = WHOLE[name]
    pattern = keyhole.from_xformers(bias_of(name, **attributes), q_len, k_len)
    np.testing.assert_array_equal(pattern.mask(q_len, k_len), in_block(q_len, k_len, **options))


@pytest.mark.parametrize("k_lengths", [[3, 6, 2], [5, 6, 4], [1, 2, 3]], ids=["equal", "more keys", "mixed"])
@pytest.mark.parametrize("name", IN_BLOCKS)
def test_sequences_one_behind_the_other(name, k_lengths):
    attributes, options = IN_BLOCKS[name]
    bias = bias_of(name, q_seqinfo=info_of([3, 6, 2]), k_seqinfo=info_of(k_lengths), _batch_sizes=None, **attributes)
    k_starts = bias.k_seqinfo.seqstart_py
    expected = blocks([3, 6, 2], k_starts[:-1], k_lengths, k_starts[-1], **options)
    np.testing.assert_array_equal(keyhole.from_xformers(bias).mask(11, k_starts[-1]), expected)
    np.testing.assert_array_equal(keyhole.from_xformers(bias, 11, k_starts[-1]).mask(11, k_starts[-1]), expected)


@pytest.mark.parametrize("name", WITH_GAPS)
def test_keys_with_gaps(name):
    info = info_with_gaps([0, 4, 8, 12], [2, 3, 4]) if "Padded" in name else info_with_gaps([0, 7, 12, 14], [6, 3, 1])
    bias = bias_of(name, q_seqinfo=info_of([2, 1, 1]), k_seqinfo=info)
    k_len = info.seqstart_py[-1]
    expected = blocks([2, 1, 1], info.seqstart_py[:-1], info.seqlen_py, k_len, **WITH_GAPS[name])
    np.testing.assert_array_equal(keyhole.from_xformers(bias).mask(4, k_len), expected)


def test_every_kind_is_tested():
    from keyhole.imports import xformers_bias

    assert {*xformers_bias._KINDS} == {*WHOLE, *IN_BLOCKS, *WITH_GAPS}


@pytest.mark.parametrize(
    ("bias", "options", "error", "match"),
    [
        (bias_of("LowerTriangularMask"), {}, TypeError, "is aligned at the top left, .* pass q_len"),
        (
            bias_of("LowerTriangularMaskWithTensorBias"),
            {},
            TypeError,
            "found LowerTriangularMaskWithTensorBias; accepted",
        ),
        (bias_of("PagedBlockDiagonalPaddedKeysMask"), {}, TypeError, r"from_dense\(bias.materialize"),
        (
            bias_of("BlockDiagonalMask", q_seqinfo=info_of([2]), k_seqinfo=info_of([3])),
            {"k_len": 4},
            ValueError,
            "k_len is 4, and the bias was made for 3",
        ),
        (
            bias_of("BlockDiagonalMask", q_seqinfo=info_of([2]), k_seqinfo=info_of([2, 1])),
            {},
            ValueError,
            "1 sequences of queries and 2 of keys",
        ),
        (
            bias_of("BlockDiagonalCausalWithOffsetPaddedKeysMask", causal_diagonal=[1]),
            {},
            TypeError,
            "with a causal_diagonal",
        ),
    ],
    ids=["top left", "weights", "paged", "lengths", "sequences", "diagonal"],
)
def test_what_is_refused(bias, options, error, match):
    with pytest.raises(error, match=match):
        keyhole.from_xformers(bias, **options)


def test_a_bias_is_told_the_way():
    with pytest.raises(TypeError, match=r"keyhole.from_xformers\(bias\)"):
        keyhole.plan(bias_of("BlockDiagonalMask"), 4)
