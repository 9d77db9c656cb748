# docs/site/python_api.py
# The reference of the Python package from its docstrings, by autodoc.
#
#   ```{eval-rst}
#   .. exported:: keyhole.leaves       what keyhole exports of that module, by the name that users write
#   ```
#
# Every name that keyhole exports must be shown somewhere; one that is not is a warning. Docstrings are written to be
# read by help(): plain text, `code` in single backquotes, arguments as two columns. as_rst() gives them the
# punctuation that Sphinx wants.

import importlib
import inspect
import re

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.ext.autodoc.mock import _MockObject, mock
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

# What stands in for a package that is not imported can be one side of a union: `Plan | torch.Tensor`.
_MockObject.__or__ = _MockObject.__ror__ = lambda self, other: self

ARGUMENT = re.compile(r"(?P<names>\w+(?:, \w+)*)(?:\s{2,}(?P<text>\S.*))?$")


def inline(text):
    """`code` as ``code``; the rest without characters that mean something to reStructuredText."""
    pieces = re.split(r"(``[^`]*``|`[^`]*`)", text)
    return "".join(
        f"``{piece.strip('`')}``" if i % 2 else re.sub(r"([*|\\]|_\b)", r"\\\1", piece)
        for i, piece in enumerate(pieces)
    )


def is_table(block):
    """Whether it is two columns: names of arguments, and what they are."""
    first = ARGUMENT.match(block[0])
    return first is not None and (first["text"] is not None or (block[1:2] != [] and block[1].startswith("  ")))


def table_as_rst(block):
    """A definition list, one entry for each argument."""
    lines = []
    for line in block:
        argument = ARGUMENT.match(line)
        if argument:
            names = ", ".join(f"``{name}``" for name in argument["names"].split(", "))
            lines += ["", names]
            line = argument["text"] or ""
        if line:
            lines.append("    " + inline(line.strip()))
    return lines[1:]


def as_rst(docstring):
    """The lines of a docstring as reStructuredText."""
    lines = []
    for block in re.split(r"\n\s*\n", "\n".join(docstring).strip("\n")):
        block = block.splitlines() or [""]
        if block[0].startswith(">>>"):
            lines += block
        elif is_table(block):
            lines += table_as_rst(block)
        else:
            lines += [inline(line) for line in block]
        lines.append("")
    return lines


class Exported(SphinxDirective):
    required_arguments = 1

    def run(self):
        with mock(self.config.autodoc_mock_imports):
            package, module = (importlib.import_module(name) for name in ("keyhole", self.arguments[0]))
        names = [name for name in module.__all__ if name in dir(package)]  # also those that load later
        lines = StringList()
        for name in names:
            is_class = inspect.isclass(getattr(module, name))
            kind = "class" if is_class else "function" if callable(getattr(module, name)) else "data"
            lines.append(f".. auto{kind}:: keyhole.{name}", self.get_source_info()[0])
            lines.append("   :members:" if is_class else "", self.get_source_info()[0])
            lines.append("", self.get_source_info()[0])
        self.env.metadata[self.env.docname].setdefault("exported", []).extend(names)
        shown = nodes.section()
        shown.document = self.state.document
        self.state.nested_parse(lines, self.content_offset, shown)
        return shown.children


def warn_of_missing(app, env):
    with mock(app.config.autodoc_mock_imports):
        exported = importlib.import_module("keyhole").__all__
    shown = {name for page in env.metadata.values() for name in page.get("exported", ())}
    shown |= {name.removeprefix("keyhole.") for name in env.get_domain("py").modules}  # by automodule
    for name in sorted(set(exported) - shown):
        logging.getLogger(__name__).warning("keyhole.%s is exported, but no page of docs/api/ shows it", name)


def rewrite(app, what, name, object_, options, lines):
    lines[:] = as_rst(lines)


def setup(app):
    app.add_directive("exported", Exported)
    app.connect("autodoc-process-docstring", rewrite)
    app.connect("env-check-consistency", warn_of_missing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
