# course/05_choosing_keys/learn.py
"""Four models learn to answer questions about a text: with dense attention, with a window, with random keys, and with keys
that an indexer chooses (DeepSeek's way). What they answer, and what it costs. CPU, torch, under two minutes.

    python learn.py [--steps 300] [--length 256] [--top-k 8] [--seed 0]

A text is tokens (kind, key, value). FACTS of them are facts; fillers look alike and have a key and a value, too. The last
QUESTIONS tokens ask. "find" asks for the value of a key: one token knows it, anywhere. "theme" asks which value is the most
frequent in the text: no token knows it, and all of them do.
"""

import argparse
import time

import keyhole
import torch
from keyhole import nn as knn
from torch import nn
from torch.nn.functional import cross_entropy

FACTS, QUESTIONS, THEMES = 32, 32, 4  # of the questions, THEMES ask for the theme
KEYS, VALUES, DIM, HEADS, INDEX_HEADS, INDEX_DIM = 32, 16, 64, 2, 2, 16
FILLER, FACT, FIND, THEME = range(4)  # kinds of tokens


def draw_texts(count, length):
    """Tokens [count, length, 3], the answers [count, QUESTIONS], and where the facts are that are asked for."""
    each = torch.arange(count)[:, None]
    theme = torch.randint(VALUES, (count, 1))
    values = torch.randint(VALUES, (count, length))
    values = torch.where(torch.rand(count, length) < 0.15, theme, values)
    kinds, keys = torch.full_like(values, FILLER), torch.randint(KEYS, (count, length))
    places = torch.rand(count, length - QUESTIONS).argsort(1)[:, :FACTS]
    kinds[each, places] = FACT
    keys[each, places] = torch.rand(count, KEYS).argsort(1)[:, :FACTS]  # every key has one fact
    asked = places[:, : QUESTIONS - THEMES]
    kinds[:, -QUESTIONS:-THEMES], kinds[:, -THEMES:] = FIND, THEME
    keys[:, -QUESTIONS:-THEMES] = keys.gather(1, asked)
    return (
        torch.stack([kinds, keys, values], -1),
        torch.cat([values.gather(1, asked), theme.expand(-1, THEMES)], 1),
        asked,
    )


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


def random_keys(tokens, top_k):
    count, length, _ = tokens.shape
    return keyhole.top_k(torch.rand(count, 1, length, length), top_k, visible="causal")


def train(model, steps, length, parameters, rate, lists=None, learns="answers"):
    """`lists`: draws the keys to attend to. `learns`: what is minimised, "answers", "index" or "both"."""
    model.train()
    optimizer = torch.optim.Adam(parameters, lr=rate)
    for _ in range(steps):
        tokens, answers, _ = draw_texts(8, length)
        logits, result = model(tokens, lists and lists(tokens))
        loss = result.loss if learns != "answers" else 0
        if learns != "index":
            for part in (slice(0, -THEMES), slice(-THEMES, None)):  # both kinds of questions count alike
                loss = loss + cross_entropy(logits[:, part].flatten(0, 1), answers[:, part].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def judge(model, length, lists=None):
    """Shares of right answers, and of "find" questions that attend to their fact. The same texts for all."""
    model.eval()
    state = torch.get_rng_state()
    torch.manual_seed(1234)
    tokens, answers, places = draw_texts(64, length)
    logits, result = model(tokens, lists and lists(tokens))
    torch.set_rng_state(state)
    right = (logits.argmax(-1) == answers).float()
    seen = torch.ones(1)
    if result.indices is not None:
        seen = (result.indices[:, 0, -QUESTIONS:-THEMES] == places[..., None]).any(-1).float()
    return {
        "find": right[:, :-THEMES].mean().item(),
        "theme": right[:, -THEMES:].mean().item(),
        "seen": seen.mean().item(),
    }


def main(steps=300, length=256, top_k=8, seed=0):
    """Trains and prints; returns the table, one dict a row."""
    table = []

    def report(name, model, began, keys, is_indexed, lists=None):
        row = {"keys": name, **judge(model, length, lists)}
        seen = sum(min(query + 1, keys) for query in range(length)) / length  # keys of a query, on average
        row["multiplications"] = round(seen * 2 * DIM + is_indexed * (length + 1) / 2 * INDEX_HEADS * INDEX_DIM)
        row["seconds"] = time.perf_counter() - began
        table.append(row)
        numbers = f"{row['find']:6.2f} {row['theme']:6.2f} {row['seen']:6.2f} {row['multiplications']:15d}"
        print(f"{name:22} {numbers} {row['seconds']:8.0f}", flush=True)

    def new_model():
        torch.manual_seed(seed)  # every model begins with the same weights
        return Reader(top_k), time.perf_counter()

    print(f"{'keys':22} {'find':>6} {'theme':>6} {'seen':>6} {'multiplications':>15} {'seconds':>8}")
    model, began = new_model()
    train(model, steps, length, model.parameters(), 3e-3)
    report("all", model, began, length, False)

    model, began = new_model()
    window = (torch.arange(length)[:, None] - torch.arange(top_k)).clamp(min=-1).to(torch.int32)
    model.attention.set(stage="sparse")

    def nearest(tokens):
        return window.expand(len(tokens), 1, -1, -1)

    train(model, steps, length, model.parameters(), 3e-3, nearest)
    report("nearest", model, began, top_k, False, nearest)

    model, began = new_model()
    model.attention.set(stage="sparse")
    train(model, steps, length, model.parameters(), 3e-3, lambda tokens: random_keys(tokens, top_k))
    report("random", model, began, top_k, False, lambda tokens: random_keys(tokens, top_k))

    model, began = new_model()
    train(model, steps // 2, length, model.parameters(), 3e-3)
    model.attention.set(stage="sparse")
    report("indexer,_untrained", model, began, top_k, True)
    model.attention.set(stage="warmup")
    train(model, steps // 3, length, list(knn.indexer_parameters(model)), 3e-3, learns="index")
    model.attention.set(stage="sparse")
    report("indexer,_warmed_up", model, began, top_k, True)
    train(model, steps // 6, length, model.parameters(), 1e-3, learns="both")
    report("indexer,_trained", model, began, top_k, True)
    model.attention.set(top_k=8 * top_k)
    report("indexer,_8_times_keys", model, began, 8 * top_k, True)
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option, default in (("--steps", 300), ("--length", 256), ("--top-k", 8), ("--seed", 0)):
        parser.add_argument(option, type=int, default=default)
    main(**vars(parser.parse_args()))
