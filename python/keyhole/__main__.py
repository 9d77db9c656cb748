# python/keyhole/__main__.py
"""`python -m keyhole` and the program `keyhole`: the command line."""

from __future__ import annotations

import os
import sys

from . import _core

__all__ = ["main"]


def main(words: list[str] | None = None) -> int:
    """Runs the command line with `words`, by default sys.argv[1:], and returns its exit code."""
    # The library writes to C's stdout, so flush what Python has buffered before it.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        return _core.command_line([os.fsencode(word) for word in (sys.argv[1:] if words is None else words)])
    except NotImplementedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
