#!/usr/bin/env python3
# bench/peers/plots.py RECORDS... --out FOLDER
# Takes the records of compare.py, draws time and speed-up against the length and against the share of pairs kept, forward
# and backward, as PNG and SVG.
import argparse
import pathlib
import sys

from cases import OPERATIONS, is_about_memory, is_own
from records import grouped, read
from tables import LONG, dense_of, name_of

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

import plot  # bench/plot.py: its style and axes
from plot import BLACK, BLUE, GREEN, ORANGE, RED, plt

COLORS = {"keyhole": RED, "flex": BLUE, "fa2": GREEN, "cudnn": BLACK}
FOLLOWED = "causal & window(1023)"  # the pattern whose times are drawn against the length
LENGTHS = {16384: "s", LONG: "o"}  # whose cases are drawn against the share kept, and their markers


def panels(title):
    """[forward, backward][time, speed-up]."""
    figure, axes = plt.subplots(2, 2, figsize=(12, 9))
    for row, operation in zip(axes, OPERATIONS):
        row[0].set_title(f"{title}, {operation}: time")
        row[1].set_title(f"{operation}: speed-up of Keyhole")
    return figure, axes


def finish(figure, axes, speedups):
    """Scales, and below each column what its lines and points are."""
    for row, found in zip(axes, speedups):
        row[0].set_yscale("log")
        plot.log_axis(row[0].yaxis)
        plot.speedup_axis(row[1], max(found, default=1), "times as fast")
    for at, panel in zip((0.28, 0.77), axes[0]):
        figure.legend(*panel.get_legend_handles_labels(), loc="lower center", bbox_to_anchor=(at, 0.025), ncols=2, fontsize=8.5,
                      handlelength=3.6)  # long enough to tell a dashed line


def draw_length(cases, folder, source):
    """Time for one sequence of 16 heads, so that batches of several compare; speed-ups of the followed pattern."""
    chosen = [c for c in cases if (c.heads, c.head_dim, c.dtype) == (16, 128, "bf16") and not is_about_memory(c)]
    chosen = [c for c in chosen if c.pattern in ("causal", FOLLOWED) and c.ms("keyhole", "forward")]
    if len({c.length for c in chosen}) < 2:
        return None
    figure, axes = panels("16 heads of 128")
    speedups = [[], []]
    for row, operation, found in zip(axes, OPERATIONS, speedups):
        for pattern, line in (("causal", "--"), (FOLLOWED, "-")):
            for who, color in COLORS.items():
                points = [
                    (c.length, c.ms(who, operation) / c.batch) for c in chosen if c.pattern == pattern and c.ms(who, operation)
                ]
                if points:
                    label = f"{name_of(who)}, {pattern}"
                    row[0].plot(*zip(*sorted(points)), line, color=color, marker="o", label=label)
        followed = [c for c in chosen if c.pattern == FOLLOWED]
        for who, color in COLORS.items():
            on_causal = who != "flex"
            ratios = [(c.length, c.ratio(who, operation, other=dense_of(c, chosen) if on_causal else c)) for c in followed]
            ratios = sorted((length, ratio) for length, ratio in ratios if ratio)
            found += [ratio for _, ratio in ratios]
            if ratios:
                over = f"over {name_of(who)}, " + ("causal" if on_causal else "the same pattern")
                row[1].plot(*zip(*ratios), color=color, marker="o", label=over)
        for panel in row:
            plot.length_axis(panel, [c.length for c in chosen], "tokens")
        row[0].set_ylabel("milliseconds a sequence")
    finish(figure, axes, speedups)
    return plot.save(figure, folder, "peers_length", source, bottom=0.105)


def draw_kept_share(cases, folder, source):
    """Each case a point: Keyhole and FlexAttention on the pattern, the others on causal attention of the same length."""
    chosen = [c for c in cases if c.pairs and (c.batch, c.heads, c.head_dim, c.dtype) == (1, 16, 128, "bf16")]
    chosen = [c for c in chosen if c.length in LENGTHS and c.ms("keyhole", "forward") and not is_own(c)]
    sparse = sorted((c for c in chosen if not c.is_plain()), key=lambda c: c.kept())
    if not sparse:
        return None
    figure, axes = panels("1 x 16 heads of 128")
    speedups = [[], []]
    for row, operation, found in zip(axes, OPERATIONS, speedups):
        for length, marker in LENGTHS.items():
            here = [c for c in sparse if c.length == length]
            style = {"marker": marker, "linestyle": "", "markersize": 7}
            for who in ("keyhole", "flex"):
                points = [(c.kept(), c.ms(who, operation)) for c in here if c.ms(who, operation)]
                if points:
                    label = f"{name_of(who)}, {plot.tokens(length)} tokens"
                    row[0].plot(
                        *zip(*points), color=COLORS[who], fillstyle="full" if who == "keyhole" else "none", label=label, **style
                    )
            causal = next((c for c in chosen if c.pattern == "causal" and c.length == length), None)
            for who, color in (("flex", BLUE), ("cudnn", BLACK), ("keyhole", ORANGE)):
                other = None if who == "flex" else causal
                points = [(c.kept(), c.ratio(who, operation, other=other)) for c in here if who == "flex" or causal]
                points = [(kept, ratio) for kept, ratio in points if ratio]
                found += [ratio for _, ratio in points]
                if points:
                    over = f"over {name_of(who)}{'' if who == 'flex' else ' causal'}, {plot.tokens(length)} tokens"
                    row[1].plot(*zip(*points), color=color, label=over, **style)
        for panel in row:
            panel.set_xscale("log")
            plot.log_axis(panel.xaxis)
            panel.set_xlabel("pairs that attend, share of all")
        row[0].set_ylabel("milliseconds")
    finish(figure, axes, speedups)
    return plot.save(figure, folder, "peers_kept_share", source, bottom=0.105)


def draw(records, folder):
    """The figures that the records have enough for."""
    plt.rcParams.update(plot.STYLE)
    cases = list(grouped(records).values())
    runs = [record for record in records if record["who"] == "run"]
    commits = ", ".join(dict.fromkeys(run["commit"] for run in runs))
    source = "{machine} · torch {torch} · commit {commits} · {time:.10}".format(**runs[-1], commits=commits)
    drawn = [figure(cases, folder, source) for figure in (draw_length, draw_kept_share)]
    return [path for path in drawn if path]


def main():
    parser = argparse.ArgumentParser(description="Draws the records of compare.py.")
    parser.add_argument("records", nargs="+")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/peers"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for path in draw(read(arguments.records), arguments.out):
        print(path)


if __name__ == "__main__":
    main()
