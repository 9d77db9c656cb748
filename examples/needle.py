# examples/needle.py
"""A layer learns to find facts in a text, then learns to find them while it looks at 8 of 256 tokens.

    python examples/needle.py [--picture needle.png] [--seed 0]

The text has 256 tokens. 32 of them are facts, a key with its value; the others look alike and mean nothing. The last 32
tokens are questions: a key, whose value is asked for. Three stages, as in DeepSeek's sparse attention:

    dense    the layer learns to answer, with plain causal attention
    warm-up  its indexer learns which keys that attention looks at; nothing else changes
    sparse   the layer attends to the 8 keys that the indexer chooses, and all of it learns on

It runs on the CPU in less than a minute. The program fails if a stage does not reach what is printed for it.
"""

import argparse
import pathlib
import time

import keyhole
import torch
from keyhole import nn as knn
from torch import nn
from torch.nn.functional import cross_entropy

LENGTH, FACTS, QUESTIONS = 256, 32, 32
KEYS, VALUES = 32, 16
DIM, HEADS, TOP_K = 64, 2, 8
FILLER, FACT, QUESTION = 0, 1, 2  # kinds of tokens


def draw_texts(count=8):
    """Tokens [count, LENGTH, 3]: kind, key, value; and of each question the answer and the place of its fact."""
    each = torch.arange(count)[:, None]
    tokens = torch.stack(
        [torch.zeros(count, LENGTH), torch.rand(count, LENGTH) * KEYS, torch.rand(count, LENGTH) * VALUES]
    )
    tokens = tokens.long().permute(1, 2, 0).contiguous()
    keys = torch.rand(count, KEYS).argsort(1)[:, :FACTS]
    values = torch.randint(VALUES, (count, FACTS))
    places = torch.rand(count, LENGTH - QUESTIONS).argsort(1)[:, :FACTS]
    tokens[each, places] = torch.stack([torch.full_like(keys, FACT), keys, values], -1)
    asked = torch.rand(count, FACTS).argsort(1)[:, :QUESTIONS]
    questions = keys.gather(1, asked)
    tokens[:, -QUESTIONS:] = torch.stack([torch.full_like(asked, QUESTION), questions, torch.zeros_like(asked)], -1)
    return tokens, values.gather(1, asked), places.gather(1, asked)


class Reader(nn.Module):
    """One attention layer between embeddings and a classifier."""

    def __init__(self):
        super().__init__()
        self.kind, self.key, self.value = (nn.Embedding(n, DIM) for n in (3, KEYS, VALUES))
        self.norm = nn.LayerNorm(DIM)
        self.attention = knn.DeepSeekSparseAttention(
            DIM, HEADS, top_k=TOP_K, stage="dense", index_heads=2, index_dim=16
        )
        self.answer = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 128), nn.GELU(), nn.Linear(128, VALUES))
        # Queries and keys that begin alike: equal embeddings have large products from the first step on.
        heads = self.attention.heads
        heads.k_proj.weight.data.copy_(heads.q_proj.weight.data)

    def forward(self, tokens, **options):
        kind, key, value = tokens.unbind(-1)
        x = self.kind(kind) + self.key(key) + self.value(value) * (kind != QUESTION)[..., None]
        result = self.attention(self.norm(x), **options)
        return self.answer((x + result.output)[:, -QUESTIONS:]), result


def train(model, steps, parameters, rate, wanted):
    """`wanted`: the loss, of the cross entropy of the answers and of the loss of the indexer."""
    model.train()
    optimizer = torch.optim.Adam(parameters, lr=rate)
    for _ in range(steps):
        tokens, values, _ = draw_texts()
        logits, result = model(tokens)
        loss = wanted(cross_entropy(logits.flatten(0, 1), values.flatten()), result.loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model, **options):
    """(share of right answers, share of questions whose fact is among the chosen keys)."""
    model.eval()
    generator = torch.get_rng_state()
    torch.manual_seed(1234)  # the same texts for every stage
    tokens, values, places = draw_texts(32)
    torch.set_rng_state(generator)
    logits, result = model(tokens, **options)
    right = (logits.argmax(-1) == values).float().mean().item()
    if result.indices is None:
        return right, float("nan")
    chosen = result.indices[:, 0, -QUESTIONS:]
    return right, (chosen == places[..., None]).any(-1).float().mean().item()


