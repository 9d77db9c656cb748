# course/02_flash_minimal/figure.py
"""online.png: the state of one row over the tiles (online_softmax.cpp); memory beside q, k, v and out (flash.cpp)."""

from common.figure import COLORS, new_figure, rows_of


def draw(pyplot, programs, folder):
    figure, (row, memory) = new_figure(pyplot, columns=2)

    tiles = [line for line in rows_of(programs / "online_softmax", 40) if "tile" in line]
    numbers = [line["tile"] for line in tiles]
    row.step(numbers, [line["max"] for line in tiles], where="post", color=COLORS[1], label="maximum so far")
    row.plot(numbers, [line["lse"] for line in tiles], color=COLORS[0], label="lse = max + log(sum) so far")
    row.plot(numbers, [line["out"] for line in tiles], color=COLORS[2], label="out / sum so far")
    raised = [line for line in tiles[1:] if line["factor"] < 1]
    label = f"the maximum grew: rescaled, {len(raised)} of {len(tiles) - 1} times"
    row.plot([line["tile"] for line in raised], [line["max"] for line in raised], "v", color=COLORS[3], label=label)
    row.set(title="One row, 40 tiles of 16 keys", xlabel="tile")
    row.legend(frameon=False, fontsize=8, loc="upper right", bbox_to_anchor=(1, 0.5))

    sizes = rows_of(programs / "flash")
    lengths = [line["length"] for line in sizes]
    for name, text, color in (
        ("weights_kib", "the definition: weights, L × L", COLORS[1]),
        ("lse_kib", "flash: lse, for the backward pass", COLORS[2]),
        ("state_kib", "flash: state of one query tile", COLORS[0]),
    ):
        memory.loglog(lengths, [line[name] / 1024 for line in sizes], marker="o", color=color, label=text)
    memory.set(title="Memory beside q, k, v and out, one head", xlabel="tokens", ylabel="MiB")
    memory.set_xticks(lengths, [f"{length:,.0f}" for length in lengths], fontsize=8)
    memory.minorticks_off()
    memory.legend(frameon=False, fontsize=8)
    figure.savefig(folder / "online.png", dpi=120)
    return ["online.png"]
