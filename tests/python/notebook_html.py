# tests/python/notebook_html.py
"""What a notebook finds in the HTML of a pattern or plan."""

import base64
import re


def svg_inside(html):
    """The one picture of the page, as the browser decodes it."""
    (data,) = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]*)"', html)
    return base64.b64decode(data, validate=True).decode()
