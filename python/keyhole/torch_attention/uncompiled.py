# python/keyhole/torch_attention/uncompiled.py
"""What torch.compile runs and does not look into. Loading this loads torch's compiler: only compiled code does."""

from __future__ import annotations

import torch

from . import attn_masks

__all__ = ["pattern_of_mask"]

pattern_of_mask = torch.compiler.disable(attn_masks.pattern_of_mask)
