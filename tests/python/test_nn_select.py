"""Layers that choose their keys: LightningIndexer, DeepSeekSparseAttention, set_selection, models of transformers, and
the example that trains one.
"""

from __future__ import annotations

import copy
import pathlib
import re
import subprocess
import sys

import pytest

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

import keyhole  # noqa: E402
from keyhole.heads import GroupedHeads, LatentHeads  # noqa: E402
from keyhole.nn import (  # noqa: E402
    DeepSeekSparseAttention,
    LightningIndexer,
    indexer_parameters,
    set_selection,
)
from torch_reference import DEVICES, draw, needs_gpu, reference  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = {"index_heads": 2, "index_dim": 16, "top_k": 6}


def layer_of(kind="grouped", seed=0, **options):
    torch.manual_seed(seed)
    options = {**SMALL, **options}
    if kind == "latent":
        return DeepSeekSparseAttention(
            32, 4, head_dim=8, latent_dim=16, rope_head_dim=4, v_head_dim=6, rope_dim=4, rope_layout="half", **options
        )
    return DeepSeekSparseAttention(32, 4, num_kv_heads=2, **options)


def rope_of(length, dim, base=100.0):
    angles = torch.arange(length)[:, None] * base ** -(torch.arange(0, dim, 2) / dim)
    return angles.cos(), angles.sin()


