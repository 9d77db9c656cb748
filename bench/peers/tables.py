#!/usr/bin/env python3
# bench/peers/tables.py
# Records of compare.py in; tables side by side, floors, and a verdict for every bar out: as text, or as the tables of a
# document, between the marks <!-- table NAME --> and <!-- end -->. Records of `keyhole bench` are told as text too. Needs
# nothing but Python.
import argparse
import pathlib
import re

import program
from bars import counted, judged
from cases import OPERATIONS, is_about_memory, is_own, read_bars
from records import grouped, read

PEERS = ("fa2", "cudnn", "math", "flex", "naive")
NAMES = {
    "keyhole": "Keyhole",
    "deterministic": "Keyhole, deterministic",
    "sm80": "Keyhole sm80",
    "fa2": "FA2",
    "cudnn": "cuDNN",
    "math": "MATH",
    "flex": "Flex",
}


def name_of(who):
    return NAMES.get(who, who)


def number(value, form="{:.2f}"):
    return "-" if value is None else form.format(value)


def times_table(cases, timing="queued"):
    """One row a case and operation: ms and useful TFLOP/s of all attentions."""
    cases = [c for c in cases if c.pairs]
    attentions = [who for who in NAMES | dict.fromkeys(PEERS) if any(c.ms(who, "forward", timing) for c in cases)]
    rows = [["pattern", "shape", "pass", *map(name_of, attentions), "x best peer"]]
    for c in cases:
        for operation in OPERATIONS:
            row = [c.title(), c.shape(), operation]
            for who in attentions:
                ms = c.ms(who, operation, timing)
                row.append("-" if ms is None else f"{ms:.3f} ({c.flops(operation) / ms * 1e-9:.0f})")
            ratios = [ratio for who in PEERS if (ratio := c.ratio(who, operation, timing))]
            if len(row) > 3 + row.count("-"):
                rows.append([*row, number(min(ratios, default=None))])
    return rows


def dense_of(c, cases):
    """The case to run without this pattern: causal for causal patterns, dense for others, same shape."""
    plain = "causal" if c.pattern.startswith("causal") else "dense"
    return next((other for other in cases if other.pattern == plain and other.sizes() == c.sizes()), None)


def share(value):
    """Of one, in per cent, two digits: 100 %, 22 %, 0.052 %."""
    return f"{float(f'{100 * value:.2g}'):g} %"


def both(values, form="{:.2f}"):
    """Forward / backward; empty where neither was measured."""
    values = list(values)
    return "-" if values == [None, None] else " / ".join(number(value, form) for value in values)


def overview_table(cases):
    """For docs/performance.md: forward / backward of the patterns, and how many times as fast as the others Keyhole is."""
    chosen = [c for c in cases if c.pairs and c.head_dim == 128 and c.dtype == "bf16" and not is_own(c)]
    chosen = [c for c in chosen if c.ms("keyhole", "forward")]
    rows = [["pattern", "tokens", "kept", "Keyhole, ms", "x Flex", "x FA2", "x cuDNN"]]
    for c in sorted(chosen, key=lambda c: c.length):
        row = [c.pattern, f"{c.batch} x {c.length:,}" if c.batch > 1 else f"{c.length:,}", share(c.kept())]
        row.append(both((c.ms("keyhole", operation) for operation in OPERATIONS), "{:.3f}"))
        row.append(both(c.ratio("flex", operation) for operation in OPERATIONS))
        dense = dense_of(c, chosen)
        for who in ("fa2", "cudnn"):
            row.append(both(dense and c.ratio(who, operation, other=dense) for operation in OPERATIONS))
        rows.append(row)
    return rows


def floors_table(cases, peaks):
    """The time at the measured rate of a matrix product or of a copy, whichever is longer, and its share of Keyhole's time."""
    rows = [["pattern", "shape", *(f"{p} {what}" for p in OPERATIONS for what in ("floor ms", "set by", "floor / Keyhole"))]]
    for c in [c for c in cases if c.dtype != "f32" and c.pairs and peaks]:
        row = [c.title(), c.shape()]
        for operation in OPERATIONS:
            compute = c.flops(operation) / peaks["matmul_tflops"] * 1e-9
            memory = c.tensor_bytes(operation) / peaks["copy_tb_per_s"] * 1e-9
            floor, ours = max(compute, memory), c.ms("keyhole", operation)
            row += [f"{floor:.3f}", "compute" if compute >= memory else "memory", number(ours and floor / ours)]
        rows.append(row)
    return rows


def memory_table(cases):
    rows = [["attention", "pattern", "pass", "ms", "peak MB", "DRAM MB"]]
    for c in cases:
        for who in ("naive", "math", "fa2", "cudnn", "flex", "keyhole"):
            for operation in OPERATIONS:
                if (ms := c.ms(who, operation)) is None:
                    continue
                peak, dram = (c.value(who, f"{operation}_{what}") for what in ("bytes", "dram_bytes"))
                figures = [number(bytes_ and bytes_ / 1e6, "{:,.0f}") for bytes_ in (peak, dram)]
                rows.append([name_of(who), c.pattern, operation, f"{ms:.3f}", *figures])
    return rows


