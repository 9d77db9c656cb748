# tests/python/properties.py
"""hypothesis for tests that draw their inputs. Where it is not installed those tests are skipped, and the others of a
file run.
"""

try:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st
except ModuleNotFoundError:
    import pytest

    class Nothing:
        """In place of a strategy, which a skipped test only mentions."""

        def __getattr__(self, name):
            return self

        def __call__(self, *arguments, **options):
            return self

    HealthCheck = st = Nothing()

    def given(*arguments, **options):
        return pytest.mark.skip(reason="hypothesis is not installed")

    def settings(**options):
        return lambda test: test


__all__ = ["HealthCheck", "given", "settings", "st"]
