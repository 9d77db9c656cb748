# python/keyhole/integrations/transformers/__init__.py
"""Attention of Hugging Face transformers on Keyhole, from release 4.56 on.

    import keyhole.integrations.transformers as keyhole_hf

    keyhole_hf.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="keyhole")

Sliding windows, chunks, packed sequences, padding, caches and learned sink logits are what the model says they are.
`set_pattern` gives layers patterns of their own.
"""

from __future__ import annotations

from .attention import NAME, register, set_pattern

__all__ = ["NAME", "register", "set_pattern"]
