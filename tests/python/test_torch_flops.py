# tests/python/test_torch_flops.py
"""What torch's FlopCounterMode counts: the work of the pairs that attend."""

import subprocess
import sys

import keyhole
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
from torch_reference import draw

OPS = torch.ops.keyhole
BATCH, HEADS, LENGTH, HEAD_DIM = 2, 4, 100, 16


def counted(lists, v_head_dim=HEAD_DIM, k_len=LENGTH):
    """FLOPs forward and backward."""
    q = draw(BATCH, HEADS, LENGTH, HEAD_DIM).requires_grad_()
    k, v = draw(BATCH, 2, k_len, HEAD_DIM, seed=1), draw(BATCH, 2, k_len, v_head_dim, seed=2)
    with FlopCounterMode(display=False) as counter:
        keyhole.attention(q, k, v, lists).sum().backward()
    counts = counter.get_flop_counts()["Global"]
    return counts[OPS.attention_forward], counts[OPS.attention_backward]


PATTERNS = {
    "text": "causal & window(9)",
    "pattern": keyhole.causal() & keyhole.dilated(3),
    "plan": keyhole.plan("blocks(16)", LENGTH),
    "plan of all heads": keyhole.plan("causal", LENGTH, batch=BATCH, heads=HEADS),
    "each head its own": keyhole.per_head("causal", "window(2)", "dense", "sinks(1)"),
    "scattered": keyhole.exponential(),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_count_as_their_plan_says(name):
    lists = PATTERNS[name]
    pattern = lists.pattern if isinstance(lists, keyhole.Plan) else lists
    report = keyhole.plan(pattern, LENGTH, batch=BATCH, heads=HEADS).explain(head_dim=HEAD_DIM)
    assert counted(lists) == (report.flops_forward, report.flops_backward)


def test_v_may_be_wider():
    pairs = BATCH * HEADS * LENGTH * (LENGTH + 1) // 2
    assert counted("causal", v_head_dim=40) == (2 * pairs * (16 + 40), 2 * pairs * (3 * 16 + 2 * 40))


def test_every_entry_of_lists_counts():
    rows = BATCH * HEADS * LENGTH
    assert counted(torch.zeros(BATCH, 1, LENGTH, 7, dtype=torch.int64)) == (rows * 7 * 64, rows * 7 * 160)
    tiles = keyhole.TileLists(torch.zeros(BATCH, 1, 2, 3, dtype=torch.int32), tile=(64, 32))
    assert counted(tiles) == (rows * 96 * 64, rows * 96 * 160)


@pytest.mark.parametrize("kind", ["fake", "meta"])
def test_tensors_without_values_count(kind):
    with FakeTensorMode() if kind == "fake" else torch.device("meta"), FlopCounterMode(display=False) as counter:
        q = torch.empty(BATCH, HEADS, LENGTH, HEAD_DIM)
        keyhole.attention(q, q, q, "causal & window(9)")
    assert counter.get_total_flops() == counted("causal & window(9)")[0]


ORDER = """
import torch, keyhole
from torch.utils.flop_counter import FlopCounterMode
q = torch.ones(1, 1, 8, 4)
counter = FlopCounterMode(display=False)
{between}
with counter:
    keyhole.attention(q, q, q, "causal")
assert counter.get_total_flops() == 4 * 36 * 4, counter.get_total_flops()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "between", ["", "keyhole.attention(q, q, q, 'causal')", "import keyhole.torch_attention.flops"]
)
def test_a_counter_may_be_older_than_the_first_call(between):
    subprocess.run([sys.executable, "-c", ORDER.format(between=between)], check=True)
