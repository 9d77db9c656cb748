# python/keyhole/integrations/transformers/__init__.py
"""Keyhole as an attention implementation of Hugging Face transformers, release 4.56 and newer.

    import keyhole.integrations.transformers as keyhole_hf

    keyhole_hf.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="keyhole")

The model's own sliding windows, chunks, packed sequences, padding, caches and learned sink logits are respected.
`set_pattern` gives layers other patterns. `use_selection` makes layers attend to the keys that an indexer chooses.
"""

from __future__ import annotations

from .attention import NAME, register, set_pattern
from .selection import indexer_loss, use_selection

__all__ = ["NAME", "indexer_loss", "register", "set_pattern", "use_selection"]
