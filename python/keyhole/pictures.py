# python/keyhole/pictures.py
"""Patterns as pictures: printed, written to files, and shown by notebooks. The library draws them."""

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
        raise ValueError(f"show: {name!r} ends neither in .svg nor in .html")
    with open(name, "w", encoding="utf-8") as file:
        file.write(content)


def svg(pattern: Pattern, shape: Shape) -> str:
    """The picture of head 0 of batch entry 0."""
    return _core.picture_svg(pattern.core, shape, 0, 0)


def svg_with_report(pattern: Pattern, shape: Shape, report: str) -> str:
    """The picture with numbers beside it, as a notebook shows it.

    As an image of its own: what an SVG in the page says of its classes would hold for all of the page, and notebooks
    that are not trusted yet (others', and ours opened again) would leave it out.
    """
    data = base64.b64encode(svg(pattern, shape).encode()).decode()
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:1em;align-items:flex-start">'
        f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(str(pattern))}"><pre>{escape(report)}</pre></div>'
    )
