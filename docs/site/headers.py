# docs/site/headers.py
# A Sphinx directive that shows a public C++ header: its opening comment as text, then its declarations with their
# comments as they stand in the file, each with an anchor and a line in the index. The headers are written to be read;
# a generator that takes them apart would have less to show.
#
#   ```{cpp-header} include/keyhole/plan.h
#   ```
#
# Every header that keyhole.h includes must be shown somewhere; one that is not is a warning.

import pathlib
import re
import textwrap

from docutils import nodes
from sphinx import addnodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_id

# What a chunk declares, seen from its unindented lines.
DECLARATIONS = [
    re.compile(r"^(?:class|struct|enum class)\s+(\w+)(?!.*;$)"),
    re.compile(r"^using\s+(\w+)\s*="),
    re.compile(r"^inline constexpr\s+[\w:]+\s+(\w+)"),
    re.compile(r"^(?!friend|using|class|struct)[\w:<>*& ]+?\b(\w+)\("),
]


def read_header(text):
    """(opening comment as lines without slashes, chunks of declarations) of a header's text."""
    lines = text.splitlines()
    opening = []
    for line in lines[1:]:  # the first line is the path
        if not line.startswith("//"):
            break
        opening.append(line[2:].removeprefix(" "))
    body = lines[lines.index("namespace keyhole {") + 1 : lines.index("}  // namespace keyhole")]
    return opening, chunks_of(body)


def chunks_of(lines):
    """Pieces between blank lines that stand in no bracket; without the private members of classes."""
    chunks, chunk, depth, is_private = [], [], 0, False
    for line in lines:
        is_private = (is_private or line == " private:") and line != "};"
        if is_private:
            continue
        code = line.split("//")[0]
        depth += code.count("{") + code.count("(") - code.count("}") - code.count(")")
        if line == "};" and chunk and not chunk[-1]:
            chunk.pop()  # the blank line that stood before the private members
        if line or depth:
            chunk.append(line)
        elif chunk:
            chunks.append(chunk)
            chunk = []
    return [*chunks, chunk] if chunk else chunks


def names_in(chunk):
    found = []
    for line in chunk:
        match = next((m for m in (d.match(line) for d in DECLARATIONS) if m), None)
        if match and match.group(1) not in found and not match.group(1).startswith("operator"):
            found.append(match.group(1))
    return found


class CppHeader(SphinxDirective):
    required_arguments = 1

    def run(self):
        path = pathlib.Path(self.env.srcdir) / self.arguments[0]
        self.env.note_dependency(str(path))
        self.env.metadata[self.env.docname].setdefault("headers", []).append(path.name)
        opening, chunks = read_header(path.read_text(encoding="utf-8"))
        shown = list(self.opening(opening))
        for chunk in chunks:
            shown += self.declaration(chunk)
        return shown

    def opening(self, lines):
        """Paragraphs, and code where the comment is indented."""
        for paragraph in "\n".join(lines).split("\n\n"):
            if paragraph.startswith("  "):
                yield self.code(textwrap.dedent(paragraph))
            elif paragraph:
                yield nodes.paragraph("", paragraph.replace("\n", " "))

    def declaration(self, chunk):
        target, entries = nodes.target("", ""), []
        for name in names_in(chunk):
            anchor = make_id(self.env, self.state.document, "cpp", name)
            target["ids"].append(anchor)
            entries.append(("single", f"{name} (C++)", anchor, "", None))
        if not entries:
            return [self.code("\n".join(chunk))]
        self.state.document.note_explicit_target(target)
        return [addnodes.index(entries=entries), target, self.code("\n".join(chunk))]

    def code(self, text):
        return nodes.literal_block(text, text, language="cpp")


def warn_of_missing(app, env):
    whole = (pathlib.Path(app.srcdir) / "include/keyhole/keyhole.h").read_text(encoding="utf-8")
    shown = {name for page in env.metadata.values() for name in page.get("headers", ())}
    for name in sorted(set(re.findall(r'#include "keyhole/(.*)"', whole)) - shown):
        logging.getLogger(__name__).warning("include/keyhole/%s is public, but no page of docs/api/ shows it", name)


def setup(app):
    app.add_directive("cpp-header", CppHeader)
    app.connect("env-check-consistency", warn_of_missing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
