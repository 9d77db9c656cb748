# tests/python/test_notebook.py
"""examples/attention_benchmarks.ipynb runs from top to bottom, at a small size.

A notebook is a list of cells; running their code in one namespace and asking what a cell ends in for its picture, as a
notebook does, takes the lines below. A Jupyter kernel would add some twenty packages and a second process.
"""

import ast
import json
import pathlib

import pytest

NOTEBOOK = pathlib.Path(__file__).resolve().parents[2] / "examples/attention_benchmarks.ipynb"
SMALL = {"LENGTHS": [64, 128], "HEADS": 2, "HEAD_DIM": 16, "SECONDS": 0.0}


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


@pytest.fixture(scope="module")
def notebook():
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))


def test_notebook_runs(notebook, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    namespace, parameters = {"__name__": "notebook"}, 0
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        show(run_cell("".join(cell["source"]), f"{NOTEBOOK.name}, cell {number}", namespace))
        if "parameters" in cell["metadata"].get("tags", []):
            assert SMALL.keys() <= namespace.keys(), "the cell with the tag 'parameters' sets other names"
            namespace.update(SMALL)
            parameters += 1
    assert parameters == 1
    assert all(len(values) == len(SMALL["LENGTHS"]) for values in namespace["times"].values())
    kept = namespace["kept"]
    assert kept["softmax"] == [(length + 1) / 2 for length in SMALL["LENGTHS"]]  # all that a query sees
    assert all(0 < few <= 8 for few in kept["entmax(1.5, top=8)"])
    namespace["viz"].pyplot.close("all")


def test_notebook_is_kept_without_outputs(notebook):
    """Outputs are of one machine and one day, and make differences that nobody can read."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
