# bench/peers/patterns.py
# The patterns of the cases as functions of positions, written here a second time from their definitions: the pairs they
# keep are compared with those of Keyhole's plans, and FlexAttention is given them.
import torch

TILE = 128  # what FlexAttention and the block-sparse kernels of torch.sparse walk
MASK_64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


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


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK_64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK_64
    return z ^ z >> 31


def drawn(size, seed, stream, count):
    """What the keyed permutation of `size` elements makes of 0 ... count - 1: see src/base/keyed_permutation.h."""
    key = mix((mix((seed + GOLDEN) & MASK_64) + stream + GOLDEN) & MASK_64)
    half_bits = 0
    while 1 << 2 * half_bits < size:
        half_bits += 1
    results = []
    for element in range(min(count, size)):
        while True:
            left, right = element >> half_bits, element & (1 << half_bits) - 1
            for step in range(1, (12 if half_bits <= 4 else 4) + 1):
                turned = mix((right + key + step * GOLDEN) & MASK_64) & (1 << half_bits) - 1
                left, right = right, left ^ turned
            element = left << half_bits | right
            if element < size:
                break
        results.append(element)
    return results


def bigbird(length, device):
    def make(block, window, count, global_blocks, seed):
        num_blocks = -(-length // block)
        at = torch.arange(num_blocks)
        table = (at[:, None] - at).abs() <= (window - 1) // 2
        table[:global_blocks] = True
        table[:, :global_blocks] = True
        for row in range(num_blocks):
            table[row, drawn(num_blocks, seed, row, count)] = True
        table = table.to(device)
        return Pattern(lambda q, k: table[q // block, k // block])

    return make


def pattern_of(case, device):
    """The text of a pattern happens to be a Python expression; these are the words of it that the cases use."""
    words = {
        "dense": Pattern(lambda q, k: (q >= 0) & (k >= 0)),
        "causal": Pattern(lambda q, k: k <= q),
        "window": lambda left, right=None: Pattern(lambda q, k: (q - k <= left) & (k - q <= (left if right is None else right))),
        "sinks": lambda count: Pattern(lambda q, k: (k < count) & (q >= 0)),
        "blocks": lambda size: Pattern(lambda q, k: q // size == k // size),
        "dilated": lambda stride: Pattern(lambda q, k: (q - k) % stride == 0),
        "bigbird": bigbird(case.length, device),
    }
    try:
        return eval(case.pattern, {"__builtins__": {}}, words)
    except (NameError, SyntaxError, TypeError) as error:
        raise SystemExit(f'{case.name}: "{case.pattern}" is not known to bench/peers/patterns.py: {error}') from error


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