def setup_table(cases):
    """What comes before the first call."""
    rows = [["pattern", "shape", "Keyhole plan and first call ms", "Flex kernels compiled s"]]
    for c in cases:
        figures = [c.value("keyhole", "plan_ms"), c.value("flex", "ready_s")]
        if figures != [None, None]:
            rows.append([c.title(), c.shape(), *(number(value, "{:.1f}") for value in figures)])
    return rows


def bars_table(verdicts):
    """How many times as fast Keyhole is, or the backend that a bar names, the bar, and the verdict."""
    rows = [["pattern", "shape", "who", "against", "pass", "timing", "per", "times as fast", "at least", "verdict"]]
    for v in verdicts:
        against = name_of(v.bar.against) + (f" on {v.bar.on}" if v.bar.on else "")
        row = [v.case.title(), v.case.shape(), name_of(v.bar.who), against, v.bar.passes, v.bar.timing, v.bar.per]
        rows.append([*row, number(v.ratio), number(v.bar.least), v.word()])
    return rows


def reasons_table(cases):
    """What is missing above, and why."""
    found = {}
    for c in cases:
        for who, record in c.by.items():
            for key, why in record.items():
                if key.startswith("why_no"):
                    what = key.removeprefix("why_not").removeprefix("why_no_").replace("_", " ")
                    found.setdefault((name_of(who), what or "all", why), []).append(c.name)
    return [["who", "what", "why not", "cases"], *([*key, ", ".join(names)] for key, names in found.items())]


def all_tables(records):
    by_name = grouped(records)
    cases = list(by_name.values())
    verdicts = judged(by_name, read_bars())
    run = next((record for record in records if record["who"] == "run"), {})
    timed = [c for c in cases if not is_about_memory(c)]
    return {
        "overview": overview_table(cases),
        "bars": bars_table(verdicts),
        "times": times_table(timed),
        "paused": times_table(timed, "paused"),
        "waited": times_table(timed, "waited"),
        "floors": floors_table(timed, run.get("peaks")),
        "memory": memory_table([c for c in cases if is_about_memory(c)]),
        "setup": setup_table(timed),
        "reasons": reasons_table(cases),
    }


def count_of(records):
    return counted(judged(grouped(records), read_bars()))


def headline(records):
    """One line a run."""
    lines = []
    for run in [record for record in records if record["who"] == "run"]:
        lines.append("{machine}, torch {torch}, commit {commit}, {time}".format(**run))
        if run["peaks"]:
            lines[-1] += "; bf16 product {matmul_tflops:.0f} TFLOP/s, copy {copy_tb_per_s:.2f} TB/s".format(**run["peaks"])
        if run.get("cache") == "cold":
            lines[-1] += "; second-level cache cleared before each call"
        if "note" in run:
            lines[-1] += f"; {run['note']}"
    return "\n".join(lines)


def is_number(text):
    return bool(re.match(r"-$|[\d.,]+( \(\d+\)| %| / [\d.,-]+)?$", text))


def aligned(rows):
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(cell.rjust(width) if is_number(cell) else cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
        for row in rows
    )


def as_text(records):
    """All tables that have a row; times are ms (useful TFLOP/s). Also of records of `keyhole bench`."""
    if program.is_of_program(records):
        tables, first, last = program.all_tables(records), [], []
    else:
        tables, first, last = all_tables(records), [headline(records)], [count_of(records)]
    parts = [f"{name}\n{aligned(rows)}" for name, rows in tables.items() if len(rows) > 1]
    return "\n\n".join([*first, *parts, *last])


def as_markdown(rows):
    """Numbers stand to the right."""

    def line(cells):
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "".join("---:|" if is_number(cell) else "---|" for cell in rows[1])
    return "\n".join([line(rows[0]), rule, *map(line, rows[1:])])


def write(document, records):
    """Fills the marked places; a mark that no table answers to is an error."""
    texts = {name: as_markdown(rows) if len(rows) > 1 else "Not in these records." for name, rows in all_tables(records).items()}
    texts |= {"headline": headline(records), "count": count_of(records)}

    def filled(match):
        name = match.group(1)
        if name not in texts:
            raise SystemExit(f"{document}: no table is called {name}; there are {', '.join(texts)}")
        return f"<!-- table {name} -->\n{texts[name]}\n<!-- end -->"

    path = pathlib.Path(document)
    path.write_text(re.sub(r"<!-- table (.+?) -->\n.*?<!-- end -->", filled, path.read_text(), flags=re.DOTALL))


def main():
    parser = argparse.ArgumentParser(description="Tables of the records that compare.py wrote.")
    parser.add_argument("records", nargs="+", help="of one run, or of several over different cases")
    parser.add_argument("--write", nargs="+", metavar="DOCUMENT", help="fill their marks: docs/performance.md records/gpu/tables.md")
    arguments = parser.parse_args()
    records = read(arguments.records)
    for document in arguments.write or []:
        write(document, records)
    if not arguments.write:
        print(as_text(records))


if __name__ == "__main__":
    main()
