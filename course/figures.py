#!/usr/bin/env python3
# course/figures.py
"""usage: figures.py PROGRAMS [CHAPTER...]

Draws the figures of the chapters (all, or those that are named) beside their README.md. Each chapter's figure.py has a
function draw(pyplot, programs, folder), which runs programs of that chapter and saves PNG files in its folder. PROGRAMS
is the folder of the built programs, such as build/course/course.
"""

import importlib.util
import pathlib
import sys

COURSE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(COURSE))  # common.figure


def main(arguments):
    if not arguments or arguments[0].startswith("-"):
        sys.exit(__doc__)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    programs = pathlib.Path(arguments[0]).resolve()
    chapters = arguments[1:] or sorted(path.parent.name for path in COURSE.glob("[0-9]*/figure.py"))
    for chapter in chapters:
        path = COURSE / chapter / "figure.py"
        if not path.is_file():
            known = ", ".join(sorted(p.parent.name for p in COURSE.glob("[0-9]*/figure.py")))
            sys.exit(f"figures.py: there is no {path.relative_to(COURSE.parent)}; chapters with figures: {known}")
        spec = importlib.util.spec_from_file_location(f"figure_{chapter}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for picture in module.draw(pyplot, programs / chapter, path.parent):
            print(f"course/{chapter}/{picture}")


if __name__ == "__main__":
    main(sys.argv[1:])
