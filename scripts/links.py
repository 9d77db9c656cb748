#!/usr/bin/env python3
# scripts/links.py
# The documents name only files that exist: every relative link in a Markdown file, with its anchor, and
# every `path/like/this.cpp` between backquotes, must be there. Their lines are short enough to read and to
# compare. What a reader has to get through first has a limit as a whole: README.md and its table,
# docs/performance.md.
"""usage: links.py [--self-test] [ROOT]"""

import pathlib
import re
import sys
import tempfile

SKIP = {"build", "out", ".venv", ".git"}  # made, not written
LONGEST_LINE = 160
MOST_LINES = {"README.md": 120, "docs/performance.md": 150}
MOST_ROWS = {"README.md": 8}  # of all its tables together, without their heads
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
# Between backquotes, a path is something with a folder of ours in front; <name>, *, {a,b} and ... are
# patterns, not paths, and build/ and out/ appear only after a build.
PATH = re.compile(r"(?:\./)?((?:include|src|cli|python|tests|bench|examples|course|fuzz|docs|scripts|cmake|records|\.ci)/[\w./-]*\w/?)$")


def slug(heading):
    """The anchor a Markdown viewer gives to a heading."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text))


def anchors_of(text):
    headings = re.findall(r"^#{1,6}\s+(.*?)\s*#*$", FENCE.sub("", text), re.MULTILINE)
    found = set()
    for heading in headings:
        base, count = slug(heading), 0
        while (name := base if count == 0 else f"{base}-{count}") in found:
            count += 1
        found.add(name)
    return found | set(re.findall(r"<a\s+(?:id|name)=\"([^\"]+)\"", text))


def documents(root):
    return [p for p in sorted(root.rglob("*.md")) if not SKIP & set(p.relative_to(root).parts)]


def where(text, position):
    return text.count("\n", 0, position) + 1


def long_lines(name, text):
    lengths = [(number, len(line)) for number, line in enumerate(text.splitlines(), 1)]
    too_long = [(number, length) for number, length in lengths if length > LONGEST_LINE]
    return [f"{name}:{number}: {length} characters; a line has at most {LONGEST_LINE}" for number, length in too_long]


def table_rows(text):
    """How many rows the tables of a text have, without their heads."""
    prose = FENCE.sub("", text)
    return len(re.findall(r"^\|.*\|\s*$", prose, re.MULTILINE)) - 2 * len(re.findall(r"^\|[\s|:-]+\|\s*$", prose, re.MULTILINE))


def too_much(name, text):
    counts = [("lines", len(text.splitlines()), MOST_LINES), ("rows in tables", table_rows(text), MOST_ROWS)]
    return [f"{name}: {n} {what}; it has at most {most[name]}" for what, n, most in counts if n > most.get(name, n)]


def check(root):
    """Every broken link or path, every long line and every long document below root, as 'file:line: what'."""
    problems = []
    for document in documents(root):
        name, text = document.relative_to(root).as_posix(), document.read_text(encoding="utf-8")
        problems += long_lines(name, text) + too_much(name, text)
        prose = FENCE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)  # same length, same lines
        for match in LINK.finditer(re.sub(r"`[^`\n]*`", lambda m: " " * len(m.group()), prose)):
            target, _, anchor = match.group(1).partition("#")
            if re.match(r"[a-z]+:", target):  # https:, mailto:
                continue
            at = f"{name}:{where(prose, match.start())}"
            file = (document.parent / target).resolve() if target else document
            if not file.exists():
                problems.append(f"{at}: link to {match.group(1)}: no such file")
            elif root.resolve() not in (file.resolve(), *file.resolve().parents):
                problems.append(f"{at}: link to {match.group(1)}: outside the repository")
            elif anchor and file.suffix == ".md" and anchor not in anchors_of(file.read_text(encoding="utf-8")):
                problems.append(f"{at}: link to {match.group(1)}: no such heading")
        for match in CODE.finditer(prose):
            for word in match.group(1).split():
                path = PATH.match(re.sub(r"(:\d+)?[.,:;]*$", "", word))
                if path and not any((root / prefix / path.group(1)).exists() for prefix in ("", "src", "include")):
                    problems.append(f"{name}:{where(prose, match.start())}: names `{path.group(1)}`: no such file")
    return problems


def self_test():
    cases = [  # (text, how many problems)
        ("[a](other.md) [b](other.md#two-words) [c](https://example.org/x) [d](#here)\n## Here\n", 0),
        ("[a](missing.md)", 1),
        ("[a](other.md#three)", 1),
        ("![p](docs/missing.png)", 1),
        ("see `src/here.cpp` and `src/gone.cpp:3`, `src/<name>.cpp`, `build/cpu/bin/keyhole`", 1),
        ("```\n[a](missing.md) `src/gone.cpp`\n```\nand `[a](missing.md)`", 0),
        ("[a](../../etc/passwd)", 1),
        ("ü" * 160 + "\n", 0),
        ("```\n" + "a" * 161 + "\n```\n" + "| a " * 41 + "\n", 2),  # code and tables, too
        ("a\n" * 120, 0),
        ("a\n" * 121, 1),
        ("| a | b |\n|---|--:|\n" + "| 1 | - |\n" * 8 + "```\n| c |\n```\n", 0),
        ("| a | b |\n|---|--:|\n" + "| 1 | - |\n" * 5 + "\n| a |\n|---|\n" + "| 1 |\n" * 4, 1),
    ]
    failures = 0
    for text, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder) / "checkout"
            (root / "src").mkdir(parents=True)
            (root / "src/here.cpp").write_text("")
            (root / "other.md").write_text("# Two words\n")
            (root / "README.md").write_text(text, encoding="utf-8")
            got = check(root)
            if len(got) != expected:
                failures += 1
                print(f"{text!r}: expected {expected} problems, got {got}")
    print(f"links: {len(cases)} self-tests, {failures} failed")
    return failures != 0


def main():
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        sys.exit(self_test())
    root = pathlib.Path(arguments[0]) if arguments else pathlib.Path(__file__).resolve().parent.parent
    problems = check(root)
    for problem in problems:
        print(problem)
    print(f"links: {len(documents(root))} documents, {len(problems)} problems")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
