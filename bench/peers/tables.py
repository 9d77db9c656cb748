#!/usr/bin/env python3
# bench/peers/tables.py
# Records of torch_peers.py in; tables side by side, floors, and a verdict for every bar out: as text, or as the tables of a
# document, between the marks <!-- table NAME --> and <!-- end -->. Needs nothing but Python.
import argparse
import json
import re

OPERATIONS = ("forward", "backward")
PEERS = ("fa2", "cudnn", "math", "flex", "sparse", "naive")
NAMES = {"keyhole": "Keyhole", "fa2": "FA2", "cudnn": "cuDNN", "math": "MATH", "flex": "Flex", "sparse": "torch.sparse"}
RATE_DECIDES = ("causal", "causal & window(4095)")
LONG = 131072


class Measured:
    """All records of one case: `mask` has its shape and pairs, the others are by name."""

    def __init__(self):
        self.by = {}

    def __getattr__(self, field):
        return self.by["mask"].get(field)

    def value(self, who, field):
        return self.by.get(who, {}).get(field)

    def is_plain(self):
        return self.pattern in ("dense", "causal")

    def is_about_memory(self):
        return self.name.startswith("memory-")

    def shape(self):
        return f"{self.batch}x{self.heads}x{self.length:,} d{self.head_dim}" + (f" {self.dtype}" if self.dtype != "bf16" else "")

    def flops(self, operation):
        return (4 if operation == "forward" else 10) * self.pairs * self.batch * self.heads * self.head_dim

    def tensor_bytes(self, operation):
        """Each tensor once: q, k, v, out; backward also dout, dq, dk, dv."""
        element = 4 if self.dtype == "f32" else 2
        return (4 if operation == "forward" else 8) * self.batch * self.heads * self.length * self.head_dim * element

    def ratio(self, operation, who):
        """How many times as fast as `who` Keyhole is."""
        ours, theirs = (self.value(name, f"{operation}_ms") for name in ("keyhole", who))
        return theirs / ours if ours and theirs else None

    def same_pairs(self):
        return self.value("keyhole", "pairs") in (None, self.pairs)


def read(paths):
    records = []
    for path in paths:
        with open(path) as file:
            records += [json.loads(line) for line in file if line.strip()]
    return records


def grouped(records):
    cases = {}
    for record in records:
        if "case" in record:
            cases.setdefault(record["case"], Measured()).by.setdefault(record["who"], {}).update(record)
    return list(cases.values())


def told(record):
    """A line for whoever waits."""
    if record["who"] == "mask":
        counted = f", {record['pairs']:,} pairs in {record['tiles']:,} tiles" if "pairs" in record else ""
        return f"{record['case']}: {record['pattern']}{counted}"
    figures = [
        f"{key} {value:,.3f}" if isinstance(value, float) else f"{key} {value}"
        for key, value in record.items()
        if key not in ("case", "who", "kernel", "pairs") and value is not None
    ]
    return f"  {record['who']:8} {', '.join(figures)}"


def number(value, form="{:.2f}"):
    return "-" if value is None else form.format(value)


def times_table(cases):
    """One row a case and operation: ms and useful TFLOP/s of everybody."""
    everybody = [who for who in ("keyhole", *PEERS) if any(c.value(who, "forward_ms") for c in cases)]
    rows = [["pattern", "shape", "pass", *(NAMES.get(who, who) for who in everybody), "x best peer"]]
    for c in [c for c in cases if c.pairs]:
        for operation in OPERATIONS:
            row = [c.pattern, c.shape(), operation]
            for who in everybody:
                ms = c.value(who, f"{operation}_ms")
                row.append("-" if ms is None else f"{ms:.3f} ({c.flops(operation) / ms * 1e-9:.0f})")
            ratios = [ratio for who in PEERS if (ratio := c.ratio(operation, who))]
            rows.append([*row, number(min(ratios, default=None))])
    return rows


def floors_table(cases, peaks):
    """What no kernel can go below on this machine, and the share of Keyhole's time that it is."""
    rows = [["pattern", "shape", *(f"{p} {what}" for p in OPERATIONS for what in ("floor ms", "set by", "floor / Keyhole"))]]
    for c in [c for c in cases if c.dtype != "f32" and c.pairs and peaks]:
        row = [c.pattern, c.shape()]
        for operation in OPERATIONS:
            compute = c.flops(operation) / peaks["matmul_tflops"] * 1e-9
            memory = c.tensor_bytes(operation) / peaks["copy_tb_per_s"] * 1e-9
            floor, ours = max(compute, memory), c.value("keyhole", f"{operation}_ms")
            row += [f"{floor:.3f}", "compute" if compute >= memory else "memory", number(ours and floor / ours)]
        rows.append(row)
    return rows


def memory_table(cases):
    rows = [["attention", "pattern", "pass", "ms", "peak MB", "DRAM MB"]]
    for c in cases:
        for who in ("naive", "math", "fa2", "cudnn", "flex", "sparse", "keyhole"):
            for operation in OPERATIONS:
                if (ms := c.value(who, f"{operation}_ms")) is None:
                    continue
                peak, dram = (c.value(who, f"{operation}_{what}") for what in ("bytes", "dram_bytes"))
                rows.append(
                    [
                        NAMES.get(who, who),
                        c.pattern,
                        operation,
                        f"{ms:.3f}",
                        number(peak and peak / 1e6, "{:,.0f}"),
                        number(dram and dram / 1e6, "{:,.0f}"),
                    ]
                )
    return rows


