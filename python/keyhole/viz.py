# python/keyhole/viz.py
"""Figures drawn with matplotlib: patterns, and time against length. `pip install 'keyhole[viz]'` installs it.

Without matplotlib, `keyhole show` draws a pattern as text, SVG, PNG or a web page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .pattern import PatternLike, as_pattern

try:
    from matplotlib import pyplot
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
except ImportError as error:
    raise ImportError(
        "keyhole.viz needs matplotlib, which cannot be imported here; install it (pip install 'keyhole[viz]'), or draw "
        "without it: print(pattern.picture(16)), or `keyhole show PATTERN --svg FILE`"
    ) from error

__all__ = ["draw_pattern", "draw_patterns", "draw_times"]

Patterns = Mapping[str, PatternLike] | Sequence[PatternLike]

_MOST_PAIRS = 1 << 24  # more than a figure has pixels
_MOST_LINED = 48  # tokens; grid lines separate the pairs up to this length
_COLOURS = ListedColormap(["#f4f6f9", "#2166c4"])  # the colours of `keyhole show`


def draw_pattern(
    pattern: PatternLike,
    q_len: int,
    k_len: int | None = None,
    *,
    batch: int = 0,
    head: int = 0,
    title: str | None = None,
    ax: Any = None,
) -> Any:
    """Draws a pattern as a matrix of pairs: queries down, keys to the right; blue attends.

    pattern     a pattern or its text
    q_len, k_len
                the number of queries and keys; k_len is q_len by default
    batch, head
                the batch entry and head to draw, for patterns that differ between them
    title       the pattern's text by default
    ax          the matplotlib Axes to draw on; new ones by default
    returns     the Axes

    >>> import keyhole.viz
    >>> keyhole.viz.draw_pattern("causal & window(3)", 16).get_title(loc="left")
    'causal & window(3)'
    """
    pattern = as_pattern(pattern)
    k_len = q_len if k_len is None else k_len
    if q_len * k_len > _MOST_PAIRS:
        raise ValueError(
            f"draw_pattern: {q_len} x {k_len} pairs; at most {_MOST_PAIRS} are drawn. Pass smaller lengths, or zoom "
            "in on the page that `keyhole show PATTERN --html FILE` writes"
        )
    if ax is None:
        size = (4.6, 4.2 * max(q_len, 1) / max(k_len, 1) + 0.6)
        ax = pyplot.figure(figsize=size, layout="constrained").add_subplot()
    allowed = pattern.mask(q_len, k_len, batch=batch, head=head)
    # Cell edges are at whole numbers, so tick n marks where token n begins.
    ax.imshow(allowed, cmap=_COLOURS, vmin=0, vmax=1, extent=(0, k_len, q_len, 0), interpolation="nearest")
    if max(q_len, k_len) <= _MOST_LINED:
        ax.set_xticks(range(k_len + 1), minor=True)
        ax.set_yticks(range(q_len + 1), minor=True)
        ax.grid(which="minor", color="white", linewidth=0.8)
        ax.tick_params(which="minor", length=0)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(8, integer=True))
    ax.set_xlabel("keys")
    ax.set_ylabel("queries")
    ax.set_title(str(pattern) if title is None else title, fontsize="medium", loc="left")
    return ax


def draw_patterns(patterns: Patterns, q_len: int, k_len: int | None = None, *, columns: int = 4) -> Any:
    """Several patterns side by side.

    patterns    a mapping from names to patterns, or a sequence of patterns, which are named by their text
    columns     the largest number of patterns in a row
    returns     the matplotlib Figure
    """
    named = patterns if isinstance(patterns, Mapping) else {str(as_pattern(p)): p for p in patterns}
    if not named:
        raise ValueError("draw_patterns: no patterns were passed; expected one or more")
    columns = min(columns, len(named))
    rows = -(-len(named) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(2.9 * columns, 3.1 * rows), squeeze=False, layout="constrained"
    )
    for (name, pattern), ax in zip(named.items(), axes.flat, strict=False):
        draw_pattern(pattern, q_len, k_len, title=name, ax=ax)
    for ax in axes.flat[len(named) :]:
        ax.remove()
    for ax in figure.axes:
        ax.label_outer()
    return figure


def draw_times(
    lengths: Sequence[int],
    times: Mapping[str, Sequence[float | None]],
    *,
    relative_to: str | None = None,
    title: str | None = None,
    ax: Any = None,
) -> Any:
    """Draws time against length, one line per name, with logarithmic axes.

    lengths     in tokens
    times       name -> milliseconds, one for each length; None or nan where there is no measurement
    relative_to a name in `times`: draws the speedup over that one instead of milliseconds
    returns     the Axes

    >>> import keyhole.viz
    >>> times = {"dense": [4.0, 16.0], "window": [2.0, 4.0]}
    >>> keyhole.viz.draw_times([1024, 2048], times, relative_to="dense").get_ylabel()
    'times as fast as dense'
    """
    for name, values in times.items():
        if len(values) != len(lengths):
            raise ValueError(
                f"draw_times: {name} has {len(values)} times for {len(lengths)} lengths; expected one for each"
            )
    if relative_to is not None and relative_to not in times:
        raise ValueError(
            f"draw_times: relative_to is {relative_to!r}; accepted are the names of times: {', '.join(times)}"
        )
    ax = pyplot.figure(figsize=(6.4, 4.2), layout="constrained").add_subplot() if ax is None else ax
    drawn = {name: [float("nan") if value is None else value for value in values] for name, values in times.items()}
    for name, shown in drawn.items():
        if relative_to is not None:
            shown = [base / value for base, value in zip(drawn[relative_to], shown, strict=True)]
        ax.plot(lengths, shown, marker="o", label=name)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(sorted(set(lengths)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda length, _: f"{length:,.0f}"))
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.grid(color="#e4e4e4")
    ax.set_axisbelow(True)
    ax.set_xlabel("tokens")
    ax.set_ylabel("milliseconds" if relative_to is None else f"times as fast as {relative_to}")
    ax.set_title(title or "", loc="left")
    ax.legend(frameon=False)
    return ax
