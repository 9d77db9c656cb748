# tests/python/test_torch_first_call.py
"""The first call on torch tensors loads what it needs: torch's compiler, 700 ms, only where something is compiled."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # a process each

BEGIN = """
import sys
import torch, keyhole
q = torch.ones(1, 2, 64, 32)
before = set(sys.modules)
"""
FIRST_CALLS = {
    "attention": "keyhole.attention(q, q, q, 'causal')",
    "with lse": "keyhole.attention(q, q, q, keyhole.causal(), return_lse=True, layout='bshd')",
    "gradients": "keyhole.attention(q.requires_grad_(), q, q, keyhole.plan('causal', 64)).sum().backward()",
    "gather_attention": "keyhole.gather_attention(q, q, q, torch.zeros(1, 1, 64, 4, dtype=torch.int64))",
    "tile lists": (
        "keyhole.attention(q.requires_grad_(), q, q, keyhole.TileLists(torch.zeros(1, 1, 1, 1, dtype=torch.int32), "
        "tile=(64, 64))).sum().backward()"
    ),
    "merge": "keyhole.merge(*keyhole.attention(q, q, q, 'causal', return_lse=True) * 2)",
    "sdpa": "keyhole.scaled_dot_product_attention(q, q, q, is_causal=True)",
    "sdpa with a mask": "keyhole.scaled_dot_product_attention(q, q, q, torch.ones(64, 64, dtype=torch.bool).tril())",
    "nn.SparseAttention": "keyhole.nn.SparseAttention(32, 2)(q[0])",
}
END = """
print(*sorted(name for name in set(sys.modules) - before if not name.startswith('keyhole.')))
"""


@pytest.mark.parametrize("name", FIRST_CALLS)
def test_the_first_call_loads_little(name):
    code = BEGIN + FIRST_CALLS[name] + END
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    compilers = ("torch._dynamo", "torch._inductor", "torch.distributed", "torch.fx", "sympy", "triton")
    assert not [module for module in loaded if module.startswith(compilers)]
    assert len(loaded) < 20, loaded


THEN_COMPILED = (
    BEGIN
    + """
causal = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
mask = torch.ones(64, 64, dtype=torch.bool).tril()
calls = {
    "text": lambda x: keyhole.attention(x, q, q, "causal"),
    "pattern": lambda x, pattern=keyhole.causal(): keyhole.attention(x, q, q, pattern),
    "mask": lambda x: keyhole.scaled_dot_product_attention(x, q, q, mask),
}
if sys.argv[1] == "eager first":
    for call in calls.values():
        call(q)
for name, call in calls.items():
    compiled = torch.compile(call, backend="aot_eager", fullgraph=name != "mask")
    assert torch.allclose(compiled(q), causal, atol=1e-5), name
"""
)


@pytest.mark.parametrize("order", ["eager first", "compiled first"])
def test_what_is_loaded_late_compiles(order):
    subprocess.run([sys.executable, "-c", THEN_COMPILED, order], check=True)
