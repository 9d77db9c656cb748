# course/03_flash_fast/figure.py
"""limits.png: between which two limits each step runs, by arithmetic, and what an H200 reached (records/gpu).
timeline.png: who does what when in steps 5 to 7. Both come from programs that need no GPU."""

import re

from common.figure import COLORS, GREY, INK, new_figure, rows_of

KINDS = {"q": ("scores", COLORS[0]), "s": ("softmax", COLORS[1]), "v": ("output", COLORS[2])}
LAST_CLOCK = 7168


def draw(pyplot, programs, folder):
    return [draw_limits(pyplot, programs, folder), draw_timeline(pyplot, programs, folder)]


def measured_tflops(folder):
    """What each step reached, by the newest record: {step: TFLOP/s}."""
    record = max(folder.glob("*-h200-course.txt"))
    rows = re.findall(r"^\| (\d) \|[^|]+\| [\d.]+ \| ([\d.]+) \|", record.read_text(encoding="utf-8"), re.MULTILINE)
    return {int(step): float(tflops) for step, tflops in rows}


def draw_limits(pyplot, programs, folder):
    rows = rows_of(programs / "limits")
    figure, axes = new_figure(pyplot, height=3.8)
    for row in rows:
        low, high = row["TFLOPs_of_sum"], row["TFLOPs_of_largest"]
        axes.bar(row["step"], high - low, bottom=low, width=0.55, color=COLORS[0])
        axes.text(row["step"], high * 1.12, f"{high:.0f}", ha="center", color=INK, fontsize=9)
        axes.text(row["step"], low / 1.3, f"{low:.0f}", ha="center", color=INK, fontsize=9)
    measured = measured_tflops(folder.parents[1] / "records/gpu")
    beside = [step + 0.38 for step in measured]  # where no label is
    axes.plot(beside, list(measured.values()), "D", color=COLORS[1], markersize=5, label="measured")
    axes.legend(loc="upper left", frameon=False, fontsize=9, labelcolor=INK)
    axes.set(yscale="log", ylim=(3, 2500), xlabel="step", ylabel="TFLOP/s")
    axes.set_title(
        "top: everything overlaps; bottom: nothing does (an H200 at 1.7 GHz, by arithmetic)", color=INK, fontsize=10
    )
    axes.grid(False, axis="x")
    figure.savefig(folder / "limits.png", dpi=120)
    return "limits.png"


def draw_timeline(pyplot, programs, folder):
    rows = rows_of(programs / "timeline", "events")
    figure, axes = new_figure(pyplot, height=5.2)
    ticks, labels, y = [], [], 0
    for step, title in ((5, "step 5: all together"), (6, "step 6: roles"), (7, "step 7: overlap, turns")):
        axes.text(0, y - 0.75, title, color=INK, fontsize=9, fontweight="bold")
        for group in (0, 1):
            for threads in (False, True):
                for row in rows:
                    is_here = row["step"] == step and row["warpgroup"] == group
                    if is_here and (row["kind"] == "s") == threads and row["begin"] < LAST_CLOCK:
                        width = min(row["end"], LAST_CLOCK) - row["begin"]
                        axes.barh(
                            y, width, left=row["begin"], height=0.8, color=KINDS[row["kind"]][1], edgecolor="white"
                        )
                ticks.append(y)
                labels.append(f"warpgroup {group}, {'threads' if threads else 'products'}")
                y += 1
        y += 1
    for text, color in KINDS.values():
        axes.barh(-10, 1, color=color, label=text)
    axes.set(ylim=(y - 1.2, -1.6), xlim=(0, LAST_CLOCK), xlabel="clocks of one SM (simulated)")
    axes.set_yticks(ticks, labels, fontsize=8, color=INK)
    axes.grid(False, axis="y")
    axes.xaxis.set_major_locator(pyplot.MultipleLocator(1024))
    figure.legend(loc="outside upper right", ncols=3, frameon=False, fontsize=9, labelcolor=INK)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_color(GREY)
    figure.savefig(folder / "timeline.png", dpi=120)
    return "timeline.png"
