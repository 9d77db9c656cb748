# tests/python/test_package.py
"""The package from outside: what importing it costs, and its command line."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import keyhole
import pytest
from keyhole import _core

ROOT = pathlib.Path(__file__).resolve().parents[2]

needs_command_line = pytest.mark.skipif(
    not _core.has_command_line, reason="this build has no command line: fmt and CLI11 were not found"
)


def python(code, **options):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)


def command(*words, **options):
    return subprocess.run([sys.executable, "-m", "keyhole", *words], capture_output=True, text=True, **options)


def test_importing_imports_neither_torch_nor_numpy():
    code = "import sys, keyhole; print([m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    assert python(code, check=True).stdout.strip() == "[]"


def test_importing_is_quick():
    # Processor time, so that a busy machine does not fail: what it takes beyond starting Python.
    code = "import time; begin = time.process_time(); import keyhole; print(time.process_time() - begin)"
    assert min(float(python(code, check=True).stdout) for _ in range(3)) < 0.3


def test_importing_touches_no_gpu():
    maps = python("import keyhole; print(open('/proc/self/maps').read())", check=True).stdout
    assert "_core" in maps
    assert "libcuda.so" not in maps
    assert "/dev/nvidia" not in maps


def test_a_forked_process_goes_on_with_one_thread():
    """Its parent's threads are not there: it would wait for them."""
    code = """
import multiprocessing, numpy, keyhole
q, k, v = numpy.random.default_rng(0).standard_normal((3, 2, 4, 200, 16))
def run(_): return keyhole.attention(q, k, v, "causal & window(9)")
expected = run(0)
with multiprocessing.get_context("fork").Pool(2) as pool:
    print([numpy.array_equal(x, expected) for x in pool.map(run, range(3))])
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "4"}
    assert python(code, env=environment, check=True, timeout=120).stdout.strip() == "[True, True, True]"


def test_everything_exported_is_there():
    for name in keyhole.__all__:
        assert getattr(keyhole, name) is not None
    assert set(keyhole.__all__) <= set(dir(keyhole))


@pytest.mark.parametrize("name", ["nn", "scaled_dot_product_attention"])
def test_what_needs_torch_is_not_there_without_it(name):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import inspect, pydoc, keyhole\n"
        f"assert not hasattr(keyhole, {name!r})\n"
        f"assert {name!r} not in dict(inspect.getmembers(keyhole))\n"
        "assert 'causal' in pydoc.render_doc(keyhole)\n"
        f"try:\n    keyhole.{name}\nexcept AttributeError as error:\n    print(error)\n"
    )
    said = python(code, check=True).stdout
    assert said.startswith(f"keyhole.{name} needs torch, which cannot be imported here (")
    assert said.endswith("install it: pip install 'keyhole[torch]'\n")


def test_one_version_for_all():
    project = re.search(r"project\(keyhole VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    assert keyhole.__version__ == _core.version() == project


def installed_files():
    try:
        distribution = importlib.metadata.distribution("keyhole")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("keyhole is not installed with pip: this is a build tree")
    return distribution, sorted(str(path) for path in distribution.files)


def test_the_wheel_holds_the_package_and_nothing_else():
    distribution, files = installed_files()
    assert distribution.version == keyhole.__version__
    if any("editable" in name for name in files):
        pytest.skip("an editable installation has its files elsewhere")
    sources = {
        f"keyhole/{path.relative_to(ROOT / 'python/keyhole')}"
        for path in (ROOT / "python/keyhole").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.endswith(".so")
    }
    kept = {name for name in files if "__pycache__" not in name and ".dist-info" not in name}
    kept = {name for name in kept if not name.startswith("keyhole.libs/")}  # where auditwheel puts libraries
    extension = {name for name in kept if re.fullmatch(r"keyhole/_core\.[\w.-]+\.so", name)}
    assert len(extension) == 1
    assert kept - extension - sources == {"../../../bin/keyhole"}
    assert sources <= kept


@needs_command_line
def test_the_command_line_is_the_library_s():
    done = command("show", "causal & window(1)", "--len", "3")
    assert done.returncode == 0
    assert done.stdout == "causal & window(1)   3 x 3, 5 of 9 pairs (55.6%)\n# . .\n# # .\n. # #\n"
    assert command("--version").stdout == f"keyhole {keyhole.__version__}\n"


@needs_command_line
def test_exit_codes_are_kept():
    done = command("shw")
    assert done.returncode == 2
    assert done.stderr == 'error: unknown verb "shw"; did you mean "show"?\n'
    assert done.stdout == ""


@needs_command_line
def test_what_python_printed_comes_first():
    code = "from keyhole.__main__ import main; print('first'); main(['--version']); print('last')"
    assert python(code, check=True).stdout.split("\n")[0::2][:2] == ["first", "last"]


@needs_command_line
def test_words_need_not_be_utf8(tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff.svg"
    done = subprocess.run([sys.executable, "-m", "keyhole", "show", "causal", "--len", "4", "--svg", name], check=True)
    assert done.returncode == 0
    assert os.path.exists(name)


@needs_command_line
def test_a_closed_pipe_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m keyhole info --patterns --json | head -1", shell=True, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stderr == ""


@needs_command_line
def test_control_c_ends_it():
    process = subprocess.Popen(
        [sys.executable, "-m", "keyhole", "check", "--all"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    time.sleep(2.0)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


@needs_command_line
def test_signals_are_python_s_again_afterwards():
    code = (
        "import os, signal, keyhole.__main__ as m\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in what a shell runs in the background
        "m.main(['--version'])\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    import time; time.sleep(5)\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n"
    )
    assert python(code, check=True).stdout.endswith("interrupted\n")


@pytest.mark.skipif(_core.has_command_line, reason="this build has a command line")
def test_without_the_command_line_it_says_what_to_install():
    done = command("--version")
    assert done.returncode == 2
    assert "apt-get install libfmt-dev libcli11-dev" in done.stderr
