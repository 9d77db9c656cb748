# tests/python/test_course.py
"""The course has what it promises, and the judge of what its programs print can say no."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

COURSE = pathlib.Path(__file__).resolve().parents[2] / "course"
CHAPTERS = sorted(path.name for path in COURSE.glob("[0-9]*"))
PROGRAMS = sorted(path.relative_to(COURSE).as_posix() for path in COURSE.glob("[0-9]*/*.c[pu]*"))


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


expect = load(COURSE / "common/expect.py")


@pytest.mark.parametrize(
    ("expected", "printed", "fits"),
    [
        ("a b", "a   b ", True),
        ("a b", "a c", False),
        ("t = <n> ms", "t = 1.25e-3 ms", True),
        ("t = <n> ms", "t = none ms", False),
        ("<1..2>", "1.5", True),
        ("<1..2>", "2.5", False),
        ("<1..2>", "nan", False),
        ("<..1e-6>", "3e-7", True),
        ("<..1e-6>", "3e-5", False),
        ("<-2..-1> <n>", "-1.5 inf", True),
        ("<0..>", "-1", False),
        ("sum (a+b)", "sum (a+b)", True),
    ],
)
def test_expected_line(expected, printed, fits):
    assert expect.fits(expected, printed) == fits


@pytest.mark.parametrize(
    ("expected", "printed", "agree"),
    [
        ("a\n...\nc", "a\nb\nb\nc", True),
        ("a\n...\nc", "a\nc", True),
        ("a\n...\nc", "a\nb", False),
        ("a\n...", "a\nb\nc", True),
        ("a", "a\nb", False),
        ("a\nb", "a", False),
    ],
)
def test_expected_text(expected, printed, agree):
    assert (expect.first_difference(expected.split("\n"), printed.split("\n")) is None) == agree


@pytest.mark.parametrize(
    ("expected", "program", "status", "message"),
    [
        ("a\n", "print('a')", 0, ""),
        ("a\n", "print('b')", 1, "but the program printed"),
        ("a\n", "print('a'); raise SystemExit(3)", 1, "ended with status 3, not 0"),
        ("a\nexit 3\n", "print('a'); raise SystemExit(3)", 0, ""),
        ("a\nexit 1\n", "print('a')", 1, "ended with status 0, not 1"),
        ("a\n", "print('no GPU here'); raise SystemExit(77)", 77, ""),
    ],
)
def test_expect_runs_a_program(tmp_path, expected, program, status, message):
    (tmp_path / "a.expected").write_text(expected)
    command = [sys.executable, COURSE / "common/expect.py", tmp_path / "a.expected", sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == status
    assert message in run.stderr


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_chapter_is_whole(chapter):
    text = (COURSE / chapter / "README.md").read_text(encoding="utf-8")
    assert re.search(r"^## .*[Qq]uestions", text, re.MULTILINE), "no questions"
    assert re.search(r"^## Change this and predict", text, re.MULTILINE), "no tasks"
    pictures = [path.name for path in (COURSE / chapter).glob("*.png")]
    assert pictures, "no figure"
    assert all(name in text for name in pictures), "a figure that the text does not show"
    assert (COURSE / chapter / "figure.py").is_file(), "nothing draws its figure"
    programs = [name for name in PROGRAMS if name.startswith(chapter + "/")]
    assert programs
    assert [name for name in programs if pathlib.Path(name).name not in text] == [], (
        "programs that the text does not name"
    )
    assert chapter in (COURSE / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_is_short_and_has_its_output(program):
    path = COURSE / program
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 150
    assert path.with_suffix(".expected").is_file()


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in COURSE.glob("exercises/*/tests.cpp")))
def test_exercise_is_whole(folder):
    exercise = COURSE / "exercises" / folder
    for name in ("README.md", "skeleton/exercise.h", "solution/exercise.h", "skeleton.expected", "solution.expected"):
        assert (exercise / name).is_file(), name
    assert re.search(r"^exit [1-9]", (exercise / "skeleton.expected").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_roofline_finds_its_records(monkeypatch):
    """Records are made smaller now and then; a figure that reads them must still find what it draws."""
    monkeypatch.syspath_prepend(str(COURSE))
    figure = load(COURSE / "07_measuring/figure.py")
    flops, bytes_per_s, points = figure.of_an_h200(COURSE.parent / "records/gpu")
    assert flops > bytes_per_s > 0
    assert len(points) == len(figure.NAMES)


def test_learning(capsys):
    """The model that learns what to look at, for a few steps: it counts what it should; learning takes longer."""
    pytest.importorskip("torch")
    rows = load(COURSE / "05_choosing_keys/learn.py").main(steps=6, length=96, top_k=4)
    printed = capsys.readouterr().out
    assert len(rows) == 7
    assert all(row["keys"] in printed for row in rows)
    assert rows[0]["seen"] == 1  # dense
    assert [rows[0]["multiplications"], rows[3]["multiplications"]] == [6208, 2056]
    assert all(0 <= row["find"] <= 1 and 0 <= row["theme"] <= 1 for row in rows)
