# course/05_choosing_keys/figure.py
"""The mass that k keys keep: for scores of several kinds, and for several ways of choosing."""

from common.figure import COLORS, GREY, INK, new_figure, rows_of

KINDS = {
    "peaked": "8 high peaks",
    "normal_3": "deviation 3",
    "topics": "topics",
    "normal_1": "deviation 1",
    "flat": "equal",
}
WAYS = {
    "best": "exact scores",
    "off_by_1": "scores off by 1",
    "off_by_3": "scores off by 3",
    "pooled_16": "means of 16 keys",
    "pooled_64": "means of 64 keys",
    "nearest": "nearest keys",
    "random": "random keys",
}


def draw(pyplot, programs, folder):
    rows = rows_of(programs / "keeps_and_misses")
    figure, (left, middle, right) = new_figure(pyplot, width=11, height=4.3, columns=3)
    panels = (
        (left, "k", KINDS, "five kinds of scores: the best k keep", "mass kept"),
        (middle, "k_mass", WAYS, "topics: chosen by", "mass kept"),
        (right, "k_needle", WAYS, "a needle in topics: chosen by", "rows that keep the needle"),
    )
    for panel, column, names, title, label in panels:
        table = [row for row in rows if column in row]
        for number, (name, text) in enumerate(names.items()):
            line = f"{'osD^vP*'[number]}-"
            # Black lines have their names beside them, coloured ones in the legend.
            color = INK if panel is left else (*COLORS, GREY)[number]
            panel.plot(
                [row[column] for row in table], [row[name] for row in table], line, color=color, ms=4, label=text
            )
        panel.set_xscale("log", base=2)
        panel.set_xticks([row[column] for row in table], [f"{row[column]:.0f}" for row in table])
        panel.set_ylim(-0.02, 1.04)
        panel.set(title=title, xlabel="k", ylabel=label)
    # Beside the lines, which leave no room for a legend: of which row of the table, and how far from the point.
    places = ((0, 4, -12), (1, 8, -8), (0, 4, -12), (3, 8, -8), (4, 8, -10))
    for (row, x, y), name in zip(places, KINDS, strict=True):
        point = [line for line in rows if "flat" in line][row]
        left.annotate(KINDS[name], (point["k"], point[name]), (x, y), textcoords="offset points", fontsize=8)
    handles, labels = middle.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=7, fontsize=8, frameon=False, columnspacing=1)
    figure.savefig(folder / "mass_kept.png", dpi=90)
    pyplot.close(figure)
    return ["mass_kept.png"]
