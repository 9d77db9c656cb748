# tests/python/test_variable_blocks.py
"""from_bsr with a size for each row and column of blocks, against the matrix it describes."""

import keyhole
import numpy as np
import pytest


def drawn(q_sizes, k_sizes, seed=0):
    """offsets and keys of random blocks, and the matrix of pairs."""
    blocks = np.random.default_rng(seed).random((len(q_sizes), len(k_sizes))) < 0.4
    offsets = np.concatenate([[0], np.cumsum(blocks.sum(axis=1))])
    return offsets, np.nonzero(blocks)[1], np.repeat(np.repeat(blocks, q_sizes, axis=0), k_sizes, axis=1)


def sizes_of(length, blocks, seed=0):
    cuts = np.sort(np.random.default_rng(seed).integers(0, length + 1, blocks - 1))
    return np.diff(np.concatenate([[0], cuts, [length]]))


@pytest.mark.parametrize(
    ("q_len", "q_blocks", "k_len", "k_blocks"),
    [(300, 7, 300, 5), (129, 40, 1000, 3), (1000, 3, 128, 60), (5, 2, 3, 3), (260, 260, 260, 260), (64, 1, 0, 1)],
)
def test_blocks_hold_their_pairs(q_len, q_blocks, k_len, k_blocks):
    q_sizes, k_sizes = sizes_of(q_len, q_blocks), sizes_of(k_len, k_blocks, seed=1)
    offsets, keys, expected = drawn(q_sizes, k_sizes)
    pattern = keyhole.from_bsr(offsets, keys, q_sizes, k_sizes)
    np.testing.assert_array_equal(pattern.mask(q_len, k_len), expected)


def test_one_side_may_be_equal():
    offsets, keys, expected = drawn([3, 0, 5], [4, 4, 2])
    for tile_q, tile_k in (([3, 0, 5], 4), (np.array([3, 0, 5]), [4, 4, 2])):
        pattern = keyhole.from_bsr(offsets, keys, tile_q, tile_k, q_len=8, k_len=10)
        np.testing.assert_array_equal(pattern.mask(8, 10), expected)
    offsets, keys, expected = drawn([4, 4, 1], [2, 5])
    np.testing.assert_array_equal(keyhole.from_bsr(offsets, keys, 4, [2, 5], q_len=9).mask(9, 7), expected)


def test_equal_sizes_are_the_tiles_they_were():
    offsets, keys, _ = drawn([128] * 4, [128] * 4)
    pattern = keyhole.from_bsr(offsets, keys, [128] * 4, [128] * 4)
    assert pattern == keyhole.from_bsr(offsets, keys, 128, 128)


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        (([0, 1, 2], [0, 1], [3], [2, 2]), {}, "offsets has 2 rows, and tile_q and q_len give 1"),
        (([0, 1], [2], [3], [2, 2]), {}, "keys are 2 to 2; tile_k and k_len give 2 columns"),
        (([0, 2], [0], [3], [2, 2]), {}, "offsets must rise from 0 to 1"),
        (([0, 1], [0], [-3], [2, 2]), {}, "tile_q has a size of -3"),
        (([0, 1], [0], [3], [2, 2]), {"k_len": 5}, "the sizes of tile_k add up to 4, and k_len is 5"),
    ],
    ids=["rows", "columns", "offsets", "negative", "length"],
)
def test_what_is_refused(arguments, options, match):
    with pytest.raises(ValueError, match=match):
        keyhole.from_bsr(*arguments, **options)
