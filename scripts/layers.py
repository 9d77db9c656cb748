#!/usr/bin/env python3
# scripts/layers.py
# Reads the #include lines of the checkout and fails when a folder includes something it may not see.
# The direction is the one of docs/architecture.md: nothing on the left knows of anything on its right.
"""usage: layers.py [--self-test] [ROOT]"""

import pathlib
import re
import sys
import tempfile

# Folder -> what its files may include: a folder ("base/") or one header ("plan/view.h"). A folder may
# always include itself. "keyhole/" are the public headers.
MAY_INCLUDE = {
    "include/keyhole": [],
    "src/base": ["keyhole/tensor.h", "keyhole/error.h", "keyhole/normalizer.h", "keyhole/version.h"],
    "src/pattern": ["base/", "keyhole/pattern.h", "keyhole/error.h"],
    "src/render": ["base/", "pattern/", "keyhole/"],
    "src/reference": ["base/", "pattern/", "keyhole/"],
    "src/plan": ["base/", "pattern/", "keyhole/plan.h", "keyhole/pattern.h", "keyhole/error.h"],
    # A kernel cannot tell which pattern it is running: one header of plan/, nothing of pattern/.
    "src/kernels": ["base/", "plan/view.h", "keyhole/tensor.h", "keyhole/error.h", "keyhole/normalizer.h"],
    "src/runtime": ["base/", "pattern/", "plan/", "kernels/", "keyhole/"],
    "src/select": ["base/", "pattern/", "plan/", "kernels/", "runtime/", "keyhole/"],
    # The api also offers the reference as a backend; they share nothing further left.
    "src/api": ["base/", "pattern/", "reference/", "plan/", "kernels/", "runtime/", "select/", "keyhole/"],
    # What kernels are judged by. The library has no part of it: only the programs and tests around it may include it.
    "src/judge": ["base/", "pattern/", "reference/", "plan/", "kernels/", "runtime/", "select/", "keyhole/"],
    "examples": ["keyhole/"],  # only what is installed
    "course": ["keyhole/"],
    "tests/consumer": ["keyhole/"],
}

# What several backends share: device/ on any GPU, mma/ on tensor cores by mma.sync.
SHARED_BY_BACKENDS = ("device", "mma")