def rotated(x, rope, dim, layout):
    """By complex numbers, pair by pair. x [batch, length, heads, dim]."""
    turn = torch.complex(*rope)[None, :, None]
    turned = x.clone()
    pairs = [(2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + dim // 2) for i in range(dim // 2)]
    for i, (a, b) in enumerate(pairs):
        z = torch.complex(x[..., a], x[..., b]) * turn[..., i]
        turned[..., a], turned[..., b] = z.real, z.imag
    return turned


def test_indexer_by_its_definition():
    torch.manual_seed(0)
    indexer = LightningIndexer(32, index_heads=4, index_dim=16, groups=2, hadamard=False).double()
    torch.nn.init.normal_(indexer.k_norm.bias)
    x, context = draw(2, 10, 32, dtype=torch.float64), draw(2, 12, 32, dtype=torch.float64, seed=1)
    q, k, w, k_scale = indexer(x, context)
    torch.testing.assert_close(q, indexer.q_proj(x).view(2, 10, 4, 16).transpose(1, 2))
    raw = indexer.k_proj(context).view(2, 12, 2, 16)
    normal = (raw - raw.mean(-1, keepdim=True)) / (raw.var(-1, keepdim=True, unbiased=False) + 1e-6).sqrt()
    torch.testing.assert_close(k, (normal * indexer.k_norm.weight + indexer.k_norm.bias).transpose(1, 2))
    torch.testing.assert_close(w, indexer.w_proj(x).transpose(1, 2) * 4**-0.5 * 16**-0.5)
    assert k_scale is None


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("twice", [False, True])
def test_rope_of_the_indexer(layout, twice):
    indexer = LightningIndexer(32, 2, 16, rope_dim=8, rope_layout=layout, hadamard=False)
    plain = LightningIndexer(32, 2, 16, hadamard=False)
    plain.load_state_dict(indexer.state_dict())
    x, rope = draw(2, 10, 32), rope_of(10, 8)
    given = rope
    if twice:
        given = tuple(t.repeat_interleave(2, -1) if layout == "interleaved" else torch.cat((t, t), -1) for t in rope)
    q, k, w, _ = indexer(x, rope=given)
    q0, k0, w0, _ = plain(x)
    for got, before in ((q, q0), (k, k0)):
        want = rotated(before.transpose(1, 2), rope, 8, layout).transpose(1, 2)
        torch.testing.assert_close(got, want)
    assert torch.equal(w, w0)
    last, _, _, _ = indexer(x[:, -3:], x, rope=given)  # queries are the last positions
    torch.testing.assert_close(last, q[:, :, -3:])


def test_there_is_no_default_layout_of_rope():
    with pytest.raises(ValueError, match="without a rope_layout; make it with rope_layout='interleaved' or 'half'"):
        LightningIndexer(32, 2, 64)(draw(1, 5, 32), rope=rope_of(5, 64))
    with pytest.raises(ValueError, match=r"cosines and sines have shape \[5, 16\]; .* 4, or 8 .*in two halves"):
        LightningIndexer(32, 2, 16, rope_dim=8, rope_layout="half")(draw(1, 5, 32), rope=rope_of(5, 32))


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_rope_tables_of_transformers(layout):
    """They hold each number twice, in two halves; their first half serves both layouts."""
    indexer = LightningIndexer(32, 2, 16, rope_dim=8, rope_layout=layout, hadamard=False)
    x, rope = draw(1, 10, 32), rope_of(10, 8)
    tables = tuple(torch.cat((t, t), -1) for t in rope)
    torch.testing.assert_close(indexer(x, rope=tuple(t[..., : 8 // 2] for t in tables)), indexer(x, rope=rope))


def test_hadamard_changes_no_choice():
    x = draw(2, 60, 32)
    turned, plain = (LightningIndexer(32, 4, 16, hadamard=h).double() for h in (True, False))
    plain.load_state_dict(turned.state_dict())
    chosen = [i.select(x.double(), top_k=7, visible="causal") for i in (turned, plain)]
    assert torch.equal(*chosen)
    assert not torch.equal(turned(x.double()).q, plain(x.double()).q)


def test_quantized_indexer():
    torch.manual_seed(0)
    rounded, plain = (LightningIndexer(64, 8, 64, quantize=how) for how in ("e4m3", None))
    rounded.load_state_dict(plain.state_dict())
    x = draw(1, 300, 64)
    q, _, _, k_scale = rounded(x)
    assert q.dtype == torch.float8_e4m3fn
    assert k_scale.shape == (1, 1, 300)
    a, b = (set(map(tuple, _pairs(i.select(x, top_k=32, visible="causal")))) for i in (rounded, plain))
    assert len(a & b) / len(a) > 0.9
    learned = rounded.inputs(x)
    assert learned.q.requires_grad
    assert torch.equal(learned.q, plain(x).q)


def _pairs(chosen):
    rows = [(t, s) for t, row in enumerate(chosen[0, 0].tolist()) for s in row if s >= 0]
    return torch.tensor(rows).tolist()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"index_heads": 3, "groups": 2}, "index_heads a multiple of groups"),
        ({"index_dim": 24}, "takes powers of two; pass hadamard=False"),
        ({"rope_layout": "neox"}, "rope_layout is 'neox'; accepted are 'interleaved' and 'half'"),
        ({"rope_layout": "half", "rope_dim": 7}, "rope_dim is 7; expected an even number up to index_dim"),
        ({"rope_layout": "half", "index_dim": 32}, "rope_dim is 64"),
        ({"quantize": "int8"}, "quantize is 'int8'; accepted are None and 'e4m3'"),
        ({"index_heads": 0}, "LightningIndexer: index_heads is 0; expected 1 or more"),
        ({"index_dim": 16.0}, "LightningIndexer: index_dim: expected an int, found float"),
        ({"context_dim": 0}, "LightningIndexer: context_dim is 0; expected 1 or more"),
    ],
)
def test_indexers_that_cannot_be_made(options, match):
    with pytest.raises((ValueError, TypeError), match=match):
        LightningIndexer(32, **options)


@pytest.mark.parametrize("kind", ["grouped", "latent"])
@pytest.mark.parametrize("device", DEVICES)
def test_all_keys_chosen_is_dense(kind, device):
    """With top_k >= k_len the sparse stage computes what the dense one computes, in both forms of latent heads."""
    layer = layer_of(kind, top_k=50).to(device)
    x, rope = draw(2, 40, 32, device=device), None
    if kind == "latent":
        rope = tuple(t.to(device) for t in rope_of(40, 4))
    sparse = layer(x, rope=rope)
    layer.set(stage="dense")
    dense = layer(x, rope=rope)
    torch.testing.assert_close(sparse.output, dense.output, rtol=1e-4, atol=1e-5)
    assert dense.loss is None
    assert dense.indices is None
    assert sparse.indices.shape == (2, 1, 40, 50)


def test_grouped_layer_by_its_definition():
    layer = layer_of(visible="causal & window(20)", always="sinks(2)", sink=True).double()
    torch.nn.init.normal_(layer.sink)
    x = draw(2, 40, 32, dtype=torch.float64)
    output, loss, indices = layer(x)
    heads = layer.heads
    q, k, v = (p(x).view(2, 40, -1, 8).transpose(1, 2) for p in (heads.q_proj, heads.k_proj, heads.v_proj))
    index = layer.indexer(x)
    chosen = keyhole.select_keys(*index[:3], top_k=6, visible="causal & window(20)", always="sinks(2)")
    assert torch.equal(indices, chosen)
    mask = torch.zeros(2, 1, 40, 41, dtype=torch.bool).scatter(-1, chosen.long() % 41, True)[..., :40]
    want, lse = reference(q, k, v, mask, sink=layer.sink)
    torch.testing.assert_close(output, heads.o_proj(want.transpose(1, 2).flatten(-2)))
    torch.testing.assert_close(loss, keyhole.index_loss(*index[:3], q, k, lse.detach(), chosen).mean())


def test_latent_heads_by_their_definition():
    layer = layer_of("latent", top_k=4).double()
    x, rope = draw(1, 20, 32, dtype=torch.float64), tuple(t.double() for t in rope_of(20, 4))
    output, _, chosen = layer(x, rope=rope)
    heads = layer.heads
    assert isinstance(heads, LatentHeads)
    q = heads.q_proj(x).view(1, 20, 4, 12)
    latent, k_rope = heads.kv_down(x).split((16, 4), -1)
    up = heads.kv_up(heads.kv_norm(latent)).view(1, 20, 4, 14)
    k_rope = rotated(k_rope[:, :, None], rope, 4, "half").expand(-1, -1, 4, -1)
    q = torch.cat((q[..., :8], rotated(q[..., 8:], rope, 4, "half")), -1)
    k, v = torch.cat((up[..., :8], k_rope), -1), up[..., 8:]
    mask = torch.zeros(1, 1, 20, 21, dtype=torch.bool).scatter(-1, chosen.long() % 21, True)[..., :20]
    want, _ = reference(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, scale=12**-0.5)
    torch.testing.assert_close(output, heads.o_proj(want.transpose(1, 2).flatten(-2)))


def gradients_of(layer, loss):
    for parameter in layer.parameters():
        parameter.grad = None
    loss.backward()
    moved = {name for name, p in layer.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    return {name for name in moved if name.startswith("indexer.")}, {n for n in moved if not n.startswith("indexer.")}


@pytest.mark.parametrize("kind", ["grouped", "latent"])
@pytest.mark.parametrize("stage", ["warmup", "sparse"])
def test_who_learns_from_what(stage, kind):
    layer = layer_of(kind, stage=stage)
    x = draw(2, 40, 32).requires_grad_()
    result = layer(x)
    of_indexer, others = gradients_of(layer, result.loss)
    assert of_indexer == {name for name, _ in layer.named_parameters() if name.startswith("indexer.")}
    assert others == set()
    assert x.grad is None
    of_indexer, others = gradients_of(layer, layer(x).output.square().sum())
    assert of_indexer == set()
    assert "heads.q_proj.weight" in others
    assert x.grad is not None
    assert {id(p) for p in indexer_parameters(layer)} == {id(p) for p in layer.indexer.parameters()}


def test_dense_stage_leaves_the_indexer_alone():
    layer = layer_of(stage="dense")
    layer.indexer.forward = layer.indexer.inputs = lambda *_, **__: pytest.fail("asked")
    result = layer(draw(1, 40, 32))
    assert result.loss is None
    plain = keyhole.nn.SparseAttention(32, 4, num_kv_heads=2)
    plain.load_state_dict(
        {k.removeprefix("heads."): v for k, v in layer.state_dict().items() if k.startswith("heads.")}
    )
    torch.testing.assert_close(result.output, plain(draw(1, 40, 32)))


def test_no_loss_is_computed_in_eval_mode():
    layer = layer_of().eval()
    assert layer(draw(1, 40, 32)).loss is None
    assert layer.train()(draw(1, 40, 32)).loss is not None


def test_warmup_lowers_the_loss_and_moves_nothing_else():
    layer = layer_of(stage="warmup")
    frozen = copy.deepcopy(layer.heads.state_dict())
    x = draw(4, 60, 32)
    optimizer = torch.optim.Adam(indexer_parameters(layer), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = layer(x).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert all(torch.equal(a, frozen[name]) for name, a in layer.heads.state_dict().items())


def test_rows_are_a_sample():
    layer = layer_of(stage="warmup")
    x = draw(2, 40, 32)
    whole = layer(x).loss
    assert torch.equal(layer(x, rows=40).loss, whole)
    assert torch.equal(layer(x, rows=100).loss, whole)
    each = torch.stack([layer(x, rows=torch.tensor([t])).loss for t in range(40)])
    torch.testing.assert_close(each.mean(), whole)
    layer.set(rows=10)
    torch.manual_seed(1)
    first = layer(x).loss
    assert first != whole
    torch.manual_seed(1)
    assert torch.equal(layer(x).loss, first)


@pytest.mark.parametrize(
    ("rows", "error", "match"),
    [
        (-5, ValueError, "rows is -5; expected 1 or more"),
        (0, ValueError, "rows is 0"),
        (2.0, TypeError, "rows: expected an int, found float"),
        (True, TypeError, "rows: expected an int, found bool"),
        ([1, 2], TypeError, "rows: expected an int, found list"),
        (torch.tensor([[1]]), ValueError, r"rows is torch.int64 \[1, 1\]"),
    ],
)
def test_rows_of_a_call_are_checked(rows, error, match):
    with pytest.raises(error, match=match):
        layer_of(stage="warmup")(draw(1, 40, 32), rows=rows)


def test_rows_may_be_an_integer_of_numpy():
    layer, x, losses = layer_of(stage="warmup"), draw(1, 40, 32), []
    for rows in (5, numpy.int64(5)):
        torch.manual_seed(1)
        losses.append(layer(x, rows=rows).loss)
    assert torch.equal(*losses)
    with pytest.raises(TypeError, match="rows is a torch tensor; .*pass a tensor of rows to the call"):
        layer.set(rows=torch.tensor([1, 2]))


class Kept:
    """A cache, as `extend` of a layer: all that it was called with, joined."""

    def __init__(self):
        self.parts = []

    def __call__(self, *tensors):
        self.parts.append(tensors)
        return tuple(torch.cat(parts, 1) for parts in zip(*self.parts, strict=True))


@pytest.mark.parametrize("stage", ["dense", "warmup", "sparse"])
@pytest.mark.parametrize("kind", ["grouped", "latent"])
def test_a_cache(kind, stage):
    """Token by token with a cache is what the whole text is, for the keys of the indexer as well."""
    layer, x, extend = layer_of(kind, top_k=4, groups=1 if kind == "latent" else 2), draw(2, 10, 32), Kept()
    layer.set(stage=stage)
    whole, steps = layer(x), [layer(x[:, i : i + 1], extend=extend) for i in range(10)]
    torch.testing.assert_close(torch.cat([step.output for step in steps], 1), whole.output)
    assert [len(parts) for parts in extend.parts] == [2 if stage == "dense" else 3] * 10
    if stage == "sparse":
        assert torch.equal(torch.cat([step.indices for step in steps], 2), whole.indices)
    if stage != "dense":
        torch.testing.assert_close(torch.stack([step.loss for step in steps]).mean(), whole.loss)


def test_a_cache_beside_an_indexer():
    """What a cache of the attention alone can be used for, and the error where it cannot."""
    layer, x, kept = layer_of(top_k=4), draw(1, 10, 32), []

    def extend(k, v):
        kept.append((k, v))
        return tuple(torch.cat(parts, 1) for parts in zip(*kept, strict=True))

    layer.set(stage="dense")
    layer(x[:, :-1], extend=extend)
    cached = kept[:]
    for stage in ("warmup", "sparse"):
        layer.set(stage=stage)
        for context in (None, x):
            kept[:] = cached
            with pytest.raises(ValueError, match=r"its keys, too: extend\(k, v, index_k\)"):
                layer(x[:, -1:], context, extend=extend)
        with pytest.raises(ValueError, match="extend returned 2 keys, and 1 of the indexer"):
            layer(x[:, -1:], extend=lambda k, v, index_k: (k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1), index_k))
        with pytest.raises(ValueError, match=r"extend\(k, v, index_k\)"):
            layer(x[:, -1:], extend=lambda k, v, index_k: (k, v))
    want = layer(x[:, -1:], x)
    kept[:] = cached
    torch.testing.assert_close(layer(x[:, -1:], extend=extend, indices=want.indices).output, want.output)


@pytest.mark.parametrize("stage", ["dense", "warmup"])
def test_lists_are_for_the_sparse_stage(stage):
    layer, x = layer_of(), draw(1, 40, 32)
    chosen = layer(x).indices
    layer.set(stage=stage)
    with pytest.raises(ValueError, match=rf"indices were passed in stage '{stage}'.*set\(stage='sparse'\)"):
        layer(x, indices=chosen)


def test_patterns_of_heads_and_groups():
    x = draw(1, 40, 32)
    visible = keyhole.per_head(*["causal & window(9)", "causal"] * 2)
    layer = layer_of(stage="dense", visible=visible)
    assert layer(x).output.shape == x.shape
    for stage in ("warmup", "sparse"):
        layer.set(stage=stage)
        with pytest.raises(ValueError, match="got 4 patterns for 1 .*it has 1 group; pass groups=..., or a pattern"):
            layer(x)
    layer = layer_of(groups=2, visible=keyhole.per_head("causal & window(9)", "causal"))
    assert not torch.equal(*layer(x).indices.unbind(1))


def test_cross_attention():
    layer = layer_of(visible="dense", context_dim=24, groups=2)
    result = layer(draw(2, 7, 32), draw(2, 50, 24))
    assert result.output.shape == (2, 7, 32)
    assert result.indices.shape == (2, 2, 7, 6)
    (result.loss + result.output.sum()).backward()


def test_lists_are_shared_between_layers():
    first, second = layer_of(), layer_of(seed=1)
    x = draw(2, 40, 32)
    chosen = first(x).indices
    result = second(x, indices=chosen)
    assert result.indices is chosen
    assert result.loss is None
    assert not torch.equal(second(x).indices, chosen)


def test_set_selection():
    model = torch.nn.ModuleList(layer_of(seed=i) for i in range(5))
    set_selection(
        model, lambda i: {"source": 3 * (i // 3)} if i % 3 else {"top_k": 4 + i, "visible": "causal & window(9)"}
    )
    x = draw(1, 40, 32)
    lists = [layer(x).indices for layer in model]
    assert [x.shape[-1] for x in lists] == [4, 4, 4, 7, 7]
    assert lists[1] is lists[0] is lists[2]
    assert lists[4] is lists[3]
    set_selection(model, lambda i: {"source": None, "always": "sinks(1)"})
    assert not torch.equal(model[1](x).indices[..., :4], lists[0])
    set_selection(model, lambda i: 9)
    assert all(layer.top_k == 9 for layer in model)
    set_selection(model, lambda i: {"stage": "dense"} if i == 2 else None)
    assert [layer.stage for layer in model] == ["sparse", "sparse", "dense", "sparse", "sparse"]


def test_copies_have_their_own_source():
    model = torch.nn.ModuleList(layer_of(seed=i) for i in range(2))
    set_selection(model, lambda i: {"source": 0} if i else None)
    twin = copy.deepcopy(model)
    assert twin[1]._source[0] is twin[0]
    assert len(list(model.parameters())) == 2 * len(list(model[0].parameters()))  # the source is no submodule
    a, b = draw(1, 40, 32), draw(1, 40, 32, seed=3)
    model[0](a)
    twin[0](b)
    assert torch.equal(model[1](a).indices, model[0](a).indices)
    assert torch.equal(twin[1](b).indices, twin[0](b).indices)


def test_lists_are_kept_only_for_readers_and_never_copied():
    first, second, third = (layer_of(seed=i) for i in range(3))
    x = draw(1, 40, 32)
    for layer in (second, third):
        layer.set(source=first)
    first(x)
    assert copy.deepcopy(first).last_indices is None
    second.set(source=None)
    assert third(x).indices is first.last_indices is not None
    third.set(source=second)
    assert first.last_indices is None
    first(x)
    assert first.last_indices is None


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"top_k": 0}, ValueError, "top_k is 0; expected 1 or more"),
        ({"stage": "warm"}, ValueError, "stage is 'warm'; accepted are 'dense', 'warmup' and 'sparse'"),
        ({"visible": "causl"}, ValueError, 'did you mean "causal"'),
        ({"always": keyhole.causal}, TypeError, r"always: .*Call it: keyhole.causal\(\)"),
        ({"rows": 0}, ValueError, "rows is 0"),
        ({"k": 4}, TypeError, "no setting 'k'; accepted are stage, top_k"),
        ({"source": 1}, ValueError, "the source of layer 0 is 1; expected an earlier layer"),
    ],
)
def test_settings_that_are_refused(settings, error, match):
    model = torch.nn.ModuleList([layer_of(), layer_of()])
    with pytest.raises(error, match=match):
        set_selection(model, lambda i: settings)
    with pytest.raises((error, TypeError), match="source is another" if "source" in settings else match):
        model[0].set(**{"stage": "dense", **settings})
    assert model[0].stage == "sparse"  # nothing was changed


def test_a_source_must_have_chosen():
    model = torch.nn.ModuleList(layer_of() for _ in range(3))
    set_selection(model, lambda i: {"source": 0} if i == 1 else None)
    with pytest.raises(RuntimeError, match="has not chosen any; call that layer first"):
        model[1](draw(1, 40, 32))
    with pytest.raises(ValueError, match="has a source of its own"):
        model[2].set(source=model[1])
    with pytest.raises(ValueError, match="has no DeepSeekSparseAttention layers"):
        set_selection(torch.nn.Linear(2, 2), lambda i: None)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_kv_heads": 3}, "must be a multiple"),
        ({"num_kv_heads": 2, "latent_dim": 16}, "latent heads share one key"),
        ({"num_kv_heads": 2, "groups": 4, "index_heads": 4}, "groups is 4; expected 1, one list for all heads, or 2"),
        ({"num_heads": 5}, "pass head_dim"),
        ({"v_head_dim": 4}, "v_head_dim is 4, which only latent heads have; pass latent_dim as well"),
        ({"rope_head_dim": 64}, "rope_head_dim is 64, which only latent heads have"),
        ({"num_heads": 0}, "num_heads is 0; expected 1 or more"),
        ({"num_heads": 4.0}, "num_heads: expected an int, found float"),
        ({"latent_dim": 0}, "latent_dim is 0; expected 1 or more"),
    ],
)
def test_layers_that_cannot_be_made(options, match):
    with pytest.raises((ValueError, TypeError), match=match):
        DeepSeekSparseAttention(32, **{"num_heads": 4, **SMALL, **options})


