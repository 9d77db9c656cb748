# tests/python/small_models.py
"""Small models of Hugging Face transformers with random weights, and inputs for them."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

VOCABULARY, LENGTH, WINDOW = 97, 40, 12
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}


def config_of(kind):
    if kind == "llama":
        return transformers.LlamaConfig(**SIZES)
    if kind == "qwen2":  # biases on q, k and v
        return transformers.Qwen2Config(**SIZES)
    if kind == "mistral":
        return transformers.MistralConfig(**SIZES, sliding_window=WINDOW)
    if kind == "gpt-oss":
        layers = ["sliding_attention", "full_attention", "sliding_attention"]
        return transformers.GptOssConfig(
            **SIZES, head_dim=16, sliding_window=WINDOW, layer_types=layers, num_local_experts=2, num_experts_per_tok=1
        )
    assert kind == "gemma2"  # a soft cap on the scores
    return transformers.Gemma2Config(**SIZES, head_dim=16, sliding_window=WINDOW, attn_logit_softcapping=5.0)


KINDS = ["llama", "mistral", "gpt-oss", "gemma2"]


def model_of(kind, implementation, device="cpu", **changes):
    torch.manual_seed(0)
    config = config_of(kind)
    for name, value in changes.items():
        setattr(config, name, value)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    with torch.no_grad():  # the first weights are too small for attention to matter
        for name, parameter in model.named_parameters():
            if "proj" in name or "sinks" in name:
                parameter.normal_(0, 1.0 if "sinks" in name else 0.2)
    return model.eval().to(device)


def tokens(batch=2, length=LENGTH, device="cpu", seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (batch, length), generator=generator).to(device)


def padding(side, lengths, length=LENGTH):
    place = torch.arange(length)
    counts = torch.tensor(lengths)[:, None]
    return (place < counts if side == "right" else place >= length - counts).long()
