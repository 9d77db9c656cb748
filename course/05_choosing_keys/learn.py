# course/05_choosing_keys/learn.py
"""Four models learn to answer questions about a text: with all keys, the nearest, random ones, and those an indexer
chooses (DeepSeek's way). What they answer, and what it costs. On the CPU, with torch, in less than two minutes.

    python learn.py [--steps 300] [--length 256] [--top-k 8] [--seed 0]

Tokens have a kind, a key and a value. 32 are facts. Fillers have a key and a value too, but another kind. The last 32
tokens ask. "find" asks for the value of a key: one token knows it, the fact with this key. "theme" asks for the most
frequent value of the text: no token knows it, all together do.
"""

import argparse
import time

import keyhole
import torch
from keyhole import nn as knn
from torch import nn
from torch.nn.functional import cross_entropy

FACTS, QUESTIONS, THEMES, KEYS, VALUES = 32, 32, 4, 32, 16  # THEMES of the QUESTIONS ask for the theme
DIM, HEADS, INDEX_HEADS, INDEX_DIM = 64, 2, 2, 16
FILLER, FACT, FIND, THEME = range(4)  # kinds of tokens


def draw_texts(count, length):
    """Tokens [count, length, 3], the answers [count, QUESTIONS], and where the facts are that are asked for."""
    each = torch.arange(count)[:, None]
    theme = torch.randint(VALUES, (count, 1))
    values = torch.randint(VALUES, (count, length))
    values = torch.where(torch.rand(count, length) < 0.15, theme, values)  # the theme: 0.15 + 0.85 / 16, a fifth of all
    kinds, keys = torch.full_like(values, FILLER), torch.randint(KEYS, (count, length))
    places = torch.rand(count, length - QUESTIONS).argsort(1)[:, :FACTS]
    kinds[each, places] = FACT
    keys[each, places] = torch.rand(count, KEYS).argsort(1)[:, :FACTS]  # every key has one fact
    asked = places[:, : QUESTIONS - THEMES]
    kinds[:, -QUESTIONS:-THEMES], kinds[:, -THEMES:] = FIND, THEME
    keys[:, -QUESTIONS:-THEMES] = keys.gather(1, asked)
    answers = torch.cat([values.gather(1, asked), theme.expand(-1, THEMES)], 1)
    return torch.stack([kinds, keys, values], -1), answers, asked


class Reader(nn.Module):
    """One attention layer between embeddings and a classifier."""

    def __init__(self, top_k):
        super().__init__()
        self.kind, self.key, self.value = (nn.Embedding(n, DIM) for n in (4, KEYS, VALUES))
        self.norm = nn.LayerNorm(DIM)
        self.attention = knn.DeepSeekSparseAttention(
            DIM, HEADS, top_k=top_k, stage="dense", index_heads=INDEX_HEADS, index_dim=INDEX_DIM
        )
        self.answer = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 128), nn.GELU(), nn.Linear(128, VALUES))
        # Queries and keys begin alike, so that equal embeddings have large products from the first step on.
        self.attention.heads.k_proj.weight.data.copy_(self.attention.heads.q_proj.weight.data)

    def forward(self, tokens, indices=None):
        kind, key, value = tokens.unbind(-1)
        x = self.kind(kind) + self.key(key) * (kind != THEME)[..., None] + self.value(value) * (kind <= FACT)[..., None]
        result = self.attention(self.norm(x), indices=indices)
        return self.answer((x + result.output)[:, -QUESTIONS:]), result


def train(model, steps, length, parameters, rate, lists=None, learns="answers"):
    """`lists`: draws the keys to attend to. `learns`: what is minimised, "answers", "index" or "both"."""
    model.train()
    optimizer = torch.optim.Adam(parameters, lr=rate)
    for _ in range(steps):
        tokens, answers, _ = draw_texts(8, length)
        logits, result = model(tokens, lists and lists(tokens))
        loss = result.loss if learns != "answers" else 0
        for part in (slice(0, -THEMES), slice(-THEMES, None)):  # both kinds of questions count alike
            if learns != "index":
                loss = loss + cross_entropy(logits[:, part].flatten(0, 1), answers[:, part].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def judge(model, length, lists=None):
    """Shares of right answers, and of "find" questions that attend to their fact. The same texts for all."""
    model.eval()
    with torch.random.fork_rng():
        torch.manual_seed(1234)
        tokens, answers, places = draw_texts(64, length)
        logits, result = model(tokens, lists and lists(tokens))
    right = (logits.argmax(-1) == answers).float()
    row = {"find": right[:, :-THEMES].mean().item(), "theme": right[:, -THEMES:].mean().item(), "seen": 1.0}
    if result.indices is not None:
        row["seen"] = (result.indices[:, 0, -QUESTIONS:-THEMES] == places[..., None]).any(-1).float().mean().item()
    return row


def main(steps=300, length=256, top_k=8, seed=0):
    """Trains and prints; returns the table, one dict a row."""
    table = []

    def nearest(tokens):
        return (torch.arange(length)[:, None] - torch.arange(top_k)).clamp(min=-1).int().expand(len(tokens), 1, -1, -1)

    def random(tokens):
        return keyhole.top_k(torch.rand(len(tokens), 1, length, length), top_k, visible="causal")

    def begin(stage):
        torch.manual_seed(seed)  # every model begins with the same weights
        model = Reader(top_k)
        model.attention.set(stage=stage)
        return model, time.perf_counter()

    def report(name, keys, scored, lists=None):
        row = {"keys": name, **judge(model, length, lists)}
        attended = sum(min(query + 1, keys) for query in range(length)) / length  # by a query, on average
        row["multiplications"] = round(attended * 2 * DIM + scored * INDEX_HEADS * INDEX_DIM)
        row["seconds"] = round(time.perf_counter() - began)
        table.append(row)
        print("{:20} {:6.2f} {:6.2f} {:6.2f} {:15d} {:7d}".format(*row.values()), flush=True)

    print("{:20} {:>6} {:>6} {:>6} {:>15} {:>7}".format("keys", "find", "theme", "seen", "multiplications", "seconds"))
    model, began = begin("dense")
    train(model, steps, length, model.parameters(), 3e-3)
    report("all", length, 0)
    for name, lists in (("nearest", nearest), ("random", random)):
        model, began = begin("sparse")
        train(model, steps, length, model.parameters(), 3e-3, lists)
        report(name, top_k, 0, lists)

    scored = (length + 1) / 2  # keys that the indexer scores for a query, on average
    model, began = begin("dense")
    train(model, steps // 2, length, model.parameters(), 3e-3)
    model.attention.set(stage="sparse")
    report("indexer,_untrained", top_k, scored)
    model.attention.set(stage="warmup")
    train(model, steps // 3, length, list(knn.indexer_parameters(model)), 3e-3, learns="index")
    model.attention.set(stage="sparse")
    report("indexer,_warmed_up", top_k, scored)
    train(model, steps // 6, length, model.parameters(), 1e-3, learns="both")
    report("indexer,_trained", top_k, scored)
    model.attention.set(top_k=8 * top_k)
    report("the_same,_8_times_k", 8 * top_k, scored)
    return table


if __name__ == "__main__":
    torch.set_num_threads(1)  # so small a model gains nothing from more
    parser = argparse.ArgumentParser()
    for option, default in (("--steps", 300), ("--length", 256), ("--top-k", 8), ("--seed", 0)):
        parser.add_argument(option, type=int, default=default)
    main(**vars(parser.parse_args()))
