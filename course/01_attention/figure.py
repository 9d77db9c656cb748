# course/01_attention/figure.py
"""quadratic.png: time and memory of attention as the sequence grows, by quadratic.cpp."""

from common.figure import COLORS, GREY, new_figure, rows_of


def draw(pyplot, programs, folder):
    # The shortest of five runs for each point: whatever else the machine does makes a run longer.
    runs = [rows_of(programs / "quadratic", 4096) for _ in range(5)]
    rows = [min(points, key=lambda row: row["naive_ms"]) for points in zip(*runs, strict=True)]
    keyhole_ms = [min(row["keyhole_ms"] for row in points) for points in zip(*runs, strict=True)]
    lengths = [row["length"] for row in rows]
    figure, (time, memory) = new_figure(pyplot, columns=2)

    fourfold = [rows[-1]["naive_ms"] * (length / lengths[-1]) ** 2 for length in lengths]
    time.loglog(lengths, fourfold, color=GREY, linestyle=":", label="twice the length, 4 times the time")
    time.loglog(lengths, [row["naive_ms"] for row in rows], marker="o", color=COLORS[1], label="the definition")
    time.loglog(lengths, keyhole_ms, marker="o", color=COLORS[0], label="Keyhole, dense")
    time.set(title="Time of one head, one thread", ylabel="ms")

    memory.loglog(
        lengths, [row["weights_mib"] for row in rows], marker="o", color=COLORS[1], label="the weights, L × L"
    )
    measured = [(row["length"], row["naive_mib"]) for row in rows if row["naive_mib"] >= 0.5]
    if measured:
        memory.loglog(*zip(*measured, strict=True), linestyle="", marker="x", color=COLORS[3], label="measured")
    memory.loglog(lengths, [row["tensors_mib"] for row in rows], marker="o", color=COLORS[0], label="q, k, v and out")
    memory.set(title="Memory of one head, fp32", ylabel="MiB")

    for panel in (time, memory):
        panel.set_xlabel("tokens")
        panel.set_xticks(lengths, [f"{length:,.0f}" for length in lengths])
        panel.minorticks_off()
        panel.legend(frameon=False, fontsize=8)
    figure.savefig(folder / "quadratic.png", dpi=120)
    return ["quadratic.png"]
