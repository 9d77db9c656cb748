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
LAMBDA_LENGTH = 16  # small enough that single pairs can be seen
LAMBDA_SOURCE = ROOT / "tests" / "render" / "main.cpp"
LENGTHS = """\
Most patterns are for sequences of any length. Those made from lengths or arrays know theirs, and refuse others:

| pattern | is for |
|---|---|
| `documents`, `tree`, `grid`, `neighborhood`, `volume`, `volume_neighborhood` | as many keys as it has positions, and queries among them |
| `mask` | its columns as keys, and queries at the positions of its rows |
| `tiles`, `bitmaps`, `csr` | queries at the positions of its rows, and at least the keys it lists |
| `packed`, `at` | its numbers of queries and of keys |
| in Python `from_dense` and its like | the lengths, the batch and the heads of what was imported; a batch or heads of 1 serve any number |

Fewer queries than positions are the last ones, as everywhere: `documents(3, 5)` takes one query and eight keys while
decoding. Rows of `mask`, `tiles`, `bitmaps` and `csr` are positions, too. So a matrix with fewer rows than columns, whose
row 0 is query 0, needs a plan with offset 0, or `from_dense` and its like: they count rows from query 0. Padding
is a document: `documents(3, 5, 4)` lets it see itself; in `packed([3, 5, 4], [3, 5, 0], causal)` it sees nothing. Under `at` a
token at a position below 0 is outside of such a pattern, and one behind its end is refused.""".split("\n")
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
        "meaning": "Any other pattern, as a C++ function of positions.",
        "more": [
            "The function is called for every pair, so compiling a plan takes L^2 calls. In Python, use",
            "`keyhole.from_mask_mod(function, length)`. In the example below a token sees those whose positions have no bit that its",
            "own lacks: L^1.58 pairs. As a program: [your own pattern](../examples/your_own_pattern.cpp).",
            "",
        ],
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
        path.write_text(ask(lambda_picture, str(LAMBDA_LENGTH)))
    else:
        ask(keyhole, "show", entry["example"], *drawing_options(entry), "--svg", str(path))


def drawing_options(entry):
    return ["--q-len", str(entry["example_q_len"]), "--k-len", str(entry["example_k_len"])]


def section(programs, entry, pictures):
    lines = [f"## {entry['name']}", "", f"`{entry['call']}`", "", entry["meaning"], "", *entry.get("more", [])]
    lines += [f"- (q, k) attends when: {entry['definition']}"]
    lines += [f"- pairs for length L: {entry['complexity']}"]
    lines += [f"- global context: {entry['reach']}", ""]
    if can_be_drawn(entry):
        picture = f"{entry['name']}.svg"
        draw(programs, entry, pictures / picture)
        lines += [f"`{entry['example']}`", "", f"![{entry['name']}](pictures/{picture})", ""]
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
        "A pattern says which pairs (q, k) attend. q and k are positions, and `/` is floor division. Query i of q_len has",
        "position i + (k_len - q_len). A pattern is causal only where its definition says k <= q; combine others with `causal &`.",
        "`keyhole show PATTERN --len 16` draws any pattern and any combination.",
        "",
        "In C++ and in Python each pattern is a function of the same name. In Python, `global` is a keyword, so the function is",
        "`global_`. In Python every pattern is called: `causal() & window(3)`. Where any number of arguments may stand, one sequence",
        "may stand too: `documents([5, 3, 6])`. `at` takes its positions without names. `lambda` exists in C++ only and has no text",
        "form. How to combine patterns: [choosing a pattern](choosing.md).",
        "",
        "| operator | means |",
        "|---|---|",
        *[f"| `{text}` | {meaning} |".replace("a | b", "a \\| b") for text, meaning in OPERATORS],
        "",
        "`~` binds before `&`, `&` before `|`. Arguments may be named: `streaming(sinks=16, window=64)`.",
        "",
        *LENGTHS,
        "",
        "| pattern | what it is |",
        "|---|---|",
    ]
    for entry in entries:
        first_sentence = entry["meaning"].split(". ")[0].rstrip(".") + "."
        lines.append(f"| [`{entry['call']}`](#{entry['name']}) | {first_sentence} |")
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