def draw_choice(model, path):
    """What the questions of one text chose: blue where a key was chosen, a ring where the answer is."""
    from keyhole import viz  # needs matplotlib

    tokens, _, places = draw_texts(1)
    with torch.no_grad():
        chosen = model(tokens)[1].indices[0, 0, -QUESTIONS:]
    mask = torch.zeros(QUESTIONS, LENGTH, dtype=torch.bool).scatter(1, chosen.long(), True)
    pattern = keyhole.from_dense(mask)
    axes = viz.pyplot.figure(figsize=(12, 2.6), layout="constrained").add_subplot()
    viz.draw_pattern(pattern, QUESTIONS, LENGTH, title=f"{TOP_K} of {LENGTH} keys; rings: the answers", ax=axes)
    axes.set_aspect("auto")
    axes.set_ylabel("questions")
    axes.scatter(places[0] + 0.5, torch.arange(QUESTIONS) + 0.5, s=40, facecolors="none", edgecolors="#d62728")
    axes.figure.savefig(path, dpi=120)


def main():
    options = argparse.ArgumentParser(description="A layer learns to answer from 8 of 256 tokens.")
    options.add_argument("--picture", default="needle.png", type=pathlib.Path, help="what was chosen, as a PNG")
    options.add_argument("--seed", default=0, type=int)
    options = options.parse_args()
    torch.manual_seed(options.seed)
    began = time.perf_counter()
    model = Reader()
    layer = model.attention
    of_indexer = list(knn.indexer_parameters(model))
    others = [p for p in model.parameters() if all(p is not q for q in of_indexer)]

    def report(name, result):
        needle = "" if result[1] != result[1] else f"{result[1]:8.2f}"
        print(f"{name:34}{result[0]:8.2f}{needle:>8}   {time.perf_counter() - began:5.0f} s", flush=True)
        return result

    print(f"{'':34}{'answers':>8}{'chosen':>8}")
    train(model, 150, others, 3e-3, lambda answers, index: answers)
    dense = report("dense, 150 steps", accuracy(model))

    layer.set(stage="sparse")
    untrained = report(f"{TOP_K} keys of an untrained indexer", accuracy(model))
    scores = torch.rand(32, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(options.seed))
    report(f"{TOP_K} keys at random", accuracy(model, indices=keyhole.top_k(scores, TOP_K, visible="causal")))
    near = torch.arange(LENGTH)[:, None] - torch.arange(TOP_K).flip(0)
    nearest = near.clamp(min=-1).to(torch.int32).expand(32, 1, -1, -1)
    report(f"the {TOP_K} nearest keys", accuracy(model, indices=nearest))

    layer.set(stage="warmup")
    train(model, 100, of_indexer, 3e-3, lambda answers, index: index)
    layer.set(stage="sparse")
    warm = report("after 100 steps of warm-up", accuracy(model))
    train(model, 50, model.parameters(), 1e-3, lambda answers, index: answers + index)
    sparse = report("after 50 sparse steps", accuracy(model))

    assert dense[0] > 0.99, "dense attention did not learn to answer"
    assert untrained[0] < 0.3, "an untrained indexer answers; the task is too easy"
    assert warm[0] > 0.99, "the warm-up did not keep the answers"
    assert warm[1] > 0.99, "the warm-up did not find the facts"
    assert sparse[0] > 0.99, "sparse training lost the answers"
    assert sparse[1] > 0.99, "sparse training lost the facts"
    try:
        draw_choice(model, options.picture)
        print(f"drawn: {options.picture}")
    except ModuleNotFoundError as error:
        print(f"not drawn: {error.name} is not installed")


if __name__ == "__main__":
    main()
