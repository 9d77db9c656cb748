#!/usr/bin/env python3
# bench/plot.py RECORDS... --out FOLDER
# Takes the records of `keyhole bench ... --json RECORDS`, draws one figure for each suite in them, as
# PNG and SVG: runtime left (log-log), speed-up right. Or those of bench/peers/compare.py: time and
# speed-up against the length, forward and backward.
import argparse
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")  # no display needed

import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

sys.path.append(str(pathlib.Path(__file__).resolve().parent / "peers"))

from cases import OPERATIONS, is_about_memory
from records import grouped, read
from tables import dense_of, name_of

# Okabe and Ito's colours: told apart by all eyes. Markers differ too, for print.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (
    "#222222", "#E69F00", "#56B4E9", "#009E73", "#D9C400", "#0072B2", "#D55E00", "#CC79A7")
GREY = "#B8B8B8"

# The patterns a reader looks for; the others are drawn in grey behind them.
HIGHLIGHTED = {
    "dense": (BLACK, "o", "-"),
    "causal": (BLACK, "s", "--"),
    "longformer": (SKY, "D", "-"),
    "bigbird": (ORANGE, "^", "-"),
    "strided": (PINK, "v", "-"),
    "dilated": (GREEN, "P", "-"),
    "random": (YELLOW, "X", "-"),
    "window": (BLUE, "s", "-"),
    "streaming": (RED, "o", "-"),
}

PEERS = {"keyhole": RED, "flex": BLUE, "fa2": GREEN, "cudnn": BLACK}
FOLLOWED = "causal & window(1023)"  # the pattern whose times are drawn against the length, beside those of peers

STYLE = {
    "figure.facecolor": "white", "font.size": 10.5, "font.family": "DejaVu Sans",
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#666666",
    "axes.titlesize": 12, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.grid": True, "axes.axisbelow": True, "grid.color": "#E4E4E4", "grid.linewidth": 0.8,
    "legend.frameon": False, "legend.fontsize": 9.5, "lines.linewidth": 1.9, "lines.markersize": 6,
    "xtick.color": "#444444", "ytick.color": "#444444", "svg.hashsalt": "keyhole",
}


def tokens(length, _=None):
    """128, 512, 1K, 16K, 128K."""
    return f"{length / 1024:g}K" if length >= 1024 else f"{length:g}"


def plain(value, _=None):
    """A tick label without powers: 0.01, 1, 100, 10,000."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def length_axis(axes, lengths, label):
    axes.set_xscale("log", base=2)
    lengths = sorted(set(lengths))
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(tokens))
    axes.set_xlabel(label)


def log_axis(axes, label):
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(plain))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(label)


def speedup_axis(axes, top, label="speed-up over dense"):
    axes.set_yscale("log")
    ticks = [t for t in (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
             if t <= 1.6 * top]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}x"))
    axes.set_ylabel(label)
    axes.axhline(1, color="#888888", linewidth=1, linestyle=":")


def source_of(record):
    """Where and when it was measured."""
    machine = record["machine"]
    threads = f"{record['threads']} threads" if record["threads"] > 1 else "1 thread"
    threads += ", processor time" if record.get("clock") == "cpu" else ""
    place = f"{machine['cpu']}, {threads}, {machine['simd']}"
    if "gpu" in machine:
        place = f"{machine['gpu']}, {'cold' if record.get('cold') else 'warm'} cache"
    return f"{place} · commit {record['commit']} · {record['time'][:10]}"


def save(figure, folder, name, source, bottom=0.035):
    """As PNG and SVG, with what it was drawn from below."""
    figure.tight_layout(rect=(0, bottom, 1, 1))
    figure.text(0.008, 0.008, source, fontsize=7.5, color="#777777")
    figure.savefig(folder / f"{name}.png", dpi=160)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)
    return folder / f"{name}.png"


def series_of(records, key):
    groups = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    for group in groups.values():
        group.sort(key=lambda record: record["q_len"])
    return groups


def column(group, field):
    return [record[field] for record in group]


def draw_times(axes, group, field, line, **style):
    """The medians of a field, and the spread of the runs, p10 to p90."""
    lengths, times = column(group, "q_len"), column(group, field)
    axes.plot(lengths, column(times, "median"), line, **style)
    axes.fill_between(lengths, column(times, "p10"), column(times, "p90"), color=style["color"], alpha=0.15, linewidth=0)


def race_figure(groups, names, colors, dense_names, folder, name, title, length_label):
    """Dense and sparse side by side: one pair of lines for each group."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4))
    every = [record for group in groups.values() for record in group]
    for (key, group), color, marker, line in zip(groups.items(), colors, "os", ("-", "--")):
        draw_times(left, group, "dense_ms", line, color=BLACK, marker=marker, label=dense_names[key])
        draw_times(left, group, "ms", line, color=color, marker=marker, label=names[key])
        lengths, speedups = column(group, "q_len"), column(group, "speedup")
        right.plot(lengths, speedups, line, color=color, marker=marker, label=names[key])
        # Behind the end of the line; the higher label moves up and the lower one down, because two
        # lines often end together.
        is_higher = speedups[-1] >= max(g[-1]["speedup"] for g in groups.values())
        right.annotate(f"{speedups[-1]:.1f}x", (lengths[-1], speedups[-1]),
                       xytext=(8, 4 if is_higher else -4), textcoords="offset points", color=color,
                       ha="left", va="bottom" if is_higher else "top", fontsize=9.5, fontweight="bold")
    log_axis(left, "milliseconds")
    left.set_title(f"{title}: runtime")
    right.set_title("speed-up")
    speedup_axis(right, max(column(every, "speedup")))
    for axes in (left, right):
        length_axis(axes, column(every, "q_len"), length_label)
        axes.legend(loc="upper left")
    shortest, longest = right.get_xlim()
    right.set_xlim(shortest, longest * (longest / shortest) ** 0.07)  # room for the labels
    return save(figure, folder, name, source_of(every[0]))


