# bench/peers/program.py
# Records of `keyhole bench --json` in, its tables for a document out, as rows: the classic ones and the break-even table, the
# figures of the single cases, and what a cold second-level cache costs them. Several runs may stand in one file.
from cases import OPERATIONS  # suites of single cases


def is_of_program(records):
    """Whether these are records of `keyhole bench`, which say which table they are of."""
    return all("suite" in record for record in records)


def is_cold(record):
    return record.get("cold", False)


def figures(value):
    """Four, as the program prints milliseconds: 0.123, 12.34, 1234."""
    return f"{value:.{max(0, 4 - max(1, len(str(int(value)))))}f}"


def speedup(value):
    return "-" if value is None else f"{value:.{2 if value < 10 else 1}f}"


def columns_of(record):
    """What a classic table has side by side: "streaming(16, 64), 6 heads of 64"."""
    heads = "1 head" if record["heads"] == 1 else f"{record['heads']} heads"
    return f"{record['pattern']}, {heads} of {record['head_dim']}"


def classic_table(records):
    """One row a length: dense and sparse ms, and how many times as fast sparse is, of each pattern and shape."""
    by_place = {(record["q_len"], columns_of(record)): record for record in records}
    titles = list(dict.fromkeys(title for _, title in by_place))
    rows = [["tokens", *(word for title in titles for word in (f"{title}: dense ms", "sparse ms", "speed-up"))]]
    for length in sorted({length for length, _ in by_place}):
        row = [f"{length:,}"]
        for title in titles:
            record = by_place.get((length, title))
            row += (
                [figures(record["dense_ms"]["median"]), figures(record["ms"]["median"]), speedup(record["speedup"])]
                if record
                else ["-"] * 3
            )
        rows.append(row)
    return rows


def break_even_table(records):
    if not records:
        return [[]]
    first, last = (f"{records[0][field]:,}" for field in ("first_len", "last_len"))
    rows = [["pattern", "beats dense from", "there", "keeps there", f"at {first}", f"at {last}"]]
    for record in records:
        found = record["break_even"]
        there = [f"{found:,}", speedup(record["speedup"])] if found else [f"never up to {last}", "-"]
        ends = (speedup(record.get(f"speedup_at_{end}")) for end in ("first", "last"))
        rows.append([record["pattern"], *there, f"{100 * record['kept_of_dense']:.1f} %", *ends])
    return rows


def figures_table(records):
    """Useful TFLOP/s and GB/s with their shares of what this machine was measured to do, and the most memory in use."""
    rows = [
        ["case", "pass", "kernel", "ms", "TFLOP/s", "of peak", "GB/s", "of copy", "memory MB", "of it besides tensors"],
    ]
    for record in records:
        shares = [f"{100 * record[field]:.1f} %" for field in ("of_peak", "of_copy")]
        sizes = [f"{record[field] / 1e6:,.1f}" for field in ("peak_bytes", "extra_bytes")]
        rates = [f"{record['gflops'] / 1e3:.1f}", shares[0], f"{record['gbps']:,.0f}", shares[1]]
        rows.append([record["case"], record["suite"], record["kernel"], figures(record["ms"]["median"]), *rates, *sizes])
    return rows


def cold_table(warm, cold):
    """The same cases with their tensors in the second-level cache as the call before left it, and with none there."""
    warm_ms = {(record["suite"], record["case"]): record["ms"]["median"] for record in warm}
    rows = [["case", "pass", "warm ms", "cold ms", "cold / warm"]]
    for record in cold:
        ms, cold_ms = warm_ms.get((record["suite"], record["case"])), record["ms"]["median"]
        ratio = ["-", figures(cold_ms), "-"] if ms is None else [figures(ms), figures(cold_ms), f"{cold_ms / ms:.2f}"]
        rows.append([record["case"], record["suite"], *ratio])
    return rows


def all_tables(records):
    warm, cold = ([record for record in records if is_cold(record) == wanted] for wanted in (False, True))

    def of(*suites, among=warm):
        return [record for record in among if record["suite"] in suites]

    return {
        "streaming": classic_table(of("streaming")),
        "blocks": classic_table(of("blocks", "blocks-causal")),
        "break_even": break_even_table(of("break-even")),
        "figures": figures_table(of(*OPERATIONS)),
        "cold": cold_table(of(*OPERATIONS), of(*OPERATIONS, among=cold)),
    }


def headline(records):
    """One line a run, and the peaks that its shares are of."""
    lines = {}
    for record in records:
        machine, command = record["machine"], record["command"]
        commit = record["commit"] + (" with changes" if record["dirty"] else "")
        peaks = lines.setdefault(f"{machine.get('gpu') or machine['cpu']}, commit {commit}, {record['time']}, `{command}`", {})
        if "peak" in record:
            peaks[record["peak"]] = f"{record['peak']} {record['peak_gflops'] / 1e3:.0f} TFLOP/s"
        if "copy_gbps" in record:
            peaks["copy"] = f"copy {record['copy_gbps']:,.0f} GB/s"
    return "\n".join("; ".join([line, ", ".join(peaks.values())]) if peaks else line for line, peaks in lines.items())
