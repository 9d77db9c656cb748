# bench/peers/program.py
# Records of `keyhole bench --json` in, its tables out, as rows: one for each run and set of benchmarks. Several runs may stand
# in one file.


def is_of_program(records):
    """Whether these are records of `keyhole bench`, which say which table they are of."""
    return all("suite" in record for record in records)


def figures(value):
    """Four, as the program prints milliseconds: 0.123, 12.34, 1234."""
    return f"{value:.{max(0, 4 - max(1, len(str(int(value)))))}f}"


def percent(value):
    return f"{100 * value:.1f} %"


COLUMNS = {  # what a record may tell, in words
    "case": lambda record: record["case"],
    "pattern": lambda record: record["pattern"],
    "kernel": lambda record: record["kernel"],
    "dense ms": lambda record: figures(record["dense_ms"]["median"]),
    "ms": lambda record: figures(record["ms"]["median"]),
    "speed-up": lambda record: f"{record['speedup']:.2f}",
    "beats dense from": lambda record: f"{record['break_even']:,}" if record["break_even"] else "never",
    "keeps there": lambda record: percent(record["kept_of_dense"]),
    "at first": lambda record: f"{record['speedup_at_first']:.2f}",
    "at last": lambda record: f"{record['speedup_at_last']:.2f}",
    "extra MB at both lengths": lambda record: ", ".join(f"{size / 1e6:.1f}" for size in record["lengths"] and record["extra_bytes"]),
    "GFLOP/s": lambda record: f"{record['gflops']:,.0f}",
    "of peak": lambda record: percent(record["of_peak"]),
    "peak": lambda record: f"{record['peak']} {record['peak_gflops']:,.0f}",
    "GB/s": lambda record: f"{record['gbps']:,.0f}",
    "of copy": lambda record: percent(record["of_copy"]),
    "memory MB": lambda record: f"{record['peak_bytes'] / 1e6:,.1f}",
    "of it besides tensors": lambda record: f"{record['extra_bytes'] / 1e6:,.1f}" if "peak_bytes" in record else "-",
}


def told(column, record):
    try:
        return COLUMNS[column](record)
    except KeyError:
        return "-"


def title_of(record):
    machine = record["machine"].get("gpu") or record["machine"]["cpu"]
    commit = record["commit"] + (" with changes" if record["dirty"] else "")
    return f"{record['suite']}: `{record['command']}`, {machine}, commit {commit}, {record['time']}"


def all_tables(records):
    """{what was run, where and when: rows}, with the columns that a record of it fills."""
    groups = {}
    for record in records:
        groups.setdefault(title_of(record), []).append(record)
    tables = {}
    for title, group in groups.items():
        columns = [column for column in COLUMNS if any(told(column, record) != "-" for record in group)]
        tables[title] = [columns, *([told(column, record) for column in columns] for record in group)]
    return tables