@pytest.mark.parametrize("stage", ["dense", "warmup", "sparse"])
@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: (x[0],), ValueError, r"x has shape \[40, 32\]; expected \[batch, length, 32\]"),
        (lambda x: (x[..., :8],), ValueError, r"x has shape \[2, 40, 8\]"),
        (lambda x: (x.numpy(),), TypeError, "x is a ndarray; accepted are torch tensors"),
        (lambda x: (x, x[..., :8]), ValueError, r"context has shape \[2, 40, 8\]; expected \[batch, length, 32\]"),
        (lambda x: (x, x[:1]), ValueError, "x has 2 batch entries and context 1"),
    ],
)
def test_inputs_that_are_refused(call, error, match, stage):
    with pytest.raises(error, match=f"DeepSeekSparseAttention: {match}"):
        layer_of(stage=stage)(*call(draw(2, 40, 32)))
    with pytest.raises(error, match=f"LightningIndexer: {match}"):
        LightningIndexer(32, index_heads=2, index_dim=16)(*call(draw(2, 40, 32)))


@pytest.mark.parametrize(
    ("indices", "error", "match"),
    [
        (torch.zeros(1, 1, 40, 6), TypeError, "indices is of torch.float32; accepted are torch tensors of int32 or"),
        (torch.zeros(1, 1, 40, 6).int().numpy(), TypeError, "indices is a ndarray"),
        ("causal", TypeError, "indices is a str"),
        (torch.zeros(1, 40, 6).int(), ValueError, r"indices has shape \[1, 40, 6\]; expected \[batch, groups, q_len"),
        (torch.zeros(1, 1, 20, 6).int(), ValueError, "with a list for each of the 40 queries"),
        (torch.full((1, 1, 40, 6), 40), ValueError, "k has 40 keys: accepted are 0 to 39"),
    ],
)
def test_lists_that_are_refused(indices, error, match):
    with pytest.raises(error, match=match):
        layer_of()(draw(1, 40, 32), indices=indices)


