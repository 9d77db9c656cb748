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
## Lengths

Most patterns fit sequences of any length. A pattern that is made from lengths or arrays fits only the lengths below, and refuses others:

| pattern | keys | queries |
|---|---|---|
| `documents`, `tree`, `grid`, `neighborhood`, `volume`, `volume_neighborhood` | as many as it has positions | as many; or fewer, which are then the last ones |
| `mask` | one for each column | at positions that have a row |
| `tiles`, `bitmaps`, `csr` | at least those that it lists | at positions that have a row; a row of tiles is tile_q positions |
| `packed`, `at` | its number of keys | its number of queries |
| `from_dense` and other imports in Python | those of what was imported | those of what was imported |

- **Decoding.** `documents(3, 5)` takes one query and eight keys: the query is the last token.
- **Rows are positions** in `mask`, `tiles`, `bitmaps` and `csr`: row 0 is for the query at position 0. If a matrix has fewer rows than columns, query 0
  is not at position 0. Make the plan with offset 0 then, or import the matrix by `from_dense`, `from_csr` or `from_bsr`: these count rows from query 0.
- **Padding**: give it a document of its own, so that the lengths add up. In `documents(3, 5, 4)` the four padding tokens see each other. In
  `packed([3, 5, 4], [3, 5, 0], causal)` they see nothing.
- **Batch and heads** of an imported mask must match the call, too, unless they are 1.
- **Under `at`**, a token at a position below 0 is outside of such a pattern. It attends to nothing, and nothing attends to it. A position beyond the
  end is refused.""".split("\n")
OPERATORS = [
    ("~a", "the pairs that are not in `a`"),
    ("a & b", "the pairs that are in both"),
    ("a | b", "the pairs that are in at least one"),
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
            "The function is called for every pair, so compiling a plan takes L^2 calls. It exists in C++ only and has no text form;",
            "in Python, use `keyhole.from_mask_mod(function, length)`. As a program: [your own pattern](../examples/your_own_pattern.cpp).",
            "In the example, k attends where it has no bit that q lacks. That is the Sierpinski triangle, with about L^1.58 pairs.",
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
    lines += [f"Example: `{entry['example']}`", ""]
    if can_be_drawn(entry):
        picture = f"{entry['name']}.svg"
        draw(programs, entry, pictures / picture)
        lines += [f"![{entry['name']}](pictures/{picture})", ""]
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
        "A pattern says which pairs (q, k) attend. q and k are positions, which may differ from indices: query i of q_len has position i + (k_len - q_len).",
        "`/` is floor division. A pattern is causal only where its definition says k <= q; combine others with `causal &`.",
        "[Choosing a pattern](choosing.md) says which one to use for what.",
        "",
        "- **Text** is the same everywhere: `causal & window(3)`. Arguments may be named: `streaming(sinks=16, window=64)`.",
        "- **In Python and C++** each pattern is a function of the same name, also one without arguments: `causal()`. In Python `global` is a",
        "  keyword, so that function is `global_`. Arguments marked `...` may also be passed as one list: `documents([5, 3, 6])`.",
        "- **`at` in Python** takes its positions unnamed: `at([4, 0], [0, 1, 2], causal())`.",
        "- **Pictures** have queries as rows and keys as columns. `keyhole show PATTERN --len 16` draws any pattern and any combination.",
        "- **Pairs** are leading terms for large L, when q_len = k_len = L. **Global context** is what a query sees of the tokens far from it.",
        "",
        "| operator | means |",
        "|---|---|",
        *[f"| `{text}` | {meaning} |".replace("a | b", "a \\| b") for text, meaning in OPERATORS],
        "",
        "`~` binds before `&`, `&` before `|`.",
        "",
        "| pattern | what it is |",
        "|---|---|",
    ]
    for entry in entries:
        first_sentence = entry["meaning"].split(". ")[0].rstrip(".") + "."
        lines.append(f"| [`{entry['call']}`](#{entry['name']}) | {first_sentence} |")
    lines += ["", *LENGTHS, ""]
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
