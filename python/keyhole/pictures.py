# python/keyhole/pictures.py
"""Pictures of patterns: printed, written to files, and shown in notebooks. The C++ library draws them."""

from __future__ import annotations

import base64
import os
from html import escape
from typing import TYPE_CHECKING

from . import _core

if TYPE_CHECKING:
    from .pattern import Pattern

__all__ = ["Shape", "show", "svg", "svg_with_report"]

Shape = tuple[int, int, int, int, int]  # q_len, k_len, batch, heads, offset


def show(
    pattern: Pattern,
    shape: Shape,
    path: str | os.PathLike[str] | None,
    batch: int,
    head: int,
    explain: str,
) -> None:
    """Prints the picture or, with a path that ends in .svg or .html, writes it there."""
    if path is None:
        print(_core.picture_text(pattern.core, shape, batch, head), end="")
        return
    name = os.fspath(path)
    if name.endswith(".svg"):
        content = _core.picture_svg(pattern.core, shape, batch, head)
    elif name.endswith(".html"):
        content = _core.picture_html(pattern.core, shape, batch, head, explain)
    else:
        raise ValueError(f"show: path is {name!r}, which ends neither in .svg nor in .html; these are the formats")
    with open(name, "w", encoding="utf-8") as file:
        file.write(content)


def svg(pattern: Pattern, shape: Shape) -> str:
    """The picture of head 0 of batch entry 0."""
    return _core.picture_svg(pattern.core, shape, 0, 0)


def svg_with_report(pattern: Pattern, shape: Shape, report: str) -> str:
    """HTML for a notebook: the picture with the report beside it.

    The SVG is embedded as an image. Inline, its style rules would apply to the whole page, and notebooks that are not
    trusted (other people's, and one's own after reopening) would not show it.
    """
    data = base64.b64encode(svg(pattern, shape).encode()).decode()
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:1em;align-items:flex-start">'
        f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(str(pattern))}"><pre>{escape(report)}</pre></div>'
    )