def test_what_choosing_costs_a_layer():
    """explain is explain_selection with the sizes of the layer."""
    sizes = {"index_heads": 3, "index_dim": 32, "top_k": 50, "visible": "causal & window(99)"}
    grouped = DeepSeekSparseAttention(64, 8, num_kv_heads=2, head_dim=16, quantize="e4m3", **sizes)
    common = {"q_heads": 8, "head_dim": 16, **sizes}
    assert grouped.explain(600) == keyhole.explain_selection(600, kv_heads=2, index_dtype="e4m3", **common)
    latent = DeepSeekSparseAttention(
        64, 8, latent_dim=32, head_dim=16, rope_head_dim=4, v_head_dim=20, dtype=torch.float16, **sizes
    )
    want = {**common, "latent_dim": 32, "rope_head_dim": 4, "v_head_dim": 20, "dtype": "f16", "index_dtype": "f16"}
    rates = {"memory": 1e9}
    assert latent.explain(60, 600, batch=2, rates=rates) == keyhole.explain_selection(
        60, 600, batch=2, rates=rates, **want
    )
    # Two layers that share the lists of one: a third of its indexer each, and what it chooses.
    others = [DeepSeekSparseAttention(64, 8, num_kv_heads=2, head_dim=16, top_k=7) for _ in range(2)]
    for other in others:
        other.set(source=grouped)
    want = keyhole.explain_selection(
        600, kv_heads=2, index_dtype="e4m3", shared_by=3, **{**common, "visible": "causal"}
    )
    assert others[0].explain(600, visible="causal") == grouped.explain(600, visible="causal") == want


