#!/usr/bin/env python3
"""scripts/patterns_doc.py KEYHOLE [--check]

Writes docs/patterns.md and docs/pictures/*.svg from the catalog, by asking the keyhole program.
With --check it writes nothing and fails when a file differs from what it would write: the tests run
it so, and a pattern without its section cannot land.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LENGTH = 16  # small enough that single pairs can be seen
OPERATORS = [
    ("~a", "the pairs that `a` does not have"),
    ("a & b", "the pairs of both"),
    ("a | b", "the pairs of either"),
]


def ask(keyhole, *arguments):
    return subprocess.run([keyhole, *arguments], check=True, capture_output=True, text=True).stdout


def can_be_drawn(entry):
    # Arrays come from files; their examples name files that are not there.
    return ".npy" not in entry["example"]


def drawing_options(entry):
    """`at` fixes the lengths: as many queries and keys as it has positions."""
    positions = re.findall(r"[qk]=\[([^]]*)\]", entry["example"])
    if entry["name"] != "at":
        return ["--len", str(LENGTH)]
    q_len, k_len = (len(text.split(",")) for text in positions)
    return ["--q-len", str(q_len), "--k-len", str(k_len)]


def section(keyhole, entry, pictures):
    lines = [f"## {entry['name']}", "", f"`{entry['call']}`", "", entry["meaning"], ""]
    lines += [f"- (q, k) attends when: {entry['definition']}"]
    lines += [f"- pairs for length L: {entry['complexity']}"]
    lines += [f"- global context: {entry['reach']}", ""]
    if can_be_drawn(entry):
        picture = f"{entry['name']}.svg"
        path = pictures / picture
        ask(keyhole, "show", entry["example"], *drawing_options(entry), "--svg", str(path))
        lines += [f"`{entry['example']}`", "", f"![{entry['example']}](pictures/{picture})", ""]
    else:
        lines += [f"Example: `{entry['example']}`", ""]
    return lines


def write(keyhole, docs):
    pictures = docs / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    entries = json.loads(ask(keyhole, "info", "--patterns", "--json"))
    lines = [
        "# Patterns",
        "",
        "Written by `scripts/patterns_doc.py` from the catalog (`src/pattern/catalog.cpp`); edit that.",
        "",
        "A pattern says which pairs (q, k) attend; q and k are positions, `/` is floor division. Query i of",
        "q_len stands at position i + (k_len - q_len). None is causal by itself unless its definition says",
        "k <= q. `keyhole show PATTERN --len 16` draws any of them, and any combination.",
        "",
        "In C++ and in Python each is a function of the same name (in Python `global_`: `global` is a keyword there).",
        "How to put them together: [choosing a pattern](choosing.md).",
        "",
        "| operator | means |",
        "|---|---|",
        *[f"| `{text}` | {meaning} |".replace("a | b", "a \\| b") for text, meaning in OPERATORS],
        "",
        "`~` binds before `&`, `&` before `|`. Arguments may be named: `streaming(sinks=16, window=64)`.",
        "",
        "| pattern | (q, k) attends when | pairs | global context |",
        "|---|---|---|---|",
    ]
    for entry in entries:
        row = [f"[`{entry['call']}`](#{entry['name']})", entry["definition"], entry["complexity"], entry["reach"]]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    lines.append("")
    for entry in entries:
        lines += section(keyhole, entry, pictures)
    (docs / "patterns.md").write_text("\n".join(lines).rstrip() + "\n")


def differences(made, kept):
    names = [pathlib.Path("patterns.md")] + [p.relative_to(made) for p in sorted((made / "pictures").iterdir())]
    return [n for n in names if not (kept / n).is_file() or (kept / n).read_bytes() != (made / n).read_bytes()]


def main(arguments):
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    keyhole, docs = arguments[0], ROOT / "docs"
    if "--check" not in arguments:
        write(keyhole, docs)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder)
        write(keyhole, made)
        stale = differences(made, docs)
    for name in stale:
        print(f"docs/{name} is not what the catalog says; run scripts/patterns_doc.py {keyhole}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
