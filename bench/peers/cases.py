# bench/peers/cases.py
# Lists of the repository in, cases and bars out: bench/cases/gpu.txt and bench/cases/gpu_bars.txt.
import fnmatch
import pathlib
from typing import NamedTuple

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "cases"
CASE_FILE = FOLDER / "gpu.txt"
BAR_FILE = FOLDER / "gpu_bars.txt"
OURS = ("keyhole", "deterministic", "sm80")  # whose times a bar may judge; the others are peers
OPERATIONS = ("forward", "backward")
PASSES = {"forward": ("forward",), "backward": ("backward",), "both": OPERATIONS}
TIMINGS = {"queued": "_ms", "paused": "_paused_ms", "waited": "_waited_ms"}  # how a field of a record ends
PER = ("call", "pair", "visited")  # what a time is divided by: see the head of the bars' list


class Case(NamedTuple):
    name: str
    batch: int
    heads: int
    length: int
    head_dim: int
    dtype: str
    pattern: str


class Bar(NamedTuple):
    """How many times as fast as `against` on the case `on` (empty: on the same case) `who` has to be."""

    who: str
    against: str
    on: str
    passes: str
    timing: str
    per: str
    least: float
    names: str

    def holds_for(self, name):
        return matches(name, self.names)


def is_about_memory(case):
    """A case, or its records; the head of the cases' list says what names tell."""
    return case.name.startswith("memory-")


def is_own(case):
    return case.name.startswith("own-")


def has_nan(case):
    return case.name.endswith("-nan")


def matches(name, words):
    """Whether it is one of the comma-separated words; * stands for anything."""
    return any(fnmatch.fnmatchcase(name, word) for word in words.split(","))


def read_lines(path, columns):
    """The lines of a list, each split into that many columns; the last is the rest of the line."""
    with open(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip() or line.startswith("#"):
                continue
            words = line.split(None, columns - 1)
            if len(words) < columns:
                raise SystemExit(f'{path}, line {number} is "{line.strip()}"; expected {columns} columns')
            yield [word.strip() for word in words]


def read_cases(path=CASE_FILE, only="*"):
    """Those whose name matches one of the comma-separated `only`, of those that have as many keys and kv heads as queries."""
    cases = [
        Case(name, int(batch), int(heads), int(length), int(head_dim), dtype, pattern)
        for name, batch, heads, length, head_dim, dtype, pattern in read_lines(path, 7)
        if ":" not in heads + length
    ]
    chosen = [case for case in cases if matches(case.name, only)]
    if not chosen:
        raise SystemExit(f'no case of {path} is named "{only}"; there are {", ".join(case.name for case in cases)}')
    return chosen


def read_bars(path=BAR_FILE):
    bars = []
    for who, against, passes, timing, per, least, names in read_lines(path, 7):
        for word, known in ((who, OURS), (passes, PASSES), (timing, TIMINGS), (per, PER)):
            if word not in known:
                raise SystemExit(f"{path}: {who} {against} {passes} {timing} {per}: {word} is none of {', '.join(known)}")
        against, _, on = against.partition("@")
        dividend, _, divisor = least.partition("/")
        bars.append(Bar(who, against, on, passes, timing, per, float(dividend) / float(divisor or 1), names))
    return bars


def most_telling_first(cases, bars):
    """In the order of the bars that name them; those without a bar last."""

    def rank(case):
        return next((at for at, bar in enumerate(bars) if bar.holds_for(case.name)), len(bars))

    return sorted(cases, key=rank)
