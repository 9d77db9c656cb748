# python/keyhole/torch_attention/uncompiled.py
"""Functions that torch.compile calls without tracing them. Importing this imports torch's compiler, so only compiled
code does.
"""

from __future__ import annotations

import torch

from . import attn_masks, positions

__all__ = ["pattern_of_mask", "pattern_of_positions"]

pattern_of_mask = torch.compiler.disable(attn_masks.pattern_of_mask)
pattern_of_positions = torch.compiler.disable(positions.pattern_of_positions)
