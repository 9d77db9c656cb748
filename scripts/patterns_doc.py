#!/usr/bin/env python3
"""scripts/patterns_doc.py KEYHOLE LAMBDA_PICTURE [--check]

Writes docs/patterns.md and docs/pictures/*.svg from the catalog, by asking the programs keyhole and
keyhole_lambda_picture (of a build with tests: bin/keyhole, tests/keyhole_lambda_picture). With --check
it writes nothing and fails when a file differs from what it would write: the tests run it so, and a
pattern without its section cannot land.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LENGTH = 16  # small enough that single pairs can be seen
LAMBDA_SOURCE = ROOT / "tests" / "render" / "main.cpp"
OPERATORS = [
    ("~a", "the pairs that `a` does not have"),
    ("a & b", "the pairs of both"),
    ("a | b", "the pairs of either"),
]


def ask(program, *arguments):
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout


def lambda_entry():
    """A lambda is a C++ function: it has no text form for the catalog to read, and so no row there."""
    example = re.search(r"drawn =\s*(lambda\(.*?\));\n\n", LAMBDA_SOURCE.read_text(), re.DOTALL)[1]
    return {
        "name": "lambda",
        "call": "lambda(function[, name])",
        "definition": "function(q, k) is true",
        "meaning": "What no other pattern says, as a C++ function of positions; in Python "
        "`keyhole.from_mask_mod(function, length)`. It is asked about every pair, so that compiling a plan takes L^2 "
        "calls. The one below lets a token see those whose positions have no bit that its own lacks: L^1.58 pairs. In a "
        "program: [your own pattern](../examples/your_own_pattern.cpp).",
        "complexity": "as the function says",
        "reach": "as the function says",
        "example": " ".join(example.split()),
    }


def can_be_drawn(entry):
    # Arrays come from files; their examples name files that are not there.
    return ".npy" not in entry["example"]


def draw(programs, entry, path):
    keyhole, lambda_picture = programs
    if entry["name"] == "lambda":
        path.write_text(ask(lambda_picture, str(LENGTH)))
    else:
        ask(keyhole, "show", entry["example"], *drawing_options(entry), "--svg", str(path))


def drawing_options(entry):
    """`at` fixes the lengths: as many queries and keys as it has positions."""
    positions = re.findall(r"[qk]=\[([^]]*)\]", entry["example"])
    if entry["name"] != "at":
        return ["--len", str(LENGTH)]
    q_len, k_len = (len(text.split(",")) for text in positions)
    return ["--q-len", str(q_len), "--k-len", str(k_len)]


def section(programs, entry, pictures):
    lines = [f"## {entry['name']}", "", f"`{entry['call']}`", "", entry["meaning"], ""]
    lines += [f"- (q, k) attends when: {entry['definition']}"]
    lines += [f"- pairs for length L: {entry['complexity']}"]
    lines += [f"- global context: {entry['reach']}", ""]
    if can_be_drawn(entry):
        picture = f"{entry['name']}.svg"
        draw(programs, entry, pictures / picture)
        lines += [f"`{entry['example']}`", "", f"![{entry['example']}](pictures/{picture})", ""]
    else:
        lines += [f"Example: `{entry['example']}`", ""]
    return lines


def write(programs, docs):
    pictures = docs / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    entries = [*json.loads(ask(programs[0], "info", "--patterns", "--json")), lambda_entry()]
    lines = [
        "# Patterns",
        "",
        "Written by `scripts/patterns_doc.py` from the catalog (`src/pattern/catalog.cpp`); edit that.",
        "",
        "A pattern says which pairs (q, k) attend; q and k are positions, `/` is floor division. Query i of",
        "q_len stands at position i + (k_len - q_len). None is causal by itself unless its definition says",
        "k <= q. `keyhole show PATTERN --len 16` draws any of them, and any combination.",
        "",
        "In C++ and in Python each is a function of the same name (in Python `global_`: `global` is a keyword there), but for",
        "`lambda`, which is C++ only and has no text. In Python all are called, `causal() & window(3)`; what stands for any number",
        "of arguments may also be one sequence, `documents([5, 3, 6])`; and `at` takes its positions without names.",
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
        lines += section(programs, entry, pictures)
    (docs / "patterns.md").write_text("\n".join(lines).rstrip() + "\n")


def differences(made, kept):
    names = [pathlib.Path("patterns.md")] + [p.relative_to(made) for p in sorted((made / "pictures").iterdir())]
    return [n for n in names if not (kept / n).is_file() or (kept / n).read_bytes() != (made / n).read_bytes()]


def main(arguments):
    programs, docs = [word for word in arguments if word != "--check"], ROOT / "docs"
    if len(programs) != 2:
        print(__doc__)
        return 0 if programs in (["-h"], ["--help"]) else 2
    if "--check" not in arguments:
        write(programs, docs)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder)
        write(programs, made)
        stale = differences(made, docs)
    for name in stale:
        print(f"docs/{name} is not what the catalog says; run scripts/patterns_doc.py {' '.join(programs)}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
