#!/usr/bin/env python3
# tests/cli/run_transcripts.py
# Runs transcripts: text files that show commands and what they print. They are tests, documentation and
# bug reports at once.
#
#   # a comment: it has words. Lines of only '#', '.' and spaces are pictures, and so output.
#   $ keyhole show causal --len 2        run by the shell, `keyhole` on the PATH, in an empty folder
#   causal   2 x 2, {{[0-9]+}} of 4 pairs   output, stdout and stderr together; {{...}} is a regular expression
#   ...                                  any number of lines, none included
#   exit 2                               the status, when it is not 0
#
# Of a Markdown file the ```console blocks are run: what the documents show is what is printed.
# They show a machine without a GPU: one that is there is hidden. Those of tests/cli/gpu/ need one (--gpu).
"""usage: run_transcripts.py [--path FOLDER_OF_KEYHOLE] [--gpu] [--self-test] FILE..."""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def parse(text):
    """[(line number, command, expected lines, expected status)]"""
    commands = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("$ "):
            commands.append([number, line[2:], [], 0])
        elif line.startswith("# ") and re.search(r"\w", line):
            continue
        elif not commands:
            if line.strip("# "):
                raise ValueError(f"line {number}: output before the first command: {line!r}")
        elif match := re.fullmatch(r"exit (\d+)", line):
            commands[-1][3] = int(match.group(1))
        else:
            commands[-1][2].append(line)
    for command in commands:  # the empty lines that set commands apart are nobody's output
        while command[2] and not command[2][-1]:
            command[2].pop()
    return [tuple(c) for c in commands]


def console_blocks(markdown):
    """The ```console blocks of a Markdown file as one transcript, each on the lines where it stands."""
    inside, lines = False, []
    for line in markdown.splitlines():
        is_fence = line.startswith("```")
        lines.append(line if inside and not is_fence else "")
        if is_fence:
            inside = not inside and line == "```console"
    return "\n".join(lines)


def line_matches(expected, got):
    parts = re.split(r"\{\{(.*?)\}\}", expected)
    pattern = "".join(p if i % 2 else re.escape(p) for i, p in enumerate(parts))
    return re.fullmatch(pattern, got) is not None


def lines_match(expected, got):
    """Whether the expected lines, with `...` for any lines, describe all of got."""
    reachable = {0}  # how many lines of got the expected ones so far can account for
    for line in expected:
        if line == "...":
            reachable = set(range(min(reachable), len(got) + 1)) if reachable else set()
        else:
            reachable = {n + 1 for n in reachable if n < len(got) and line_matches(line, got[n])}
    return len(got) in reachable


def run(command, folder, path, with_gpu):
    environment = dict(os.environ, PATH=path, LC_ALL="C.UTF-8", NO_COLOR="1", COLUMNS="100")
    if not with_gpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(command, shell=True, executable="/bin/bash", cwd=folder, env=environment,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=120)
    lines = done.stdout.decode("utf-8", errors="replace").splitlines()
    while lines and not lines[-1]:
        lines.pop()
    return lines, done.returncode


def check(text, name, path, with_gpu=False):
    """Runs one transcript; prints what differs. Returns (commands run, failures)."""
    failures = 0
    commands = parse(text)
    # One folder for the whole transcript, so that a later command can read what an earlier one wrote.
    with tempfile.TemporaryDirectory() as folder:
        for number, command, expected, status in commands:
            got, got_status = run(command, folder, path, with_gpu)
            if got_status == status and lines_match(expected, got):
                continue
            failures += 1
            print(f"{name}:{number}: $ {command}")
            if not lines_match(expected, got):
                print("  expected:", *(f"    {line}" for line in expected), sep="\n")
                print("  printed:", *(f"    {line}" for line in got), sep="\n")
            if got_status != status:
                print(f"  exit status {got_status}, expected {status}")
    return len(commands), failures


def why_no_gpu(path):
    """Why there is none, or nothing."""
    done = subprocess.run(["keyhole", "info", "--json"], env=dict(os.environ, PATH=path), capture_output=True,
                          check=True, timeout=120)
    return json.loads(done.stdout)["why_no_gpu"]


def self_test():
    cases = [  # (transcript, how many commands fail)
        ("# comment\n$ echo a; echo b >&2\na\nb\n\n# comment\n$ false\nexit 1\n", 0),
        ("$ echo a\nb\n", 1),
        ("$ echo a\n", 1),
        ("$ true\nexit 2\n", 1),
        ("$ exit 3\nexit 3\n", 0),
        ("$ seq 5\n1\n...\n5\n", 0),
        ("$ seq 5\n...\n4\n", 1),
        ("$ echo took 12 ms\ntook {{[0-9]+}} ms\n", 0),
        ("$ echo took long ms\ntook {{[0-9]+}} ms\n", 1),
        ("$ printf '# .\\n# #\\n'\n# .\n# #\n# comment\n", 0),
        ("$ printf '# .\\n# #\\n'\n# .\n# .\n", 1),
        ("$ echo x > file\n$ cat file\nx\n", 0),
    ]
    markdown = "text\n```console\n$ echo a\na\n```\n$ false\n```sh\n$ false\n```\n"
    cases.append((console_blocks(markdown), 0))
    wrong = [t for t, expected in cases if check(t, "self-test", os.environ["PATH"])[1] != expected]
    for text in wrong:
        print(f"wrong verdict on {text!r}")
    print(f"transcripts: {len(cases)} self-tests, {len(wrong)} failed")
    return bool(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", help="the folder that holds the keyhole program")
    parser.add_argument("--gpu", action="store_true", help="transcripts of a machine with a GPU; 77: there is none")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    if options.self_test:
        sys.exit(self_test())
    path = os.environ["PATH"] if not options.path else f"{os.path.abspath(options.path)}:{os.environ['PATH']}"
    if options.gpu and (why := why_no_gpu(path)):
        print(f"transcripts: skipped, {why}")
        sys.exit(77)
    num_commands = num_failures = 0
    for file in options.files:
        text = file.read_text(encoding="utf-8")
        text = console_blocks(text) if file.suffix == ".md" else text
        commands, failures = check(text, file.name, path, options.gpu)
        num_commands, num_failures = num_commands + commands, num_failures + failures
    print(f"transcripts: {num_commands} commands, {num_failures} failed")
    sys.exit(num_failures != 0 or num_commands == 0)


if __name__ == "__main__":
    main()
