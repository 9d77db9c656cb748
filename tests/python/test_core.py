# tests/python/test_core.py
"""The extension alone: tuples that are not tensors, and stubs that say what it has."""

from __future__ import annotations

import ast
import pathlib
import threading
import time

import keyhole
import numpy as np
import pytest
from keyhole import _core
from keyhole.numpy_attention import _tensor

ARRAY = np.ones((1, 1, 4, 8), np.float32)
GOOD = _tensor(ARRAY)
POINTER, DTYPE, SHAPE, STRIDES, DEVICE = GOOD


def forward(q=GOOD, *, out=None, lse=None, sink=None, scale=None, softcap=0.0, backend="auto", threads=0, stream=0):
    plan = keyhole.plan("causal", 4).core
    result = np.empty_like(ARRAY)
    out = _tensor(result) if out is None else out
    _core.forward(q, GOOD, GOOD, plan, out, lse, None, sink, scale, softcap, 1.0, 0, backend, threads, stream)
    return result


def test_a_good_call():
    np.testing.assert_array_equal(forward(), ARRAY)
    np.testing.assert_array_equal(forward((POINTER, DTYPE, SHAPE, list(STRIDES) and STRIDES, DEVICE)), ARRAY)


@pytest.mark.parametrize(
    ("q", "error", "match"),
    [
        (None, TypeError, "incompatible function arguments"),
        (ARRAY, TypeError, "q: expected a tuple .pointer, dtype, shape, strides, device., found ndarray"),
        (list(GOOD), TypeError, "q: expected a tuple"),
        (GOOD[:4], TypeError, "q: expected a tuple"),
        ((None, *GOOD[1:]), TypeError, "q: expected an int as the pointer of a tensor, found NoneType"),
        ((1.0, *GOOD[1:]), TypeError, "pointer"),
        ((1 << 70, *GOOD[1:]), OverflowError, "too large|too big"),
        ((0, *GOOD[1:]), ValueError, "data pointer is null"),
        ((POINTER, "f32", SHAPE, STRIDES, -1), TypeError, "q: expected an int, found str"),
        ((POINTER, 4, SHAPE, STRIDES, -1), ValueError, "q: dtype 4; accepted are 0"),
        ((POINTER, -1, SHAPE, STRIDES, -1), ValueError, "q: dtype -1"),
        ((POINTER, 2, list(SHAPE), STRIDES, -1), TypeError, "q: expected its shape as a tuple of ints, found list"),
        ((POINTER, 2, SHAPE, None, -1), TypeError, "q: expected its strides as a tuple of ints, found NoneType"),
        ((POINTER, 2, (), (), -1), ValueError, "q has 0 dimensions"),
        ((POINTER, 2, (1,) * 5, (1,) * 5, -1), ValueError, "q has 5 dimensions"),
        ((POINTER, 2, SHAPE, STRIDES[:3], -1), ValueError, "q has 4 dimensions and 3 strides"),
        ((POINTER, 2, (1, 1, 4, 8.0), STRIDES, -1), TypeError, "q: expected an int, found float"),
        ((POINTER, 2, (1, 1, 4, True), STRIDES, -1), TypeError, "q: expected an int, found bool"),
        ((POINTER, 2, (1, 1, 4, 1 << 80), STRIDES, -1), ValueError, "q: the number does not fit into 64 bits"),
        ((POINTER, 2, (1, 1, 4, -8), STRIDES, -1), ValueError, "must not be negative"),
        ((POINTER, 2, SHAPE, STRIDES, -2), ValueError, "q: device -2"),
        ((POINTER, 2, SHAPE, STRIDES, 1 << 40), ValueError, "q: device"),
        ((POINTER, 2, SHAPE, STRIDES, "cpu"), TypeError, "q: expected an int, found str"),
    ],
)
def test_what_is_no_tensor(q, error, match):
    with pytest.raises(error, match=match):
        forward(q)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"out": "x"}, TypeError, "out: expected a tuple"),
        ({"out": GOOD}, ValueError, "overlaps"),
        ({"lse": 3}, TypeError, "lse: expected a tuple"),
        ({"sink": 3}, TypeError, "sink: expected a tuple"),
        ({"scale": "x"}, TypeError, "scale: expected a number, found str"),
        ({"scale": float("nan")}, ValueError, "scale"),
        ({"softcap": None}, TypeError, "softcap: expected a number, found NoneType"),
        ({"softcap": []}, TypeError, "softcap: expected a number, found list"),
        ({"backend": b"cpu"}, TypeError, "backend: expected a str, found bytes"),
        ({"threads": 1.5}, TypeError, "threads: expected an int"),
        ({"stream": None}, TypeError, "incompatible function arguments"),
        ({"stream": "0"}, TypeError, "stream: expected an int"),
    ],
)
def test_wrong_options(options, error, match):
    with pytest.raises(error, match=match):
        forward(**options)


def test_a_plan_must_be_a_plan():
    with pytest.raises(TypeError, match="lists: expected a _core.Plan, a tuple of indices .*, found Plan"):
        _core.forward(
            GOOD, GOOD, GOOD, keyhole.plan("causal", 4), GOOD, None, None, None, None, 0.0, 1.0, 0, "auto", 0, 0
        )


def test_numbers_may_be_of_numpy_and_shapes_of_torch():
    forward(scale=np.float32(0.5), threads=np.int64(1))
    torch = pytest.importorskip("torch")
    forward((POINTER, DTYPE, torch.Size(SHAPE), STRIDES, DEVICE))


def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises((RuntimeError, ValueError), match="GPU|CUDA"):
        forward((POINTER, 2, SHAPE, STRIDES, 63))


def test_kernel_for_forward():
    name = _core.kernel_for_forward(GOOD, GOOD, keyhole.plan("causal", 4).core, None, None, 0.0, "auto")
    assert name.startswith("cpu.forward.f32")


def test_other_threads_run_while_a_kernel_does():
    q = np.random.default_rng(0).standard_normal((1, 4, 2048, 64), dtype=np.float32)
    done = threading.Event()

    def compute():
        keyhole.attention(q, q, q, "causal")
        done.set()

    threading.Thread(target=compute).start()
    ticks = 0
    while not done.is_set() and ticks < 10_000:
        time.sleep(0.0005)
        ticks += 1
    assert ticks > 3, "the GIL was held while the kernel ran"


def test_stubs_name_what_there_is():
    stub = ast.parse((pathlib.Path(keyhole.__file__).parent / "_core.pyi").read_text(encoding="utf-8"))
    for where, body in ((_core, stub.body), (_core.Pattern, None), (_core.Plan, None)):
        if body is None:
            body = next(n.body for n in stub.body if isinstance(n, ast.ClassDef) and n.name == where.__name__)
        named = {n.name for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        named |= {n.target.id for n in body if isinstance(n, ast.AnnAssign)}
        assert {name for name in named if name[0] != "_"} == {name for name in dir(where) if name[0] != "_"}
