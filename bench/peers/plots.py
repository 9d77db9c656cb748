#!/usr/bin/env python3
# bench/peers/plots.py RECORDS... --out FOLDER
# Takes the records of compare.py, draws time and speed-up against the length, forward and backward, as PNG and SVG.
import argparse
import pathlib
import sys

from cases import OPERATIONS, is_about_memory
from records import grouped, read
from tables import dense_of, name_of

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

import plot  # bench/plot.py: its style and axes
from plot import BLACK, BLUE, GREEN, RED, plt

COLORS = {"keyhole": RED, "flex": BLUE, "fa2": GREEN, "cudnn": BLACK}
FOLLOWED = "causal & window(1023)"  # the pattern whose times are drawn against the length


def draw(records, folder):
    """Time for one sequence of 16 heads, so that batches of several compare; speed-ups of the followed pattern. Gives the
    path of the figure, or None where the records have fewer than two lengths."""
    plt.rcParams.update(plot.STYLE)
    chosen = [c for c in grouped(records).values() if (c.heads, c.head_dim, c.dtype) == (16, 128, "bf16") and not is_about_memory(c)]
    chosen = [c for c in chosen if c.pattern in ("causal", FOLLOWED) and c.ms("keyhole", "forward")]
    if len({c.length for c in chosen}) < 2:
        return None
    figure, axes = plt.subplots(2, 2, figsize=(12, 9))
    for (left, right), operation in zip(axes, OPERATIONS):
        for pattern, line in (("causal", "--"), (FOLLOWED, "-")):
            for who, color in COLORS.items():
                points = [
                    (c.length, c.ms(who, operation) / c.batch) for c in chosen if c.pattern == pattern and c.ms(who, operation)
                ]
                if points:
                    left.plot(*zip(*sorted(points)), line, color=color, marker="o", label=f"{name_of(who)}, {pattern}")
        followed = [c for c in chosen if c.pattern == FOLLOWED]
        speedups = [1]
        for who, color in COLORS.items():
            on_causal = who != "flex"
            ratios = [(c.length, c.ratio(who, operation, other=dense_of(c, chosen) if on_causal else c)) for c in followed]
            ratios = sorted((length, ratio) for length, ratio in ratios if ratio)
            speedups += [ratio for _, ratio in ratios]
            if ratios:
                over = f"over {name_of(who)}, " + ("causal" if on_causal else "the same pattern")
                right.plot(*zip(*ratios), color=color, marker="o", label=over)
        left.set_title(f"16 heads of 128, {operation}: time")
        plot.log_axis(left, "milliseconds a sequence")
        right.set_title(f"{operation}: speed-up of Keyhole")
        plot.speedup_axis(right, max(speedups), "times as fast")
        for panel in (left, right):
            plot.length_axis(panel, [c.length for c in chosen], "tokens")
    for at, panel in zip((0.28, 0.77), axes[0]):  # below each column, what its lines are
        figure.legend(*panel.get_legend_handles_labels(), loc="lower center", bbox_to_anchor=(at, 0.025), ncols=2, fontsize=8.5,
                      handlelength=3.6)  # long enough to tell a dashed line
    runs = [record for record in records if record["who"] == "run"]
    commits = ", ".join(dict.fromkeys(run["commit"].split()[0] for run in runs))
    source = "{machine} · torch {torch} · commit {commits} · {time:.10}".format(**runs[-1], commits=commits)
    return plot.save(figure, folder, "peers_length", source, bottom=0.105)


def main():
    parser = argparse.ArgumentParser(description="Draws the records of compare.py.")
    parser.add_argument("records", nargs="+")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/peers"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(draw(read(arguments.records), arguments.out) or "no figure: the records have fewer than two lengths")


if __name__ == "__main__":
    main()