def test_rotate_is_for_grouped_heads():
    layer = layer_of()
    assert isinstance(layer.heads, GroupedHeads)
    x = draw(1, 40, 32)
    same = layer(x, rotate=lambda q, k: (q, k)).output
    torch.testing.assert_close(same, layer(x).output)
    assert not torch.allclose(layer(x, rotate=lambda q, k: (q * 3, k)).output, same)
    with pytest.raises(ValueError, match=r"pass rope=\(cos, sin\) instead"):
        layer_of("latent")(x, rotate=lambda q, k: (q, k))


def test_state_and_text():
    layer = layer_of(always="sinks(1)", rows=4, sink=True)
    other = layer_of(seed=5, sink=True)
    other.load_state_dict(layer.state_dict())
    x = draw(1, 40, 32)
    layer.set(always=None)
    torch.testing.assert_close(other(x).output, layer(x).output)
    assert "top_k=6, stage='sparse', visible=keyhole.parse('causal')" in repr(layer)
    assert "index_heads=2, index_dim=16" in repr(layer)


@pytest.mark.parametrize("stage", ["dense", "warmup", "sparse"])
def test_compiled_layer(stage):
    torch._dynamo.reset()
    layer = layer_of(stage=stage)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = draw(1, 40, 32).requires_grad_()
    got, want = compiled(x), layer(x)
    torch.testing.assert_close(got.output, want.output)
    total = [r.output.square().sum() + (0 if r.loss is None else r.loss) for r in (got, want)]
    inputs = [x, *(p for n, p in layer.named_parameters() if stage != "dense" or not n.startswith("indexer."))]
    for a, b in zip(torch.autograd.grad(total[0], inputs), torch.autograd.grad(total[1], inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_layers(dtype):
    layer = layer_of().to(dtype)
    result = layer(draw(1, 40, 32, dtype=dtype))
    assert result.output.dtype == dtype
    (result.output.float().square().sum() + result.loss).backward()
    assert all(p.grad is not None and p.grad.dtype == dtype for p in layer.parameters())


def test_autocast():
    layer = layer_of()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = layer(draw(1, 40, 32))
    assert result.output.dtype == torch.bfloat16
    (result.output.float().square().sum() + result.loss).backward()


@needs_gpu
@pytest.mark.parametrize("stage", ["warmup", "sparse"])
def test_layers_on_the_gpu(stage):
    torch.manual_seed(0)
    layer = DeepSeekSparseAttention(
        256, 4, num_kv_heads=2, head_dim=64, index_heads=4, index_dim=64, top_k=64, stage=stage
    )
    x = draw(1, 300, 256)
    want = layer(x)
    layer.cuda()
    got = layer(x.cuda())
    torch.testing.assert_close(got.output.cpu(), want.output, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(got.loss.cpu(), want.loss, rtol=1e-3, atol=1e-3)
    (got.output.square().sum() + got.loss).backward()
    assert all(p.grad is not None for p in layer.parameters())


@pytest.mark.slow
def test_example(tmp_path):
    """examples/needle.py asserts by itself what each stage reaches."""
    picture = tmp_path / "needle.png"
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples/needle.py"), "--picture", str(picture)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"after 50 sparse steps +1\.00 +1\.00", run.stdout), run.stdout
    assert picture.exists() or "not drawn: matplotlib" in run.stdout


transformers = pytest.importorskip("transformers")

import keyhole.integrations.transformers as keyhole_hf  # noqa: E402
from small_models import LENGTH, VOCABULARY, model_of, padding, tokens  # noqa: E402

keyhole_hf.register()
INDEX = {"top_k": 5, "index_heads": 2, "index_dim": 16}


def sparse_model(kind="llama", **options):
    model = model_of(kind, "keyhole")
    keyhole_hf.use_selection(model, **{**INDEX, **options})
    return model


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral"])
def test_dense_stage_is_the_model(kind, side):
    mask = None if side is None else padding(side, [LENGTH, 17])
    kept = torch.ones(2, LENGTH, dtype=torch.bool) if mask is None else mask.bool()
    want = model_of(kind, "eager")(tokens(), attention_mask=mask).logits
    got = sparse_model(kind)(tokens(), attention_mask=mask).logits
    torch.testing.assert_close(got[kept], want[kept], rtol=2e-4, atol=2e-4)
    everything = sparse_model(kind, top_k=LENGTH, stage="sparse")(tokens(), attention_mask=mask).logits
    torch.testing.assert_close(everything[kept], want[kept], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("side", [None, "left"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"cache_implementation": "static"}], ids=str)
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_generating_with_a_cache(kind, options, side):
    """The cache holds the keys of indexers, too: beams, windows and fixed lengths treat them as other keys."""
    prompt = tokens(2, 8)
    mask = torch.ones_like(prompt) if side is None else padding(side, [8, 5], 8)
    common = {"max_new_tokens": 12, "do_sample": False, "attention_mask": mask}
    dense = sparse_model(kind).generate(prompt, **common, **options)
    assert torch.equal(dense, model_of(kind, "eager").generate(prompt, **common, **options))
    model = sparse_model(kind, stage="sparse", groups=1 if side is None else 2)
    found = model.generate(prompt, **common, **options)
    if options.pop("cache_implementation", None) is None:
        options["use_cache"] = False
    assert torch.equal(found, model.generate(prompt, **common, **options))
    assert not torch.equal(found, dense)  # the choice matters


def test_a_cache_of_layers_that_did_not_choose():
    model, prompt = sparse_model(), tokens(1, 8)
    cache = model(prompt, use_cache=True).past_key_values
    set_selection(model, lambda _: {"stage": "sparse"})
    with pytest.raises(ValueError, match="the cache of layer 0 takes no keys of an indexer.*begin with a new"):
        model(prompt[:, :1], past_key_values=cache)


def test_stages_of_a_model():
    model = sparse_model(layers=[0, 2], stage="warmup").train()
    layers = [m for m in model.modules() if isinstance(m, DeepSeekSparseAttention)]
    assert [layer.layer_idx for layer in layers] == [0, 2]
    model(tokens())
    keyhole_hf.indexer_loss(model).backward()
    moved = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert moved == {name for name, _ in model.named_parameters() if ".indexer." in name}
    set_selection(model, lambda i: {"stage": "sparse", "always": "sinks(1)"})
    out = model(tokens(), labels=tokens())
    (out.loss + keyhole_hf.indexer_loss(model)).backward()
    assert all(p.grad is not None for p in model.parameters())
    assert out.logits.shape == (2, LENGTH, VOCABULARY)


@pytest.mark.slow
@pytest.mark.parametrize("side", [None, "left"])
def test_compiled_model(side):
    """Padding of a layer that chooses breaks the graph; without it there is one."""
    torch._dynamo.reset()
    model = sparse_model(stage="sparse")
    mask = None if side is None else padding(side, [LENGTH, 17])
    kept = torch.ones(2, LENGTH, dtype=torch.bool) if mask is None else mask.bool()
    compiled = torch.compile(model, fullgraph=side is None, backend="aot_eager")
    with torch.no_grad():
        got, want = (m(tokens(), attention_mask=mask).logits[kept] for m in (compiled, model))
    torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-4)


def test_models_that_cannot_be_switched():
    with pytest.raises(ValueError, match="attention is 'eager'"):
        keyhole_hf.use_selection(model_of("llama", "eager"), **INDEX)
    with pytest.raises(NotImplementedError, match="GptOssAttention has sinks; accepted are grouped-query layers"):
        sparse_model("gpt-oss")
    with pytest.raises(NotImplementedError, match="Gemma2Attention has attn_logit_softcapping"):
        sparse_model("gemma2")
    with pytest.raises(ValueError, match=r"no attention layers \[7\]; LlamaForCausalLM has \[0, 1, 2\]"):
        sparse_model(layers=[7])
    with pytest.raises(ValueError, match="rope_dim is 12"):
        sparse_model(rope_dim=12)
    with pytest.raises(ValueError, match="no layer has a loss"):
        keyhole_hf.indexer_loss(sparse_model())
