# tests/python/test_transformers_compile.py
"""torch.compile of Hugging Face models on Keyhole: whole graphs give what the models give without a compiler, with
windows, soft caps, sink logits, padding, packed sequences, caches and patterns of their own. Where a trace cannot show
the mask, the graph breaks there, and fullgraph=True says why.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
testing = pytest.importorskip("torch._dynamo.testing")

import keyhole  # noqa: E402
import keyhole.integrations.transformers as keyhole_hf  # noqa: E402
from keyhole.integrations.transformers.layout import Layout  # noqa: E402
from keyhole.integrations.transformers.mask_functions import pattern_of  # noqa: E402
from keyhole.integrations.transformers.read_traced import condition_of  # noqa: E402
from small_models import KINDS, LENGTH, SIZES, model_of, padding, tokens  # noqa: E402
from torch_reference import DEVICES  # noqa: E402

keyhole_hf.register()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        int(transformers.__version__.split(".")[0]) < 5,
        reason="transformers before 5 gives masks a tensor as the position of query 0, and the graph breaks there",
    ),
]
needs_compatibility_function = pytest.mark.skipif(
    not hasattr(transformers.masking_utils, "packed_sequence_compatibility_function"),
    reason=f"transformers {transformers.__version__} has no packed_sequence_compatibility_function",
)
PACKED = torch.cat([torch.arange(11), torch.arange(20), torch.arange(9)])[None].repeat(2, 1)
INPUTS = {
    "plain": {},
    "no cache": {"use_cache": False},
    "padded left": {"attention_mask": padding("left", [LENGTH, 17])},
    "padded right": {"attention_mask": padding("right", [23, LENGTH]), "use_cache": False},
    "holes": {"attention_mask": (torch.arange(LENGTH) % 3 != 1).long().repeat(2, 1)},
    "packed": {"position_ids": PACKED, "use_cache": False},
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def two_layers(kind, device="cpu"):
    """One of each kind that these models have; the compiler takes as long again for every further one."""
    return model_of(kind, "keyhole", device, num_hidden_layers=2)


def counting(model, **options):
    counter = testing.CompileCounterWithBackend("aot_eager")
    return torch.compile(model, fullgraph=True, backend=counter, **options), counter


def gradients_of(model, function, ids, inputs):
    """Logits where there is no padding, and the gradients of all parameters."""
    model.zero_grad()
    kept = inputs.get("attention_mask", torch.ones_like(ids)).bool()
    logits = function(ids, **inputs).logits[kept]
    logits.square().sum().backward()
    return [logits.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def check_equal(found, expected, tolerance=1e-5):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * max(b.abs().max().item(), 1))


CASES = [(kind, name) for kind in (*KINDS, "qwen2") for name in ("plain", "padded left")]
CASES += [("mistral", name) for name in INPUTS if ("mistral", name) not in CASES]


def check_lengths(kind, name, lengths, device):
    """How many graphs were made after a forward and backward pass of each length."""
    model = two_layers(kind, device)
    compiled, counter = counting(model)
    made = []
    for length in lengths:
        inputs = {key: x[:, :length].to(device) if torch.is_tensor(x) else x for key, x in INPUTS[name].items()}
        ids = tokens(length=length, device=device)
        check_equal(gradients_of(model, compiled, ids, inputs), gradients_of(model, model, ids, inputs))
        made.append(counter.frame_count)
    return made


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_whole_graphs(kind, name, device):
    """A second call of the same shape compiles nothing."""
    assert check_lengths(kind, name, (LENGTH, LENGTH), device) == [1, 1]


@pytest.mark.parametrize(("kind", "name"), [("llama", "plain"), ("mistral", "padded left"), ("gemma2", "packed")])
def test_a_second_length(kind, name):
    """It makes a second graph, which serves all further lengths."""
    assert check_lengths(kind, name, (LENGTH, LENGTH - 7, LENGTH - 2), "cpu") == [1, 2, 2]


def test_values_may_change_without_a_new_graph():
    """Padding and packed sequences are read when the graph runs."""
    model = two_layers("mistral")
    compiled, counter = counting(model)
    for lengths in ([LENGTH, 17], [5, LENGTH], [LENGTH, LENGTH]):
        inputs = {"attention_mask": padding("left", lengths)}
        check_equal(gradients_of(model, compiled, tokens(), inputs), gradients_of(model, model, tokens(), inputs))
    assert counter.frame_count == 1
    for shift in (0, 5):
        inputs = {"position_ids": PACKED.roll(shift, 1), "use_cache": False}
        inputs["position_ids"][:, :shift] = torch.arange(shift)
        check_equal(gradients_of(model, compiled, tokens(), inputs), gradients_of(model, model, tokens(), inputs))
    assert counter.frame_count == 2


def test_one_graph_for_all_lengths():
    model = two_layers("mistral")
    compiled, counter = counting(model, dynamic=True)
    made = []
    for length in (LENGTH, 29, 64):
        ids = tokens(length=length)
        check_equal(gradients_of(model, compiled, ids, {}), gradients_of(model, model, ids, {}))
        made.append(counter.frame_count)
    assert made[0] == made[1] == made[2]


def test_inductor():
    """One kind of input: each is a graph of its own, for which Inductor compiles C++ for half a minute."""
    model = two_layers("gemma2")
    compiled = torch.compile(model, fullgraph=True)
    found, expected = (gradients_of(model, function, tokens(), INPUTS["packed"]) for function in (compiled, model))
    check_equal(found, expected, tolerance=1e-4)


def test_exported():
    model = two_layers("mistral")
    inputs = {"input_ids": tokens(), "attention_mask": padding("left", [LENGTH, 17]), "use_cache": False}
    exported = torch.export.export(model, (), inputs, strict=False).module()
    torch.testing.assert_close(exported(**inputs).logits, model(**inputs).logits)


@pytest.mark.parametrize("name", ["plain", "padded left", "packed"])
def test_own_patterns(name):
    model = two_layers("llama")
    compiled, counter = counting(model)
    arrays = keyhole.csr([2 * i for i in range(LENGTH + 1)], [j for i in range(LENGTH) for j in (i // 2, i)])
    texts = ["causal & (window(7) | sinks(2))", "causal & blocks(8)"]
    for own in [*map(keyhole.parse, texts), *([arrays] if name != "packed" else [])]:
        keyhole_hf.set_pattern(model, own)
        inputs = INPUTS[name]
        check_equal(gradients_of(model, compiled, tokens(), inputs), gradients_of(model, model, tokens(), inputs))
    assert counter.frame_count == 1  # one graph serves every pattern


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_steps_with_a_cache(kind):
    """Mistral's cache drops tokens that its window has left behind."""
    model = two_layers(kind)
    compiled, _ = counting(model)
    ids = tokens(length=LENGTH + 3)
    results = []
    with torch.no_grad():
        for function in (model, compiled):
            cache = transformers.DynamicCache(config=model.config)
            steps = [ids[:, :LENGTH], *ids[:, LENGTH:].split(1, dim=1)]
            results.append([function(step, past_key_values=cache).logits for step in steps])
    check_equal(*results)