def bars(cases):
    """(case, column, ratio, least) for everything that has a bar."""
    dense_long = next((c for c in cases if c.pattern == "causal" and c.length == LONG), None)
    for c in cases:
        if c.is_about_memory() or c.dtype == "f32":
            continue
        if c.is_plain() and c.head_dim in (64, 128) and c.length in (4096, 16384):
            for operation, least in (("forward", 1.0), ("backward", 0.95)):
                yield c, f"FA2 {operation}", c.ratio(operation, "fa2"), least
        if c.pattern != "dense" and (c.batch, c.head_dim) == (1, 128) and c.length in (16384, LONG):
            for operation in OPERATIONS:
                least = 0.85 if c.pattern in RATE_DECIDES else 1.0
                yield c, f"Flex {operation}", c.ratio(operation, "flex"), least
        if c.length == LONG and (c.pairs or 0) <= 0.032 * LONG**2 and c is not dense_long:
            for column, passes in (("own causal forward", ("forward",)), ("own causal both", OPERATIONS)):
                ours, dense = ([x and x.value("keyhole", f"{p}_ms") for p in passes] for x in (c, dense_long))
                yield c, column, None if None in ours + dense else sum(dense) / sum(ours), 10.0


def verdict(c, ratio, least):
    if not c.same_pairs():
        return f"VOID: {c.value('keyhole', 'pairs'):,} pairs against {c.pairs:,}"
    if ratio is None:
        return "not measured"
    return f"{ratio:.2f} met" if ratio >= least else f"{ratio:.2f} MISSED ({least:.2f})"


def bars_table(cases):
    """How many times as fast as each of those that a bar names Keyhole is."""
    found = {}
    for c, column, ratio, least in bars(cases):
        found.setdefault((c.pattern, c.shape()), {})[column] = verdict(c, ratio, least)
    columns = [f"{peer} {operation}" for peer in ("FA2", "Flex") for operation in OPERATIONS]
    columns += ["own causal forward", "own causal both"]
    return [["pattern", "shape", *columns], *([*key, *(row.get(name, "-") for name in columns)] for key, row in found.items())]


def reasons_table(cases):
    """What is missing above, and why."""
    found = {}
    for c in cases:
        for who, record in c.by.items():
            for key, why in record.items():
                if key.startswith("why_no"):
                    what = key.removeprefix("why_not").removeprefix("why_no_").replace("_", " ")
                    found.setdefault((NAMES.get(who, who), what or "all", why), []).append(c.name)
    return [["who", "what", "why not", "cases"], *([*key, ", ".join(names)] for key, names in found.items())]


def all_tables(records):
    cases = grouped(records)
    run = next((record for record in records if record["who"] == "run"), {})
    timed = [c for c in cases if not c.is_about_memory()]
    return {
        "dense": times_table([c for c in timed if c.is_plain() and c.length < LONG]),
        "sparse": times_table([c for c in timed if c.pattern != "dense" and (c.batch, c.head_dim, c.length) == (1, 128, 16384)]),
        "long": times_table([c for c in timed if c.length == LONG]),
        "floors": floors_table(timed, run.get("peaks")),
        "memory": memory_table([c for c in cases if c.is_about_memory()]),
        "bars": bars_table(cases),
        "reasons": reasons_table(cases),
    }


def headline(records):
    """One line a run."""
    lines = []
    for run in [record for record in records if record["who"] == "run"]:
        lines.append("{machine}, torch {torch}, commit {commit}, {time}".format(**run))
        if run["peaks"]:
            lines[-1] += "; bf16 product {matmul_tflops:.0f} TFLOP/s, copy {copy_tb_per_s:.2f} TB/s".format(**run["peaks"])
    return "\n".join(lines)


def is_number(text):
    return bool(re.match(r"-$|[\d.,]+( \(\d+\))?$", text))


def aligned(rows):
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(cell.rjust(width) if is_number(cell) else cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
        for row in rows
    )


def count_bars(records):
    verdicts = [verdict(c, ratio, least) for c, _, ratio, least in bars(grouped(records))]
    met = sum(text.endswith(" met") for text in verdicts)
    return f"{met} of {len(verdicts)} bars met, {verdicts.count('not measured')} not measured"


def as_text(records):
    """All tables that have a row; times are ms (useful TFLOP/s)."""
    parts = [f"{name}\n{aligned(rows)}" for name, rows in all_tables(records).items() if len(rows) > 1]
    return "\n\n".join([headline(records), *parts, count_bars(records)])


def as_markdown(rows):
    """Numbers stand to the right."""

    def line(cells):
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "".join("---:|" if is_number(cell) else "---|" for cell in rows[1])
    return "\n".join([line(rows[0]), rule, *map(line, rows[1:])])


def write(document, records):
    """Fills the marked places; a mark that no table answers to is an error."""
    texts = {name: as_markdown(rows) if len(rows) > 1 else "Not in this record." for name, rows in all_tables(records).items()}
    texts |= {"headline": headline(records), "count": count_bars(records)}

    def filled(match):
        name = match.group(1)
        if name not in texts:
            raise SystemExit(f"{document}: no table is called {name}; there are {', '.join(texts)}")
        return f"<!-- table {name} -->\n{texts[name]}\n<!-- end -->"

    with open(document) as file:
        text = re.sub(r"<!-- table (\w+) -->\n.*?<!-- end -->", filled, file.read(), flags=re.DOTALL)
    with open(document, "w") as file:
        file.write(text)


def main():
    parser = argparse.ArgumentParser(description="Tables of the records that torch_peers.py wrote.")
    parser.add_argument("records", nargs="+", help="of one run, or of several over different cases")
    parser.add_argument("--write", metavar="DOCUMENT", help="fill its marked tables: docs/performance.md")
    arguments = parser.parse_args()
    records = read(arguments.records)
    if arguments.write:
        write(arguments.write, records)
    else:
        print(as_text(records))


if __name__ == "__main__":
    main()