def draw_streaming(records, folder):
    groups = series_of(records, lambda r: (r["heads"], r["head_dim"]))
    groups = dict(sorted(groups.items(), reverse=True))
    shapes = {key: f"{key[0]} heads of {key[1]}" if key[0] > 1 else f"1 head of {key[1]}" for key in groups}
    return race_figure(groups, {key: f"streaming, {shape}" for key, shape in shapes.items()}, (RED, ORANGE),
                       {key: f"dense causal, {shape}" for key, shape in shapes.items()}, folder, "streaming",
                       records[0]["pattern"], "sequence length T")


def draw_blocks(records, folder):
    groups = series_of(records, lambda r: r["suite"])
    names = {key: group[0]["pattern"] for key, group in groups.items()}
    dense = {"blocks": "dense", "blocks-causal": "dense causal"}
    return race_figure(groups, names, (BLUE, SKY), dense, folder, "blocks", names["blocks"],
                       "sequence length L")


def draw_sweep(records, folder):
    figure, (left, right) = plt.subplots(1, 2, figsize=(12.5, 5.4))
    groups = series_of(records, lambda r: r["name"])
    is_grey_named = False
    for name in sorted(groups, key=lambda n: n in HIGHLIGHTED):
        group = groups[name]
        color, marker, line = HIGHLIGHTED.get(name, (GREY, "", "-"))
        is_other = name not in HIGHLIGHTED
        label = name if not is_other else (None if is_grey_named else "other patterns")
        is_grey_named = is_grey_named or is_other
        style = dict(color=color, marker=marker, linestyle=line, label=label,
                     linewidth=1 if is_other else 1.9, zorder=2 if is_other else 3)
        left.plot(column(group, "q_len"), column(column(group, "ms"), "median"), **style)
        fast = [r for r in group if "speedup" in r]
        if not fast:
            continue
        right.plot(column(fast, "q_len"), column(fast, "speedup"), **style)
        guessed = [r for r in fast if not r["dense_is_measured"]]
        right.plot(column(guessed, "q_len"), column(guessed, "speedup"), "o", markersize=9,
                   fillstyle="none", color=color, linewidth=0, zorder=style["zorder"])
    first = records[0]
    log_axis(left, f"milliseconds, {first['operation']}")
    left.set_title(f"all patterns, {first['heads']} heads of {first['head_dim']}, {first['dtype']}: runtime")
    right.set_title("speed-up (ringed: dense time told from its rate)")
    speedup_axis(right, max(r.get("speedup", 1) for r in records))
    for axes in (left, right):
        length_axis(axes, column(records, "q_len"), "sequence length")
    labelled = dict(zip(*reversed(left.get_legend_handles_labels())))
    order = [label for label in (*HIGHLIGHTED, "other patterns") if label in labelled]
    figure.legend([labelled[label] for label in order], order, loc="lower center",
                  ncols=len(order), bbox_to_anchor=(0.5, 0.03), columnspacing=1.4, handlelength=2.2)
    return save(figure, folder, "sweep", source_of(first), bottom=0.085)


