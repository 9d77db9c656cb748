# course/04_patterns/figure.py
"""The patterns of gallery.cpp as pictures, and the times of break_even.cpp over the length."""

import subprocess

from common.figure import COLORS, INK, WHITE, new_figure, rows_of

COLUMN = 35  # characters from one picture of gallery.cpp to the next
LONGEST = 8192


def draw(pyplot, programs, folder):
    draw_gallery(pyplot, programs / "gallery", folder / "gallery.png")
    draw_break_even(pyplot, programs / "break_even", folder / "break_even.png")
    return ["gallery.png", "break_even.png"]


def pictures_of(program):
    """(title, rows of '#' and '.') for each picture."""
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    for block in printed.split("\n\n"):
        titles, *lines = block.split("\n")
        if not lines or set(lines[0]) - set("#. "):
            continue  # the table
        for left in range(0, len(lines[0].rstrip()), COLUMN):
            rows = [line[left : left + COLUMN].split() for line in lines]
            yield titles[left : left + COLUMN].strip(), [[character == "#" for character in row] for row in rows]


def draw_gallery(pyplot, program, path):
    figure, panels = pyplot.subplots(3, 5, figsize=(8.2, 5.4), layout="constrained", facecolor=WHITE)
    colors = pyplot.matplotlib.colors.ListedColormap(["#f4f6f9", COLORS[0]])
    for panel, (title, rows) in zip(panels.flat, pictures_of(program), strict=True):
        panel.pcolormesh(rows, cmap=colors, vmin=0, vmax=1, edgecolors=WHITE)
        panel.invert_yaxis()
        panel.set_aspect("equal")
        panel.set_axis_off()
        panel.set_title(title, fontsize=8, color=INK)
    figure.supxlabel("key", fontsize=9, color=INK)
    figure.supylabel("query", fontsize=9, color=INK)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def draw_break_even(pyplot, program, path):
    rows = rows_of(program, LONGEST)
    times = [row for row in rows if "length" in row]
    found = {row["pattern"]: row["faster_at"] for row in rows if "pattern" in row}
    lengths = [row["length"] for row in times]
    figure, (axes, speed_ups) = new_figure(pyplot, width=9.6, columns=2)
    for name in times[0]:
        if name == "length":
            continue
        milliseconds = {row["length"]: row[name] for row in times}
        (line,) = axes.loglog(lengths, milliseconds.values(), marker="o", markersize=3.5, label=name.replace("_", " "))
        if found.get(name) in milliseconds:  # the shortest length from which on it is faster than causal
            ring = {"markersize": 11, "fillstyle": "none", "color": line.get_color()}
            axes.plot(found[name], milliseconds[found[name]], "o", **ring)
        speed_ups.loglog(lengths, [row["causal"] / row[name] for row in times], marker="o", markersize=3.5)
    for panel in (axes, speed_ups):
        panel.set_xscale("log", base=2)
        panel.set_xticks(lengths, [f"{length:,.0f}" for length in lengths], fontsize=8)
        panel.set_xlabel("tokens")
    axes.set_title("Time, ms of one thread; a ring: faster from here on", loc="left", fontsize=10, color=INK)
    axes.legend(frameon=False)
    speed_ups.set_title("Times as fast as causal attention", loc="left", fontsize=10, color=INK)
    ticks = (1, 2, 5, 10, 20, 50)
    speed_ups.set_yticks(ticks, [f"{tick}x" for tick in ticks])
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
