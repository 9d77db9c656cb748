#!/usr/bin/env python3
# course/common/expect.py
"""usage: expect.py EXPECTED PROGRAM [ARGUMENT...]

Runs PROGRAM and compares what it prints with the file EXPECTED. Lengths of white space do not matter. In EXPECTED
  <n>       stands for any number
  <1..2>    stands for a number from 1 to 2; one of the two may be left out
  ...       alone on a line stands for any lines, also none
A last line "exit N" says that the program ends with status N instead of 0. A program that ends with status 77 could not
run here.
"""

import re
import subprocess
import sys

NUMBER = r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)"
HOLE = re.compile(r"<(?:n|(-?[\d.e+-]*?)\.\.(-?[\d.e+-]*))>")
SKIPPED = 77


def fits(expected, printed):
    """Whether one printed line is what one expected line says."""
    ranges, pattern, at = [], "", 0
    expected, printed = " ".join(expected.split()), " ".join(printed.split())
    for hole in HOLE.finditer(expected):
        pattern += re.escape(expected[at : hole.start()]) + f"({NUMBER})"
        ranges.append((float(hole[1] or "-inf"), float(hole[2] or "inf")) if hole[1] is not None else None)
        at = hole.end()
    match = re.fullmatch(pattern + re.escape(expected[at:]), printed)
    if match is None:
        return False
    return all(r is None or r[0] <= float(text) <= r[1] for r, text in zip(ranges, match.groups(), strict=True))


def first_difference(expected, printed):
    """(expected line, printed line) where they part, None where they agree."""
    at = 0
    for number, line in enumerate(expected):
        if line.strip() == "...":
            rest = expected[number + 1 :]
            tails = range(at, len(printed) + 1)
            if any(first_difference(rest, printed[tail:]) is None for tail in tails):
                return None
            return (rest[0] if rest else "", "nothing like it below: " + " | ".join(printed[at : at + 3]))
        if at == len(printed) or not fits(line, printed[at]):
            return (line, printed[at] if at < len(printed) else "(the output ends here)")
        at += 1
    return None if at == len(printed) else ("(the output ends here)", printed[at])


def main(arguments):
    if len(arguments) < 2:
        sys.exit(__doc__)
    with open(arguments[0], encoding="utf-8") as file:
        expected = file.read().rstrip().split("\n")
    status = 0
    if match := re.fullmatch(r"exit (\d+)", expected[-1]):
        status = int(match[1])
        expected.pop()
    run = subprocess.run(arguments[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if run.returncode == SKIPPED:
        print("expect.py: Skipped")  # as GoogleTest says it: scripts/test counts the reasons that follow
        print(run.stdout, end="")
        sys.exit(SKIPPED)
    print(run.stdout, end="")
    if run.returncode != status:
        sys.exit(f"expect.py: the program ended with status {run.returncode}, not {status}")
    if difference := first_difference(expected, run.stdout.rstrip().split("\n")):
        sys.exit(f"expect.py: {arguments[0]} says\n  {difference[0]}\nbut the program printed\n  {difference[1]}")


if __name__ == "__main__":
    main(sys.argv[1:])