class TestGraphBreaks:
    """What a trace cannot show works without fullgraph=True, and is refused with it."""

    def check(self, model, match, **inputs):
        expected = model(tokens(), **inputs).logits
        compiled = torch.compile(model, backend="eager")
        for _ in range(2):
            torch.testing.assert_close(compiled(tokens(), **inputs).logits, expected)
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match=match):
            torch.compile(model, backend="eager", fullgraph=True)(tokens(), **inputs)

    def test_a_matrix(self):
        mask = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
        mask[..., 3:5] = False
        mask |= torch.eye(LENGTH, dtype=torch.bool)
        self.check(two_layers("llama"), "keyhole: .* a tensor of four dimensions", attention_mask=mask)

    def test_ends_of_packed_sequences(self):
        ends = torch.tensor([0, 11, 80], dtype=torch.int32)
        model = two_layers("mistral")
        batch = {"cu_seq_lens_q": ends // 2, "cu_seq_lens_k": ends // 2}
        self.check(model, "keyhole: .* sequences packed by cu_seq_lens_q", **batch)

    def test_own_patterns_with_a_cache_that_dropped_tokens(self):
        model = two_layers("mistral")
        keyhole_hf.set_pattern(model, "causal & window(7)")
        ids = tokens(length=LENGTH + 1)

        def step(function):
            cache = transformers.DynamicCache(config=model.config)
            model(ids[:, :LENGTH], past_key_values=cache)
            return function(ids[:, LENGTH:], past_key_values=cache).logits

        torch.testing.assert_close(step(torch.compile(model, backend="eager")), step(model))

    def test_chunks(self):
        config = transformers.Llama4TextConfig(
            **SIZES, head_dim=16, intermediate_size_mlp=96, attention_chunk_size=11, num_local_experts=2,
            num_experts_per_tok=1, no_rope_layers=[1, 0, 1],
        )  # fmt: skip
        torch.manual_seed(0)
        model = transformers.Llama4ForCausalLM._from_config(config, attn_implementation="keyhole").eval()
        self.check(model, "keyhole: .* a mask function that is not one of")

    def test_a_static_cache(self):
        model = two_layers("llama")
        results = []
        for function in (model, torch.compile(model, backend="eager")):
            cache = transformers.StaticCache(config=model.config, max_cache_len=LENGTH + 8)
            with torch.no_grad():
                steps = tokens().split([LENGTH - 1, 1], dim=1)
                results.append([function(step, past_key_values=cache).logits for step in steps])
        check_equal(*results)


class TestReading:
    """Mask functions read by calling them hold the pairs that they state."""

    NUMBERS = torch.tensor([[0] * 10 + [1] * 20, [0] * 3 + [1] * 9 + [2] * 18])

    def functions(self):
        utils = transformers.masking_utils
        return {
            "causal": utils.causal_mask_function,
            "bidirectional": utils.bidirectional_mask_function,
            "sliding": utils.sliding_window_causal_mask_function(6),
            "both sides": utils.sliding_window_bidirectional_mask_function(6),
            "either": utils.or_masks(utils.sliding_window_overlay(3), utils.causal_mask_function),
            "ahead": lambda b, h, q, k: k < q + 4,
            "not before": lambda b, h, q, k: (q - 2 <= k) & (k + 1 >= q),
        }

    @pytest.mark.parametrize("is_traced", [False, True], ids=["", "traced"])
    def test_patterns(self, is_traced):
        for name, function in self.functions().items():
            read = torch.compile(condition_of, backend="eager", fullgraph=True) if is_traced else condition_of
            found = read(function)
            assert found.sequences is found.positions is None, name
            expected = pattern_of(function, Layout(1, 30, 30), "cpu").mask(30)
            assert (keyhole.parse(found.text).mask(30) == expected).all(), name

    @needs_compatibility_function
    def test_packed(self):
        utils = transformers.masking_utils
        positions = torch.arange(30).repeat(2, 1)
        sliding = utils.sliding_window_causal_mask_function(6)
        for function in (
            utils.packed_sequence_compatibility_function(sliding, positions, self.NUMBERS),
            utils.and_masks(utils.packed_sequence_mask_function(self.NUMBERS), sliding),
        ):
            found = condition_of(function)
            assert keyhole.parse(found.text) == keyhole.parse("window(5, inf) & causal")
            assert found.sequences is self.NUMBERS
            assert found.positions is None or found.positions is positions

    def test_what_is_not_read(self):
        utils = transformers.masking_utils
        table = self.NUMBERS
        unknown = {
            "arithmetic": lambda b, h, q, k: (q + k) % 3 == 0,
            "heads": lambda b, h, q, k: (k <= q) & (h < 2),
            "batch": lambda b, h, q, k: (k <= q) & (b < 1),
            "branch": lambda b, h, q, k: k <= q if h else k > q,
            "methods": lambda b, h, q, k: q.float() > k,
            "functions": lambda b, h, q, k: torch.minimum(q, k) > 3,
            "a tensor of heads": lambda b, h, q, k: table[h, q] == table[h, k],
            "a tensor on the left": lambda b, h, q, k: table <= q,
            "nested lookups": lambda b, h, q, k: table[b, table[b, q]] == table[b, table[b, k]],
            "ranks": lambda b, h, q, k: table[b, k] <= table[b, q],
            "one side": lambda b, h, q, k: table[b, k] >= 0,
            "two tables": lambda b, h, q, k: table[b, k] == (table + 1)[b, q],
            "sequences or causal": utils.or_masks(
                utils.packed_sequence_mask_function(table), utils.causal_mask_function
            ),
            "blockwise": utils.and_masks(utils.causal_mask_function, utils.blockwise_overlay(table)),
            "chunks": utils.chunked_causal_mask_function(9, torch.tensor([0, 7])),
            "the past only": lambda b, h, q, k: k < q,
            "no condition": lambda b, h, q, k: True,
        }
        for name, function in unknown.items():
            assert condition_of(function) is None, name

    @needs_compatibility_function
    def test_positions_that_are_not_counted_are_refused(self):
        """They can only come from a mask function of the user's."""
        utils = transformers.masking_utils
        skipping = torch.arange(30).repeat(2, 1) * 2

        @torch.compile(backend="aot_eager", fullgraph=True)
        def make(positions, numbers):
            function = utils.packed_sequence_compatibility_function(utils.causal_mask_function, positions, numbers)
            return keyhole_hf.attention.make_mask(2, 30, 30, mask_function=function).sequences + 0

        assert torch.equal(make(skipping // 2, self.NUMBERS), self.NUMBERS)
        with pytest.raises(RuntimeError, match="positions inside a packed sequence are not counted up by one"):
            make(skipping, self.NUMBERS)
