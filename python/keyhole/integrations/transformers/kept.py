# python/keyhole/integrations/transformers/kept.py
"""Patterns that recur in every forward pass, made once. During generation only the number of keys changes from step to
step, and a pattern that was hashed before is found fast.
"""

from __future__ import annotations

from functools import lru_cache

from ...leaves import causal as make_causal
from ...leaves import dense as make_dense
from ...leaves import window as make_window
from ...pattern import Pattern

__all__ = ["both", "causal", "dense", "either", "window"]

_MOST = 256

causal = lru_cache(maxsize=1)(make_causal)
dense = lru_cache(maxsize=1)(make_dense)
window = lru_cache(maxsize=_MOST)(make_window)


@lru_cache(maxsize=_MOST)
def both(a: Pattern, b: Pattern) -> Pattern:
    return a & b


@lru_cache(maxsize=_MOST)
def either(a: Pattern, b: Pattern) -> Pattern:
    return a | b
