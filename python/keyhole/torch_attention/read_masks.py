# python/keyhole/torch_attention/read_masks.py
"""What was read out of mask tensors, kept while they say the same: a mask goes to every layer of a model, and turning
it into a pattern looks at every pair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["ReadMasks"]

Tensor = torch.Tensor
T = TypeVar("T")
_MANY = 1 << 15  # elements: below, looking for words takes longer than they save


class ReadMasks(Generic[T]):
    """For each mask that is alive, what was last read out of it.

    On the CPU a mask is compared with a copy, element by element: memory shared with NumPy and writes through `.data`
    change it, and torch counts neither. Elsewhere that would wait for the device, so there the count of changes and the
    address must do. An inference tensor has no such count: elsewhere it is read every time.
    """

    def __init__(self) -> None:
        self._kept: Any = WeakTensorKeyDictionary()  # mask -> purpose, what it said, what was read

    def read(self, mask: Tensor, purpose: Any, read: Callable[[], T]) -> T:
        """What read() gives for this mask and purpose, or gave when the mask said the same."""
        kept = self._kept.get(mask)
        if kept is not None and kept[0] == purpose and _says_still(mask, kept[1]):
            return kept[2]  # type: ignore[no-any-return]
        said = _said(mask)  # before it is read: what another thread writes meanwhile is noticed next time
        found = read()
        self._kept[mask] = purpose, said, found
        return found


def _said(mask: Tensor) -> Any:
    """What `_says_still` compares with: a copy on the CPU, elsewhere numbers that change with the tensor, or None."""
    if mask.is_cpu:
        return mask.shape, _without_repetitions(mask).clone(memory_format=torch.contiguous_format)
    return _changes(mask)


def _says_still(mask: Tensor, said: Any) -> bool:
    if mask.is_cpu:
        shape, copy = said
        return shape == mask.shape and copy.dtype == mask.dtype and _are_equal(copy, _without_repetitions(mask))
    return said is not None and said == _changes(mask)


def _changes(mask: Tensor) -> Any:
    return None if mask.is_inference() else (mask._version, mask.data_ptr(), mask.shape, mask.stride(), mask.dtype)


def _without_repetitions(mask: Tensor) -> Tensor:
    """Once what expand() has repeated: padding that was expanded to all queries is small."""
    strides = mask.stride()
    if 0 not in strides:
        return mask.detach()
    return mask.detach()[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)]


def _are_equal(copy: Tensor, mask: Tensor) -> bool:
    """Large ones by words of eight bytes where they lie so: torch compares bools one by one, in nine times the time."""
    if mask.numel() >= _MANY and copy.shape == mask.shape and _has_words(mask):
        copy, mask = copy.view(-1).view(torch.int64), mask.view(-1).view(torch.int64)
    return torch.equal(copy, mask)


def _has_words(mask: Tensor) -> bool:
    size = mask.element_size()
    numbers = (mask.numel() * size, mask.storage_offset() * size, mask.data_ptr())
    return mask.is_contiguous() and all(number % 8 == 0 for number in numbers)
