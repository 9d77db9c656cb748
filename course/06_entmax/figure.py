# course/06_entmax/figure.py
"""Left: the weights of 13 scores for four alphas. Right: how many of 1,024 keys keep weight, by alpha."""

from common.figure import GREY, new_figure, rows_of


def draw(pyplot, programs, folder):
    rows = rows_of(programs / "alpha")
    weights = [row for row in rows if "score" in row]
    supports = [row for row in rows if "kept" in row]

    figure, (left, right) = new_figure(pyplot, columns=2)
    scores = [row["score"] for row in weights]
    for alpha in ("1", "1.25", "1.5", "2"):
        left.plot(scores, [row[f"alpha_{alpha}"] for row in weights], marker=".", label=f"alpha {alpha}")
    left.axhline(0, color=GREY, linewidth=0.8)
    left.set(title="Weights of 13 scores", xlabel="score", ylabel="weight")
    left.legend(frameon=False)

    alphas = [row["alpha"] for row in supports]
    for column, label in (("kept", "normal scores"), ("kept_x4", "scores x 4")):
        right.plot(alphas, [row[column] for row in supports], marker=".", label=label)
    right.set_yscale("log")
    right.set(title="Keys that keep weight, of 1,024", xlabel="alpha", ylabel="keys (mean of 32 rows)")
    right.legend(frameon=False)

    figure.savefig(folder / "entmax.png", dpi=120)
    pyplot.close(figure)
    return ["entmax.png"]
