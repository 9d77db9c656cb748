# python/keyhole/torch_attention/read_masks.py
"""A cache of what was computed from mask tensors, valid while a mask is unchanged. Every layer of a model gets the same
mask, and converting it to a pattern reads every pair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["ReadMasks"]

Tensor = torch.Tensor
T = TypeVar("T")
_MANY = 1 << 15  # elements; for smaller masks the check of _has_words costs more than it saves


class ReadMasks(Generic[T]):
    """For each live mask, the result that was last computed from it.

    On the CPU a mask is compared with a copy, element by element, because torch does not count writes through `.data`
    or through memory shared with NumPy. On other devices a comparison would wait for the device, so the version counter
    and the address decide there. An inference tensor has no version counter, and off the CPU it is read every time.
    """

    def __init__(self) -> None:
        self._kept: Any = WeakTensorKeyDictionary()  # mask -> purpose, snapshot, result

    def read(self, mask: Tensor, purpose: Any, read: Callable[[], T]) -> T:
        """The result of read() for this mask and purpose, from the cache if the mask is unchanged."""
        kept = self._kept.get(mask)
        if kept is not None and kept[0] == purpose and _is_unchanged(mask, kept[1]):
            return kept[2]  # type: ignore[no-any-return]
        snapshot = _snapshot(mask)  # before read(): a write by another thread meanwhile is then detected next time
        found = read()
        self._kept[mask] = purpose, snapshot, found
        return found


def _snapshot(mask: Tensor) -> Any:
    """What `_is_unchanged` compares with: a copy on the CPU; elsewhere the version and address, or None."""
    if mask.is_cpu:
        return mask.shape, _without_repetitions(mask).clone(memory_format=torch.contiguous_format)
    return _version_of(mask)


def _is_unchanged(mask: Tensor, snapshot: Any) -> bool:
    if mask.is_cpu:
        shape, copy = snapshot
        return shape == mask.shape and copy.dtype == mask.dtype and _are_equal(copy, _without_repetitions(mask))
    return snapshot is not None and snapshot == _version_of(mask)


def _version_of(mask: Tensor) -> Any:
    return None if mask.is_inference() else (mask._version, mask.data_ptr(), mask.shape, mask.stride(), mask.dtype)


def _without_repetitions(mask: Tensor) -> Tensor:
    """The mask without the repetitions of expand(): padding that was expanded to all queries stays small."""
    strides = mask.stride()
    if 0 not in strides:
        return mask.detach()
    return mask.detach()[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)]


def _are_equal(copy: Tensor, mask: Tensor) -> bool:
    """Compares large masks in words of eight bytes if aligned. torch compares bools one by one, nine times slower."""
    if mask.numel() >= _MANY and copy.shape == mask.shape and _has_words(mask):
        copy, mask = copy.view(-1).view(torch.int64), mask.view(-1).view(torch.int64)
    return torch.equal(copy, mask)


def _has_words(mask: Tensor) -> bool:
    size = mask.element_size()
    numbers = (mask.numel() * size, mask.storage_offset() * size, mask.data_ptr())
    return mask.is_contiguous() and all(number % 8 == 0 for number in numbers)
