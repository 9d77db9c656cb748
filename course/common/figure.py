# course/common/figure.py
"""What the chapters' figure.py share: the table that a program prints, and one look for all figures."""

import pathlib
import subprocess

COURSE = pathlib.Path(__file__).resolve().parents[1]
WHITE, INK, GREY = "#ffffff", "#222222", "#888888"
COLORS = ("#0b6e99", "#d9730d", "#0f7b6c", "#ad1a72", "#6940a5", "#9f6b53")


def rows_of(program, *arguments):
    """The rows of every table that `program` prints, as dicts. A table is a line of names and, below it, lines of as
    many words; names and values have no spaces in them. An empty line ends it."""
    run = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, check=True)
    rows, names = [], None
    for line in run.stdout.splitlines():
        words = line.split()
        if not words:
            names = None
        elif names is None or len(words) != len(names):
            names = words if len(words) > 1 else None
        else:
            rows.append({name: number(word) for name, word in zip(names, words, strict=True)})
    return rows


def number(word):
    try:
        return float(word)
    except ValueError:
        return word


def new_figure(pyplot, width=8.0, height=4.2, columns=1):
    """A figure with `columns` panels beside each other."""
    figure, axes = pyplot.subplots(1, columns, figsize=(width, height), layout="constrained", facecolor=WHITE)
    for panel in [axes] if columns == 1 else axes:
        panel.set_facecolor(WHITE)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(True, which="major", color="#e6e6e6", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.set_prop_cycle(color=COLORS)
        panel.tick_params(colors=INK)
    return figure, axes