def draw_splash(records, folder):
    """Entmax or top-K beside softmax: time, keys that keep weight, memory."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.4))
    passes = sorted(series_of(records, lambda r: r["operation"]).items(), reverse=True)
    first = records[0]
    name = first["normalizer"]
    for (operation, group), line, marker in zip(passes, ("-", "--"), "os"):
        for prefix, color, who in (("softmax_", BLACK, "softmax"), ("", RED, name)):
            style = dict(color=color, marker=marker, label=f"{who}, {operation}")
            draw_times(left, group, f"{prefix}ms", line, **style)
            key = f"{prefix}besides_tensors_bytes"
            known = [(record["q_len"], record[key] / 2**20) for record in group if record.get(key)]
            right.plot([length for length, _ in known], [mib for _, mib in known], line, **style)
    group = passes[0][1]
    lengths = column(group, "q_len")
    middle.plot(lengths, column(group, "keys_per_query"), "-", color=BLACK, marker="o",
                label=f"{first['pattern']}: keys a query sees")
    middle.plot(lengths, column(group, "kept_per_row"), "-", color=RED, marker="o", label=f"{name}: keys that keep weight")
    for record in group:
        middle.annotate(f"{100 * record['kept_of_visible']:.2g} %",
                        (record["q_len"], record["kept_per_row"]), xytext=(0, 7),
                        textcoords="offset points", color=RED, ha="center", fontsize=8.5)
    right.plot(lengths, [record["support_bytes"] / 2**20 for record in group], "-", color=ORANGE, marker="D",
               label="support, kept between the passes")
    scores = [record["heads"] * record["q_len"] * record["k_len"] * 4 / 2**20 for record in group]
    right.plot(lengths, scores, ":", color=GREY, label="all scores in fp32, never stored")
    for axes, title, unit in ((left, "time", "milliseconds"), (middle, "keys of a query", "keys, mean of the queries"),
                              (right, "memory besides the tensors", "MiB")):
        log_axis(axes, unit)
        axes.set_title(title)
        length_axis(axes, lengths, "sequence length")
        axes.legend(loc="upper left", fontsize=8.5)
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * (high / low) ** (0.5 if axes is right else 0.3))  # room for the legend
    figure.suptitle(f"{name} beside softmax, {first['pattern']}, {first['heads']} heads of {first['head_dim']}, "
                    f"{first['dtype']}; normal q and k", x=0.008, ha="left", fontsize=11)
    return save(figure, folder, "splash", source_of(first))


def draw_peers(records, folder):
    """Of compare.py: time for one sequence of 16 heads, so that batches of several compare; speed-ups of the followed
    pattern. Gives the path of the figure, or None where the records have fewer than two lengths."""
    chosen = [c for c in grouped(records).values() if (c.heads, c.head_dim, c.dtype) == (16, 128, "bf16") and not is_about_memory(c)]
    chosen = [c for c in chosen if c.pattern in ("causal", FOLLOWED) and c.ms("keyhole", "forward")]
    if len({c.length for c in chosen}) < 2:
        return None
    figure, axes = plt.subplots(2, 2, figsize=(12, 9))
    for (left, right), operation in zip(axes, OPERATIONS):
        for pattern, line in (("causal", "--"), (FOLLOWED, "-")):
            for who, color in PEERS.items():
                points = [
                    (c.length, c.ms(who, operation) / c.batch) for c in chosen if c.pattern == pattern and c.ms(who, operation)
                ]
                if points:
                    left.plot(*zip(*sorted(points)), line, color=color, marker="o", label=f"{name_of(who)}, {pattern}")
        followed = [c for c in chosen if c.pattern == FOLLOWED]
        speedups = [1]
        for who, color in PEERS.items():
            on_causal = who != "flex"
            ratios = [(c.length, c.ratio(who, operation, other=dense_of(c, chosen) if on_causal else c)) for c in followed]
            ratios = sorted((length, ratio) for length, ratio in ratios if ratio)
            speedups += [ratio for _, ratio in ratios]
            if ratios:
                over = f"over {name_of(who)}, " + ("causal" if on_causal else "the same pattern")
                right.plot(*zip(*ratios), color=color, marker="o", label=over)
        left.set_title(f"16 heads of 128, {operation}: time")
        log_axis(left, "milliseconds a sequence")
        right.set_title(f"{operation}: speed-up of Keyhole")
        speedup_axis(right, max(speedups), "times as fast")
        for panel in (left, right):
            length_axis(panel, [c.length for c in chosen], "tokens")
    for at, panel in zip((0.28, 0.77), axes[0]):  # below each column, what its lines are
        figure.legend(*panel.get_legend_handles_labels(), loc="lower center", bbox_to_anchor=(at, 0.025), ncols=2, fontsize=8.5,
                      handlelength=3.6)  # long enough to tell a dashed line
    runs = [record for record in records if record["who"] == "run"]
    commits = ", ".join(dict.fromkeys(run["commit"].split()[0] for run in runs))
    source = "{machine} · torch {torch} · commit {commits} · {time:.10}".format(**runs[-1], commits=commits)
    return save(figure, folder, "peers_length", source, bottom=0.105)


def draw_all(records, folder):
    """The paths of the figures."""
    folder.mkdir(parents=True, exist_ok=True)
    plt.rcParams.update(STYLE)
    if "who" in records[0]:
        drawn = draw_peers(records, folder)
        return [drawn] if drawn else []
    figures = ((draw_streaming, ["streaming"]), (draw_blocks, ["blocks", "blocks-causal"]),
               (draw_sweep, ["sweep"]), (draw_splash, ["splash"]))
    chosen = [(draw, [record for record in records if record["suite"] in suites]) for draw, suites in figures]
    return [draw(found, folder) for draw, found in chosen if found]


def main():
    parser = argparse.ArgumentParser(description="Draws the records of `keyhole bench`, or of bench/peers/compare.py.")
    parser.add_argument("records", nargs="+")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/bench"))
    arguments = parser.parse_args()
    figures = draw_all(read(arguments.records), arguments.out)
    print(*figures or ["no figure: the records have fewer than two lengths, or no table that is drawn"], sep="\n")


if __name__ == "__main__":
    main()
