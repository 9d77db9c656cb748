#!/usr/bin/env python3
# scripts/slowest.py
# Where the time of scripts/test went: the slowest compile steps, as ninja logged them, and the slowest tests, as ctest and
# pytest printed them. Wall time, with as many at a time as there are cores.
"""usage: slowest.py [--since SECONDS] [--lines COUNT] LOGS BUILDS
LOGS: a folder with the logs of steps. BUILDS: a folder of build folders; what was made before SECONDS (since 1970) is left
out. COUNT lines of each, compile steps and tests."""

import argparse
import pathlib
import re

# "12/57 Test #12: plan.all .......   Passed   73.21 sec", and pytest's "12.34s call     tests/python/test_x.py::test_y"
CTEST = re.compile(r"^ *\d+/\d+ Test +#\d+: (\S+) \.+[* ]*\S.*? +(\d+\.\d+) sec", re.MULTILINE)
PYTEST = re.compile(r"^(\d+\.\d+)s (?:call|setup|teardown) +(.+)$", re.MULTILINE)


def compile_steps(build, since):
    log = build / ".ninja_log"
    steps = {}  # the last one of an output counts
    for line in log.read_text().splitlines() if log.exists() else []:
        fields = line.split("\t")
        if len(fields) == 5:
            steps[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
    for output, seconds in steps.items():
        path = build / output
        if path.exists() and path.stat().st_mtime >= since:
            name = re.sub(r"CMakeFiles/[^/]*\.dir/|\.o$", "", output)
            yield seconds, build.name, name


def tests(log):
    text = log.read_text(errors="replace")
    for name, seconds in CTEST.findall(text):
        yield float(seconds), log.stem, name
    for seconds, name in PYTEST.findall(text):
        yield float(seconds), log.stem, name


def main():
    parser = argparse.ArgumentParser(usage=__doc__.removeprefix("usage: "))
    parser.add_argument("--since", type=float, default=0)
    parser.add_argument("--lines", type=int, default=6)
    parser.add_argument("logs", type=pathlib.Path)
    parser.add_argument("builds", type=pathlib.Path)
    given = parser.parse_args()
    compiled = [row for build in given.builds.glob("*/") for row in compile_steps(build, given.since)]
    tested = [row for log in given.logs.glob("*.log") for row in tests(log)]
    for what, rows in (("compile", compiled), ("test", tested)):
        for seconds, where, name in sorted(rows, reverse=True)[: given.lines]:
            print(f"{seconds:6.1f} s  {what:7}  {where:11}  {name}")


if __name__ == "__main__":
    main()
