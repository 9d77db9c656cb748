# python/keyhole/integrations/transformers/mask_functions.py
"""From the mask functions of transformers to patterns. Functions that transformers defines are recognised by their code
object and translated. Any other function is evaluated for every pair.

The translations are checked once: each entry of the tables below is compared with the function of the installed release
on a small square. An entry that does not agree is dropped, and its functions are evaluated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any

import torch
from transformers import masking_utils

from ...imports import from_mask_mod
from ...imports.rows import joined
from ...leaves import at, blocks, documents
from ...pattern import Pattern
from ...torch_attention.kept_keys import sequence_lengths
from . import kept
from .layout import Layout
from .own_pattern import Sequences

__all__ = ["packed_pattern", "pattern_of", "sequences_of"]

MaskFunction = Callable[..., Any]
# (closure of the function, layout) -> pattern in which the first key is at position 0; None if it cannot be translated.
Builder = Callable[[dict[str, Any], Layout], "Pattern | None"]


def pattern_of(function: MaskFunction, layout: Layout, device: Any) -> Pattern:
    """The pairs for which function(batch, head, query, key) is True. Its arguments are token positions; in the pattern
    the first key of the cache is at position 0."""
    found = _recognised(function, layout)
    return found if found is not None else _evaluated(function, layout, device)


def sequences_of(function: MaskFunction, layout: Layout) -> Sequences | None:
    """The lengths of the sequences packed into each batch entry, if the function masks packed sequences."""
    code: Any = getattr(function, "__code__", None)
    builder = _checked_builders().get(code)
    if builder is _packed:
        return _sequences(_closure(function), layout)
    if code == _and_code():
        for part in _closure(function)["mask_functions"]:
            found = sequences_of(part, layout)
            if found is not None:
                return found
    return None


def _evaluated(function: MaskFunction, layout: Layout, device: Any) -> Pattern:
    def of_layout(b: Any, h: Any, q: Any, k: Any) -> Any:
        return function(b, h, q + layout.q_offset, k + layout.kv_offset)

    # transformers calls these functions with h = 0 only, for all heads.
    pattern = from_mask_mod(
        of_layout, layout.q_length, layout.kv_length, batch=layout.batch, heads=1, device=device, xp=torch
    )
    if layout.q_length == layout.kv_length and layout.offset != 0:  # rows are positions only if query 0 is at 0
        return at(range(layout.q_length), range(layout.kv_length), pattern)
    return pattern


def _recognised(function: MaskFunction, layout: Layout) -> Pattern | None:
    code: Any = getattr(function, "__code__", None)  # a callable object has none, and is not recognised
    builder = _checked_builders().get(code) or _chains().get(code)
    return None if builder is None else builder(_closure(function), layout)


def _closure(function: MaskFunction) -> dict[str, Any]:
    cells = function.__closure__ or ()
    names = function.__code__.co_freevars
    return dict(zip(names, (cell.cell_contents for cell in cells), strict=True))


# ---- functions that stand for a pattern


def _chunked(closure: dict[str, Any], layout: Layout) -> Pattern:
    """Chunks of chunk_size tokens, counted from the first token that is not padding."""
    chunk = closure["chunk_size"]
    left = closure.get("left_padding")
    firsts = [0] * layout.batch if left is None else left.tolist()
    return joined([[_chunks(chunk, (first - layout.kv_offset) % chunk, layout)] for first in firsts])


def _chunks(chunk: int, first: int, layout: Layout) -> Pattern:
    if first == 0:
        return blocks(chunk)
    if layout.offset + layout.q_length > layout.kv_length:  # `documents` has no positions past the keys
        queries = range(layout.offset - first, layout.offset + layout.q_length - first)
        return at(queries, range(-first, layout.kv_length - first), blocks(chunk))
    first = min(first, layout.kv_length)
    whole, rest = divmod(layout.kv_length - first, chunk)
    return documents([first, *[chunk] * whole, rest])


def _packed(closure: dict[str, Any], layout: Layout) -> Pattern | None:
    """Packed sequences, given as one number per token that changes from sequence to sequence."""
    sequences = _sequences(closure, layout)
    return None if sequences is None else packed_pattern(sequences)


def packed_pattern(sequences: Sequences) -> Pattern:
    return joined([[documents(lengths)] for lengths in sequences])


def _sequences(closure: dict[str, Any], layout: Layout) -> Sequences | None:
    numbers = closure["packed_sequence_mask"]
    if layout.kv_offset != 0 or numbers.shape[-1] != layout.kv_length:
        return None
    return sequence_lengths(numbers)


_FUNCTIONS: dict[str, Builder] = {
    "causal_mask_function": lambda closure, layout: kept.causal(),
    "bidirectional_mask_function": lambda closure, layout: kept.dense(),
}
_FACTORIES: dict[str, Builder] = {  # functions that make functions
    "sliding_window_overlay": lambda closure, layout: kept.window(closure["sliding_window"] - 1, float("inf")),
    "sliding_window_bidirectional_overlay": lambda closure, layout: kept.window(closure["sliding_window"]),
    "chunked_overlay": _chunked,
    "packed_sequence_mask_function": _packed,
}


@lru_cache(maxsize=1)
def _checked_builders() -> dict[CodeType, Builder]:
    """Code object -> builder, for the functions of the installed release whose builder gives the same mask."""
    with torch.device("cpu"):  # patterns are on the CPU, whatever the default device
        return _builders_that_hold()


def _builders_that_hold() -> dict[CodeType, Builder]:
    length = 12
    arguments = {
        "sliding_window": 3,
        "chunk_size": 5,
        "left_padding": torch.tensor([0, 2]),
        "packed_sequence_mask": torch.tensor([[0] * 5 + [1] * 7, [0] * 3 + [1] * 3 + [2] * 6]),
    }
    layout = Layout(batch=2, q_length=length, kv_length=length)
    builders: dict[CodeType, Builder] = {}
    for name, builder in {**_FUNCTIONS, **_FACTORIES}.items():
        function = getattr(masking_utils, name, None)
        if function is None:
            continue
        if name in _FACTORIES:
            parameters = inspect.signature(function).parameters
            if not all(parameter in arguments for parameter in parameters):
                continue
            function = function(*(arguments[parameter] for parameter in parameters))
        if _means_the_same(function, builder, layout):
            builders[function.__code__] = builder
    return builders


def _means_the_same(function: MaskFunction, builder: Builder, layout: Layout) -> bool:
    try:
        pattern = builder(_closure(function), layout)
        index = torch.arange(layout.kv_length)
        answer = function(torch.arange(layout.batch)[:, None, None], torch.tensor(0), index[:, None], index)
    except (KeyError, TypeError, IndexError, RuntimeError):
        return False
    if pattern is None:
        return False
    expected = answer.expand(layout.batch, layout.q_length, layout.kv_length)
    masks = [torch.from_numpy(pattern.mask(layout.q_length, batch=b).copy()) for b in range(layout.batch)]
    return torch.equal(torch.stack(masks), expected)


# ---- functions of functions


def _and_code() -> CodeType:
    return masking_utils.and_masks(masking_utils.causal_mask_function).__code__


@lru_cache(maxsize=1)
def _chains() -> dict[CodeType, Builder]:
    or_code: CodeType = masking_utils.or_masks(masking_utils.causal_mask_function).__code__
    return {_and_code(): _chain(kept.both), or_code: _chain(kept.either)}


def _chain(join: Callable[[Pattern, Pattern], Pattern]) -> Builder:
    def build(closure: dict[str, Any], layout: Layout) -> Pattern | None:
        joined_so_far: Pattern | None = None
        for function in closure["mask_functions"]:
            pattern = _recognised(function, layout)
            if pattern is None:
                return None
            joined_so_far = pattern if joined_so_far is None else join(joined_so_far, pattern)
        return joined_so_far

    return build
