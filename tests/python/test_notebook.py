# tests/python/test_notebook.py
"""Every notebook runs from top to bottom, at a small size.

A notebook is a list of cells; running their code in one namespace and asking what a cell ends in for its picture, as a
notebook does, takes the lines below. A Jupyter kernel would add some twenty packages and a second process.
"""

import ast
import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What the cell with the tag "parameters" is set to, and what must be there to import.
NOTEBOOKS = {
    "examples/attention_benchmarks.ipynb": (
        {"LENGTHS": [64, 128], "HEADS": 2, "HEAD_DIM": 16, "SECONDS": 0.0},
        ["torch"],
    ),
    "course/01_attention/attention.ipynb": ({"LENGTHS": [64, 128], "LENGTH": 40, "HEAD_DIM": 16}, []),
    "course/04_patterns/patterns.ipynb": ({"LENGTHS": [64, 128], "LENGTH": 60, "HEADS": 1, "HEAD_DIM": 8}, []),
    "course/05_choosing_keys/choosing_keys.ipynb": ({"LENGTH": 64, "TOPICS": 4, "TOP_K": 8, "STEPS": 3}, []),
}


def run_cell(source, name, namespace):
    """Runs a cell; returns the value of its last line where that is an expression."""
    body = ast.parse(source, name).body
    last = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), name, "exec"), namespace)
    return None if last is None else eval(compile(last, name, "eval"), namespace)


def show(value):
    """What a notebook asks for; an object whose picture cannot be drawn fails here."""
    for name in ("_repr_html_", "_repr_svg_"):
        if hasattr(value, name):
            getattr(value, name)()
    return repr(value)


def code_cells(path):
    cells = json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]
    return [(number, cell) for number, cell in enumerate(cells) if cell["cell_type"] == "code"]


def run_notebook(path, small):
    """Runs its cells with `small` in place of its parameters; returns what they left."""
    namespace, parameters = {"__name__": "notebook"}, 0
    for number, cell in code_cells(path):
        show(run_cell("".join(cell["source"]), f"{path}, cell {number}", namespace))
        if "parameters" in cell["metadata"].get("tags", []):
            assert small.keys() <= namespace.keys(), "the cell with the tag 'parameters' sets other names"
            namespace.update(small)
            parameters += 1
    assert parameters == 1
    return namespace


@pytest.fixture(autouse=True)
def no_windows(monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    pyplot.switch_backend("Agg")
    yield
    pyplot.close("all")


def check_benchmarks(namespace):
    """All that was asked for was timed, and what is counted is what a query sees."""
    lengths = namespace["LENGTHS"]
    assert all(len(values) == len(lengths) for values in namespace["times"].values())
    assert namespace["kept"]["softmax"] == [(length + 1) / 2 for length in lengths]
    assert all(0 < few <= 8 for few in namespace["kept"]["entmax(1.5, top=8)"])


CHECKS = {"examples/attention_benchmarks.ipynb": check_benchmarks}


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_notebook_runs(path):
    small, needs = NOTEBOOKS[path]
    for package in needs:
        pytest.importorskip(package)
    namespace = run_notebook(path, small)
    if path in CHECKS:
        CHECKS[path](namespace)


def test_every_notebook_is_run():
    found = {
        path.relative_to(ROOT).as_posix() for top in ("examples", "course") for path in (ROOT / top).rglob("*.ipynb")
    }
    assert found == NOTEBOOKS.keys()


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_notebook_is_kept_without_outputs(path):
    """Outputs are of one machine and one day, and make differences that nobody can read."""
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for _, cell in code_cells(path))
