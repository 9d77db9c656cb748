# course/07_measuring/figure.py
"""roofline.png: forms of attention below the limits of one core (roofline.cpp) and of an H200 (records/gpu)."""

import json

from common.figure import COLORS, GREY, INK, new_figure, rows_of

RECORDS = ("2026-11-15-h200-memory-peers.jsonl", "2026-11-16-h200-memory-keyhole.jsonl")
NAMES = {  # of a line of the records: (case, who)
    ("memory-dense", "naive"): "naive",
    ("memory-dense", "fa2"): "FlashAttention-2",
    ("memory-dense", "keyhole"): "Keyhole",
    ("memory-window", "keyhole"): "Keyhole, window(255)",
    ("memory-streaming", "keyhole"): "Keyhole, streaming",
}


def of_a_core(programs):
    """(FLOP/s, byte/s, points) of this machine, a point: (name, FLOP/byte, FLOP/s)."""
    rows = rows_of(programs / "roofline")
    limits = {row["limit"]: row["value"] * 1e9 for row in rows if "limit" in row}
    points = [(row["form"], row["FLOP_per_byte"], row["GFLOP_per_s"] * 1e9) for row in rows if "form" in row]
    return limits["multiply_adds"], max(limits["read"], limits["update"]), points


def of_an_h200(folder):
    """The same of the records of batch 16, 12 heads, 2048 tokens, head_dim 64: bytes are those that ncu counted."""
    lines = [json.loads(line) for name in RECORDS for line in (folder / name).read_text(encoding="utf-8").splitlines()]
    peaks = [line["peaks"] for line in lines if "peaks" in line]
    pairs = {line["case"]: line["pairs"] for line in lines if line["who"] == "mask" and "pairs" in line}
    points = []
    for (case, who), name in NAMES.items():
        own = {
            key: value
            for line in lines
            if (line.get("case"), line["who"]) == (case, who)
            for key, value in line.items()
        }
        flops = 4 * pairs[case] * 64 * 16 * 12
        points.append((name, flops / own["forward_dram_bytes"], flops / own["forward_ms"] * 1e3))
    return (
        max(peak["matmul_tflops"] for peak in peaks) * 1e12,
        max(peak["copy_tb_per_s"] for peak in peaks) * 1e12,
        points,
    )


def draw_roof(axes, flops, bytes_per_s, points, unit, unit_name, left, right, bottom):
    from matplotlib import ticker

    ridge = flops / bytes_per_s
    axes.loglog(
        (left, ridge, right),
        [min(flops, x * bytes_per_s) / unit for x in (left, ridge, right)],
        color=INK,
        linewidth=1.5,
    )
    for number, (name, intensity, rate) in enumerate(points):
        axes.plot(intensity, rate / unit, "o", color=COLORS[number % len(COLORS)])
        side = "right" if intensity * 6 > right else "left"
        shift = (-7 if side == "right" else 7, -3)
        axes.annotate(name, (intensity, rate / unit), shift, textcoords="offset points", ha=side, fontsize=8)
    label = f"{flops / unit:,.0f} {unit_name}"
    axes.annotate(label, (right, flops / unit), (0, 4), textcoords="offset points", ha="right", fontsize=8, color=GREY)
    axes.set(
        xlabel="FLOP per byte from memory",
        ylabel=unit_name,
        xlim=(left, right * 1.2),
        ylim=(bottom, flops / unit * 1.6),
    )
    axes.yaxis.set_major_locator(ticker.FixedLocator([number for number in (1, 10, 100, 1000) if bottom <= number]))
    axes.yaxis.set_major_formatter(ticker.FormatStrFormatter("%d"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())


def draw(pyplot, programs, folder):
    figure, (core, gpu) = new_figure(pyplot, columns=2)
    draw_roof(core, *of_a_core(programs), 1e9, "GFLOP/s", 0.2, 600, 0.7)
    core.set_title("One core of this machine, fp32")
    draw_roof(gpu, *of_an_h200(folder.parents[1] / "records/gpu"), 1e12, "TFLOP/s", 6, 2400, 20)
    gpu.set_title("An H200, bf16, 2,048 tokens")
    figure.savefig(folder / "roofline.png", dpi=120)
    return ["roofline.png"]
