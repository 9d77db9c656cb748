# docs/site/conf.py
# The documentation site, made from the Markdown files of the repository where they lie, so that a link means the
# same here and on a code host:
#
#   sphinx-build -W -c docs/site . out/site        (Debian 12: python3-sphinx python3-myst-parser furo)
#
# The first folder is the root of the repository; the pages are those listed in docs/index.md.

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(ROOT / "python")]  # the extensions below; keyhole


def version_in_header():
    text = (ROOT / "include/keyhole/version.h").read_text(encoding="utf-8")
    return ".".join(re.search(rf"kVersion{part} = (\d+)", text).group(1) for part in ("Major", "Minor", "Patch"))


project = "Keyhole"
author = "The Keyhole maintainers"
copyright = author
version = release = version_in_header()

extensions = ["myst_parser", "sphinx.ext.autodoc", "headers", "python_api"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "course/**.md", "records/**.md", "CONTRIBUTING.md", "CHANGELOG.md"]
exclude_patterns = ["build", "out", ".venv", ".git", ".ci", "src", "tests", "python"]

# The reference is made of docstrings alone: the site needs no build of the extension, and none of its packages.
autodoc_mock_imports = ["keyhole._core", "numpy", "torch", "transformers", "matplotlib"]
smartquotes = False  # code is quoted as it is typed
autodoc_member_order = "bysource"

myst_heading_anchors = 3  # the anchors that a code host gives to headings

html_theme = "furo"
html_title = f"Keyhole {version}"
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_additional_pages = {"index": "to_first_page.html"}  # the site's address is that of its root
templates_path = ["templates"]
html_copy_source = False
