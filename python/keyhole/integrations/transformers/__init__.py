# python/keyhole/integrations/transformers/__init__.py
"""Keyhole as an attention implementation of Hugging Face transformers, release 4.56 and newer.

    import keyhole.integrations.transformers as keyhole_hf

    keyhole_hf.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="keyhole")

The model's own sliding windows, chunks, packed sequences, padding, caches and learned sink logits are respected.
`set_pattern` gives layers other patterns.
"""

from __future__ import annotations

from .attention import NAME, register, set_pattern

__all__ = ["NAME", "register", "set_pattern"]
