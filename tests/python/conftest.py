# tests/python/conftest.py
"""Without torch, the tests that need it are left out, and the first lines of the report say so."""

import importlib.util

HAS_TORCH = importlib.util.find_spec("torch") is not None
collect_ignore_glob = [] if HAS_TORCH else ["test_torch_*.py"]


def pytest_report_header() -> str:
    return "" if HAS_TORCH else "torch is not installed: test_torch_*.py are left out"
