# tests/python/test_docs_examples.py
"""What the documents show is what happens. The blocks of a page, in order:

```python          runs, in one namespace for the page; a ```text block right below it is what it must print. What
                   begins with >>> has its results between its lines
```python cuda     the same, where torch has a GPU
```python theirs   another library's call, shown beside ours: must be Python, is not run
```cpp             must stand, word for word, in a file of examples/, which the C++ tests compile and run
"""

import contextlib
import dataclasses
import doctest
import functools
import importlib.util
import io
import linecache
import pathlib
import re
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))  # README.md shows sketches
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass
class Block:
    language: str
    mark: str  # what follows the language
    text: str
    line: int
    prints: "str | None" = None  # of a Python block: the text block right below


def blocks_of(markdown):
    found, end = [], -1
    for match in FENCE.finditer(markdown):
        language, _, mark = match["info"].strip().partition(" ")
        block = Block(language, mark, match["text"], markdown.count("\n", 0, match.start()) + 2)
        is_below = found and not markdown[end : match.start()].strip()
        if language == "text" and is_below and found[-1].language == "python":
            found[-1].prints = block.text
        found.append(block)
        end = match.end()
    return found


def pages_with(language):
    pages = [page for page in PAGES if any(b.language == language for b in blocks_of(page.read_text(encoding="utf-8")))]
    return [pytest.param(page, id=page.stem) for page in pages]


def has_cuda():
    torch = pytest.importorskip("torch")
    return torch.cuda.is_available()


def run(block, page, namespace):
    assert block.mark in ("", "cuda", "theirs"), f"{page.name}:{block.line}: a Python block is marked {block.mark!r}"
    is_run = block.mark == "" or (block.mark == "cuda" and has_cuda())
    if block.text.startswith(">>>"):
        run_doctest(block, page, namespace)
        return
    # Empty lines in front, so that a traceback names the line of the page. Not by its path: Dynamo of torch 2.6 reads
    # the file of what it compiles, as Python.
    text, name = "\n" * (block.line - 1) + block.text, f"<{page.name}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    code = compile(text, name, "exec")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(code if is_run else "", namespace)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("keyhole"):
            raise
        pytest.skip(f"{page.name}:{block.line} needs {error.name}, which is not installed")
    if is_run and block.prints is not None:
        assert printed.getvalue().rstrip() == block.prints.rstrip(), f"{page.name}:{block.line}"


def run_doctest(block, page, namespace):
    printed = io.StringIO()
    test = doctest.DocTestParser().get_doctest(block.text, namespace, page.name, str(page), block.line - 1)
    doctest.DocTestRunner(verbose=False).run(test, out=printed.write, clear_globs=False)
    namespace.update(test.globs)
    assert not printed.getvalue(), printed.getvalue()


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_blocks(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # pages may save what they show
    if importlib.util.find_spec("torch"):
        import torch

        # Traced and partitioned as by default, without the minutes in which C++ is made of it: test_inductor sees that.
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    namespace = {"__name__": f"docs.{page.stem}"}
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if block.language == "python":
            run(block, page, namespace)


@pytest.mark.parametrize("page", pages_with("cpp"))
def test_cpp_blocks_are_excerpts(page):
    # Layout is clang-format's, and differs with the depth of a piece of code: words are compared, not lines.
    words = [" ".join(p.read_text(encoding="utf-8").split()) for p in sorted((ROOT / "examples").glob("*.cpp"))]
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if block.language == "cpp":
            excerpt = " ".join(textwrap.dedent(block.text).split())
            assert any(excerpt in text for text in words), f"{page.name}:{block.line} is in no file of examples/"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_settings_of_pip_are_passed_by_their_long_name(page):
    """The pip of Debian 12 does not know -C."""
    options = "\n".join(
        p.read_text(encoding="utf-8") for p in (ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake"))
    )
    for how, name in re.findall(r"(\S*)\bcmake\.define\.(\w+)", page.read_text(encoding="utf-8")):
        assert how.lstrip("`(") == "--config-settings=", f"{page.name} passes {name} by {how!r}"
        assert f"set({name} " in options, f"{page.name} names {name}, which CMake does not know"


def test_blocks_are_read_as_meant():
    blocks = blocks_of(
        "a\n```python\nprint(1)\n```\n```text\n1\n```\n\n```python cuda\nx\n```\nwords\n```text\ny\n```\n"
    )
    assert [(b.language, b.mark, b.prints, b.line) for b in blocks] == [
        ("python", "", "1\n", 3),
        ("text", "", None, 6),
        ("python", "cuda", None, 10),
        ("text", "", None, 14),
    ]
