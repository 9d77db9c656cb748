# bench/peers/patterns.py
# The patterns of the cases as functions of positions, written here a second time from their definitions: the pairs they
# keep are compared with those of Keyhole's plans, and FlexAttention is given them.
import re

import torch

TILE = 128  # what FlexAttention walks
REPEATED = re.compile(r"repeated\((\d+), (\d+), (.+)\)")


class Pattern:
    """allows(q, k): tensors of positions in, booleans out; the shapes broadcast."""

    def __init__(self, allows):
        self.allows = allows

    def __and__(self, other):
        mine, others = self.allows, other.allows
        return Pattern(lambda q, k: mine(q, k) & others(q, k))

    def __or__(self, other):
        mine, others = self.allows, other.allows
        return Pattern(lambda q, k: mine(q, k) | others(q, k))

    def __invert__(self):
        mine = self.allows
        return Pattern(lambda q, k: ~mine(q, k))


def signed(number):
    """Modulo 2^64, as int64 holds it: its sums and products wrap around."""
    number %= 1 << 64
    return number - (number >> 63 << 64)


GOLDEN = signed(0x9E3779B97F4A7C15)


def mix(z):
    def xor_shifted(z, bits):
        return z ^ (z >> bits & (1 << 64 - bits) - 1)

    z = xor_shifted(z, 30) * signed(0xBF58476D1CE4E5B9)
    z = xor_shifted(z, 27) * signed(0x94D049BB133111EB)
    return xor_shifted(z, 31)


def drawn(size, seed, num_streams, count):
    """[stream, i]: where the stream's permutation of `size` elements takes i = 0 ... count - 1: see
    src/base/keyed_permutation.h."""
    key = mix(mix(torch.tensor(signed(seed + GOLDEN))) + torch.arange(num_streams) + GOLDEN)[:, None]
    half_bits = 0
    while 1 << 2 * half_bits < size:
        half_bits += 1
    low_half = (1 << half_bits) - 1
    elements = torch.arange(min(count, size)).repeat(num_streams, 1)
    is_outside = torch.ones_like(elements, dtype=torch.bool)
    while is_outside.any():
        left, right = elements >> half_bits, elements & low_half
        for step in range(1, (12 if half_bits <= 4 else 4) + 1):
            left, right = right, left ^ mix(right + key + signed(step * GOLDEN)) & low_half
        elements = torch.where(is_outside, left << half_bits | right, elements)
        is_outside = elements >= size
    return elements


def random_table(q_len, k_len, block, count, seed):
    """[query block, key block]."""
    q_blocks, k_blocks = -(-q_len // block), -(-k_len // block)
    table = torch.zeros(q_blocks, k_blocks, dtype=torch.bool)
    return table.scatter_(1, drawn(k_blocks, seed, q_blocks, count), True)


def of_blocks(table, block, device):
    table = table.to(device)
    return Pattern(lambda q, k: table[q // block, k // block])


def bigbird_table(length, block, window, count, global_blocks, seed):
    table = random_table(length, length, block, count, seed)
    at = torch.arange(len(table))
    table |= (at[:, None] - at).abs() <= (window - 1) // 2
    table[:global_blocks] = True
    table[:, :global_blocks] = True
    return table


def repeated_in(text):
    """(rows, columns, text) of repeated(rows, columns, text), a word of the cases alone; None of any other text."""
    found = REPEATED.fullmatch(text)
    return found and (int(found[1]), int(found[2]), found[3])


def pattern_of(case, device):
    try:
        return pattern_of_text(case.pattern, case.length, case.length, device)
    except (NameError, SyntaxError, TypeError) as error:
        raise SystemExit(f'{case.name}: "{case.pattern}" is not known to bench/peers/patterns.py: {error}') from error


def pattern_of_text(text, q_len, k_len, device):
    """The text of a pattern happens to be a Python expression; these are the words of it that the cases use."""
    if repeated := repeated_in(text):
        rows, columns, text = repeated
        q, k = (torch.arange(period, device=device) for period in (rows, columns))
        pairs = pattern_of_text(text, rows, columns, device).allows(q[:, None], k)
        return Pattern(lambda q, k: pairs[q % rows, k % columns])
    words = {
        "dense": Pattern(lambda q, k: (q >= 0) & (k >= 0)),
        "causal": Pattern(lambda q, k: k <= q),
        "window": lambda left, right=None: Pattern(lambda q, k: (q - k <= left) & (k - q <= (left if right is None else right))),
        "sinks": lambda count: Pattern(lambda q, k: (k < count) & (q >= 0)),
        "blocks": lambda size: Pattern(lambda q, k: q // size == k // size),
        "dilated": lambda stride: Pattern(lambda q, k: (q - k) % stride == 0),
        "random": lambda block, *drawn_by: of_blocks(random_table(q_len, k_len, block, *drawn_by), block, device),
        "bigbird": lambda block, *others: of_blocks(bigbird_table(q_len, block, *others), block, device),
    }
    return eval(text, {"__builtins__": {}}, words)


def count_tiles(pattern, length, device):
    """[query tile, key tile]: how many pairs of the tile attend."""
    if length % TILE:
        raise SystemExit(f"a case has {length} tokens; the peers walk whole tiles of {TILE}")
    num_tiles = length // TILE
    k = torch.arange(length, device=device, dtype=torch.int32)
    counts = torch.empty(num_tiles, num_tiles, device=device, dtype=torch.int32)
    tiles_at_once = max(1, (1 << 27) // (length * TILE))  # 128 million pairs
    for tile in range(0, num_tiles, tiles_at_once):
        end = min(tile + tiles_at_once, num_tiles)
        allowed = pattern.allows(k[tile * TILE : end * TILE, None], k[None])
        counts[tile:end] = allowed.view(end - tile, TILE, num_tiles, TILE).sum((1, 3), dtype=torch.int32)
    return counts
