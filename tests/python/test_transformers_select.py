"""use_selection: layers that compute something else are refused, and nothing that a layer has is lost."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import keyhole  # noqa: E402
import keyhole.integrations.transformers as keyhole_hf  # noqa: E402
from keyhole.nn import DeepSeekSparseAttention, set_selection  # noqa: E402
from small_models import LENGTH, SIZES, model_of, tokens  # noqa: E402

keyhole_hf.register()
INDEX = {"top_k": 5, "index_heads": 2, "index_dim": 16}


def model_with(config, **options):
    """A model of this configuration with random weights, also in its norms."""
    if not hasattr(transformers, config):
        pytest.skip(f"this release of transformers has no {config}")
    torch.manual_seed(0)
    made = getattr(transformers, config)(**{**SIZES, **options})
    model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="keyhole")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "proj" in name or "norm" in name:
                parameter.normal_(0, 0.2)
    return model.eval()


def logits(model):
    with torch.no_grad():
        return model(tokens(), use_cache=False).logits


def selected(kind="llama", **options):
    model = model_of(kind, "keyhole")
    keyhole_hf.use_selection(model, **{**INDEX, **options})
    return model


def layers_of(model):
    return [module for module in model.modules() if isinstance(module, DeepSeekSparseAttention)]


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("LlamaConfig", {}),
        ("Qwen3Config", {"head_dim": 16}),  # norms of q and k
        ("GlmConfig", {"head_dim": 64}),  # half of the dimensions are rotated
        ("CohereConfig", {}),
        ("Gemma3TextConfig", {"head_dim": 16}),
        ("SeedOssConfig", {"head_dim": 16, "residual_dropout": 0.0}),
        ("OlmoConfig", {}),
        ("SmolLM3Config", {"no_rope_layers": [1, 1, 1]}),
        ("MistralConfig", {"sliding_window": 12}),
    ],
)
def test_dense_stage_is_the_model(config, options):
    model = model_with(config, **options)
    before = logits(model)
    keyhole_hf.use_selection(model, **{**INDEX, "index_dim": 64})
    torch.testing.assert_close(logits(model), before, rtol=1e-5, atol=1e-5)
    set_selection(model, lambda _: {"stage": "sparse", "top_k": LENGTH})
    torch.testing.assert_close(logits(model), before, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("config", "options", "match"),
    [
        ("HunYuanDenseV1Config", {"head_dim": 16}, "has query_layernorm"),
        ("BitNetConfig", {}, "has attn_sub_norm"),
        ("DiffLlamaConfig", {}, "has lambda_q1"),
        ("LagunaConfig", {}, "has g_proj"),
        ("OlmoConfig", {"clip_qkv": 0.1}, r"has clip_qkv = 0\.1"),
        ("SmolLM3Config", {"no_rope_layers": [1, 0, 1]}, r"has use_rope = 0.*Leave layer 1 out with layers="),
        ("Exaone4Config", {}, "has is_sliding"),
        ("Cohere2Config", {}, "encodes positions in some layers only, by their sliding_window"),
        ("Ministral3Config", {}, "has rope_parameters"),
        ("Olmo2Config", {}, "has a q_norm of 64 numbers, and heads of 16 dimensions"),
        ("NanoChatConfig", {}, "applies q_norm after the rotary positions"),
        ("StableLmConfig", {}, "has rotary_ndims = 4"),
        ("SeedOssConfig", {"head_dim": 16, "residual_dropout": 0.1}, r"has residual_dropout = 0\.1"),
    ],
)
def test_layers_that_compute_something_else(config, options, match):
    model = model_with(config, **options)
    with pytest.raises(NotImplementedError, match=match):
        keyhole_hf.use_selection(model, **INDEX)
    assert not layers_of(model)


def test_gated_attention():
    """Qwen3-Next makes a gate in q_proj. The whole model needs a cache of its own, so this asks about the layer."""
    from keyhole.integrations.transformers.layer_parts import refuse_other_layer

    qwen3_next = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    layer = qwen3_next.Qwen3NextAttention(transformers.Qwen3NextConfig(**SIZES), 0)
    with pytest.raises(NotImplementedError, match="Qwen3NextAttention calls torch; accepted are grouped-query layers"):
        refuse_other_layer(layer)


def test_layers_without_positions_are_left_out():
    model = model_with("SmolLM3Config", no_rope_layers=[1, 0, 1])
    before = logits(model)
    keyhole_hf.use_selection(model, layers=[0, 2], **INDEX)
    torch.testing.assert_close(logits(model), before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pattern", ["causal & window(3)", keyhole.per_head("causal", "causal", "sinks(2)", "causal")])
def test_a_layer_keeps_its_pattern(pattern):
    model = model_of("llama", "keyhole")
    keyhole_hf.set_pattern(model, pattern)
    before = logits(model)
    keyhole_hf.use_selection(model, **INDEX)
    torch.testing.assert_close(logits(model), before, rtol=1e-5, atol=1e-5)


def test_the_mask_of_a_layer_is_changed_by_set_pattern():
    model = selected()
    with pytest.raises(ValueError, match="layer 0 takes its mask from the model; .*set_pattern"):
        set_selection(model, lambda _: {"visible": "causal"})
    before = logits(model)
    keyhole_hf.set_pattern(model, "causal & window(2)")
    assert not torch.allclose(logits(model), before)


def test_a_second_selection_leaves_the_model_as_it_is():
    model = selected(layers=[1])
    with pytest.raises(ValueError, match=r"layer 1 has a selection already; .*set_selection, or pass layers="):
        keyhole_hf.use_selection(model, **INDEX)
    assert [layer.layer_idx for layer in layers_of(model)] == [1]
    keyhole_hf.use_selection(model, layers=[0, 2], **INDEX)
    assert [layer.layer_idx for layer in layers_of(model)] == [0, 1, 2]


@pytest.mark.filterwarnings("ignore")
def test_reentrant_checkpointing_trains_no_indexer():
    model = selected(stage="sparse").train()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model(tokens(), use_cache=False)
    with pytest.raises(RuntimeError, match=r'layer 0 has no gradient.*"use_reentrant": False'):
        keyhole_hf.indexer_loss(model)
    with torch.no_grad():
        assert keyhole_hf.indexer_loss(model) > 0
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model(tokens(), use_cache=False)
    keyhole_hf.indexer_loss(model).backward()
    assert all(p.grad is not None for p in keyhole.nn.indexer_parameters(model))


def test_a_frozen_indexer_has_a_loss_without_a_gradient():
    model = selected(stage="warmup").train()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model(tokens())
    assert not keyhole_hf.indexer_loss(model).requires_grad


def test_copies_after_a_forward_pass():
    model = selected(stage="sparse").train()
    model(tokens())
    twin = copy.deepcopy(model)
    assert all(layer.loss is None for layer in layers_of(twin))
    twin(tokens())
    torch.testing.assert_close(keyhole_hf.indexer_loss(twin), keyhole_hf.indexer_loss(model))


def test_weights_keep_their_names(tmp_path):
    """A saved model loads into the model without indexers, whose attention is that of stage dense; and again with."""
    plain = set(model_of("llama", "keyhole").state_dict())
    model = selected(stage="sparse")
    assert {name for name in model.state_dict() if ".indexer." not in name} == plain
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)  # training
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="keyhole").eval()
    want = logits(model)
    set_selection(model, lambda _: {"stage": "dense"})
    torch.testing.assert_close(logits(again), logits(model))
    keyhole_hf.use_selection(again, stage="sparse", **INDEX)
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(logits(again), want)


def test_a_replaced_projection_is_used():
    """As adapters replace them."""
    model = selected()
    before = logits(model)
    layers_of(model)[0].q_proj = torch.nn.Sequential(layers_of(model)[0].q_proj, torch.nn.Dropout(0.0))
    torch.testing.assert_close(logits(model), before)
    layers_of(model)[0].q_proj[0].weight.data.zero_()
    assert not torch.allclose(logits(model), before)