# Libraries of others -> the only places that may include them. No entry: the standard library, POSIX.
THIRD_PARTY = {
    r"(fmt|CLI)/": ["cli/", "tests/"],
    r"nlohmann/": [r"src/.*\.cpp$", "cli/", "tests/"],  # never in a header of the library
    r"hwy/": ["src/kernels/"],
    r"omp\.h$": [r"src/base/parallel\.cpp$"],
    r"png\.h$": ["cli/", "tests/cli/"],
    r"(nanobind/|Python\.h)": ["python/"],
    r"(gtest|gmock|rapidcheck)[/.]": ["tests/"],
    r"(cuda|cub|cute|thrust|nv)[a-z_]*[/.]": ["src/kernels/", "src/runtime/", "src/select/", "cli/gpu/", "tests/", "course/"],
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
OUR_FOLDERS = {p.split("/")[1] for p in MAY_INCLUDE if p.startswith("src/")} | {"keyhole"}
SOURCES = ("*.h", "*.cpp", "*.cuh", "*.cu")


def includes_of(path):
    """[(line number, header)] of one file."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return [(text.count("\n", 0, m.start(2)) + 1, m.group(2)) for m in INCLUDE.finditer(text)]


def our_files(root):
    """Every C++ and CUDA file of the folders that have rules, as paths relative to root."""
    for top in ("include", "src", "cli", "python", "bench", "tests", "examples", "course", "fuzz"):
        for pattern in SOURCES:
            yield from (p.relative_to(root).as_posix() for p in sorted((root / top).rglob(pattern)))


def backend_of(name):
    """kernels/<backend>/...: which backend; None for what backends share."""
    match = re.match(r"(?:src/)?kernels/([^/]+)/", name)
    return match.group(1) if match and match.group(1) not in SHARED_BY_BACKENDS else None


def objections(name, header):
    """Why file `name` may not include `header`: at most a few sentences, none when it may."""
    found = []
    top = header.split("/")[0]
    if "/" in header and top in OUR_FOLDERS:
        for folder, allowed in MAY_INCLUDE.items():
            if not name.startswith(folder + "/"):
                continue
            own = folder.split("/")[-1] + "/"
            if not header.startswith((own, *[a for a in allowed if a.endswith("/")])) and header not in allowed:
                found.append(f"{folder} may include {', '.join([own, *allowed])}")
        mine, other = backend_of(name), backend_of(header)
        if mine and other and mine != other:
            found.append(f"backends do not include each other ({mine}, {other}); share it in kernels/device/")
        if name.startswith("src/kernels/") and mine is None and other:
            found.append(f"what backends share does not include one of them ({other})")
    if name.startswith("src/") and top in ("cli", "bench", "tests", "examples"):
        found.append("the library knows nothing of the programs around it")
    for pattern, places in THIRD_PARTY.items():
        if re.match(pattern, header) and not any(re.match(place, name) for place in places):
            found.append(f"only {', '.join(places)} may include it")
    return found


def check(root):
    """Every violation below root, as 'file:line: includes X: why'."""
    problems = []
    for name in our_files(root):
        for line, header in includes_of(root / name):
            problems += [f"{name}:{line}: includes {header}: {why}" for why in objections(name, header)]
        if name.startswith(("include/", "src/")) and name != "src/base/parallel.cpp":
            text = (root / name).read_text(encoding="utf-8", errors="replace")
            if re.search(r"^\s*#\s*pragma\s+omp\b", text, re.MULTILINE):
                problems.append(f"{name}: #pragma omp: only src/base/parallel.cpp may use OpenMP")
        if name.startswith("src/") and not any(name.startswith(f + "/") for f in MAY_INCLUDE):
            problems.append(f"{name}: its folder has no rule in scripts/layers.py")
    return problems


def self_test():
    """Each wrong line must be found, each right one must not."""
    wrong = [
        ("src/base/a.h", '#include "pattern/node.h"'),
        ("src/pattern/a.cpp", '  #  include "plan/view.h"'),
        ("src/kernels/cpu/a.cpp", '#include "plan/lists.h"'),
        ("src/kernels/cpu/b.cpp", '#include "pattern/node.h"'),
        ("src/kernels/cpu/c.cpp", '#include "kernels/sm80/ptx.cuh"'),
        ("src/kernels/sm90/a.cuh", '#include "kernels/sm80/ptx.cuh"'),
        ("src/kernels/sm80/a.cuh", '#include "kernels/sm90/backward_launch.h"'),
        ("src/kernels/sm90/b.cuh", '#include "kernels/sm80/backward_launch.h"'),
        ("src/kernels/mma/a.cuh", '#include "kernels/sm80/config.h"'),
        ("src/kernels/device/a.cuh", '#include "kernels/sm90/ptx.cuh"'),
        ("src/kernels/d.cpp", '#include "keyhole/pattern.h"'),
        ("src/plan/a.h", "#include <nlohmann/json.hpp>"),
        ("src/plan/a.cpp", "#include <omp.h>"),
        ("src/plan/b.cpp", "#pragma omp parallel for"),
        ("src/runtime/a.cpp", "#include <fmt/format.h>"),
        ("src/pattern/b.cpp", "#include <cuda_runtime.h>"),
        ("include/keyhole/a.h", '#include "base/check.h"'),
        ("examples/a.cpp", '#include "plan/lists.h"'),
        ("course/01_a/a.cpp", '#include "reference/attention.h"'),
        ("src/api/a.cpp", '#include "cli/common.h"'),
        ("src/runtime/b.cpp", '#include "judge/judge.h"'),
        ("src/judge/a.cpp", '#include "api/check_arguments.h"'),
        ("src/elsewhere/a.cpp", "#include <vector>"),
    ]
    right = [
        ("src/kernels/cpu/a.cpp", '#include "plan/view.h"\n#include <hwy/highway.h>'),
        ("src/kernels/sm90/a.cuh", '#include "kernels/device/reduce.cuh"\n#include <cuda/ptx>'),
        ("src/kernels/sm90/c.cuh", '#include "kernels/mma/gather_launch.h"'),
        ("src/plan/a.cpp", '#include "pattern/node.h"\n#include <nlohmann/json.hpp>\n#include <vector>'),
        ("src/base/parallel.cpp", "#include <omp.h>\n#pragma omp parallel"),
        ("src/judge/a.cpp", '#include "reference/attention.h"\n#include "runtime/dispatch.h"'),
        ("examples/a.cpp", "#include <keyhole/keyhole.h>"),
        ("course/01_a/a.cu", '#include <cuda_runtime.h>\n#include "common/gpu.h"\n#include <keyhole/plan.h>'),
    ]
    failures = 0
    for lines, expected in ((wrong, True), (right, False)):
        for name, text in lines:
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / name
                path.parent.mkdir(parents=True)
                path.write_text(text + "\n")
                if bool(check(pathlib.Path(folder))) != expected:
                    failures += 1
                    print(f"{name}: {text!r} was {'accepted' if expected else 'refused'}")
    print(f"layers: {len(wrong) + len(right)} self-tests, {failures} failed")
    return failures != 0


def main():
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        sys.exit(self_test())
    root = pathlib.Path(arguments[0]) if arguments else pathlib.Path(__file__).resolve().parent.parent
    problems = check(root)
    for problem in problems:
        print(problem)
    num_files = len(list(our_files(root)))
    print(f"layers: {num_files} files, {len(problems)} violations")
    if num_files == 0:
        print(f"layers: no sources below {root}; is it the checkout?")
    sys.exit(bool(problems) or num_files == 0)


if __name__ == "__main__":
    main()
