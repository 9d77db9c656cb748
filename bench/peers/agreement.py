# bench/peers/agreement.py
# Attentions of one problem in, a refusal out where one of them is wrong: before anything is timed, each is held against the
# definition on some queries, and all results against those of the first that passed.
import math

import torch
from attention import Wrong
from patterns import TILE

# Of the size of a sampled row. Scores rounded to bf16 cost up to 1 %; one wrong key among n changes a row by sqrt(2 / n).
TOLERANCE = {"bf16": 2e-2, "f16": 4e-3, "f32": 1e-4}
WORST_ROW = 5  # times that: of millions of rows some have terms that all but cancel
CHECKED_ROWS = 32


def sampled_rows(length, device):
    edges = [0, 1, TILE - 1, TILE, length // 2 - 1, length // 2, length - TILE, length - 1]
    drawn = torch.randint(length, (CHECKED_ROWS - len(edges),), generator=torch.Generator().manual_seed(1))
    return torch.tensor(sorted({*edges, *drawn.tolist()}), device=device)


def expected_rows(problem, rows):
    """out and dq of some queries by the definition, in fp32, each with the size that an error is held against."""
    q, k, v = (x.detach().float() for x in problem.inputs)
    v = v.nan_to_num()  # no query attends to the key of a NaN, and 0 x NaN is not 0
    d_out = problem.gradient[:, :, rows].float()
    scores = (q[:, :, rows] @ k.transpose(-1, -2) * problem.scale).masked_fill(~problem.allowed(rows), -math.inf)
    weights = torch.softmax(scores, -1)
    out = weights @ v
    d_weights, delta = d_out @ v.transpose(-1, -2), (d_out * out).sum(-1, keepdim=True)
    dq = weights * (d_weights - delta) @ k * problem.scale
    # The terms of the difference count, not what is left of them: nothing is left in a row that attends to one key. delta
    # is made of an out that was rounded: its own terms count, too.
    terms = d_weights.abs() + delta.abs() + (d_out * out).norm(dim=-1, keepdim=True)
    dq_size = (weights * terms).norm(dim=-1) * problem.scale * problem.case.head_dim**0.5
    return (out, out.norm(dim=-1)), (dq, dq_size)


class Agreement:
    def __init__(self, problem):
        self.problem = problem
        self.tolerance = TOLERANCE[problem.case.dtype]
        self.rows = sampled_rows(problem.case.length, problem.device)
        self.expected = dict(zip(("out", "dq"), expected_rows(problem, self.rows)))
        self.first, self.results = None, None

    def check(self, name, attention):
        """Raises Wrong when a result is not that of the pattern. Attentions without a gradient have only an output."""
        out = attention(*self.problem.inputs)
        results = {"out": out.detach()}
        if out.requires_grad:
            gradients = torch.autograd.grad(out, self.problem.inputs, self.problem.gradient)
            results |= dict(zip(("dq", "dk", "dv"), gradients))
        for what, (want, size) in self.expected.items():
            if what in results:
                error = (results[what][:, :, self.rows].float() - want).norm(dim=-1) / size
                self.refuse_beyond(self.tolerance, error, f"{what} is wrong by")
        if self.results is None:
            self.first, self.results = name, results
            return
        for what, got in results.items():
            if what in self.results:
                error = difference(got, self.results[what])
                self.refuse_beyond(WORST_ROW * self.tolerance, error, f"{what} differs from that of {self.first} by")
                self.refuse_beyond(self.tolerance, error.mean(), f"{what} differs on average from that of {self.first} by")

    def refuse_beyond(self, tolerance, error, what):
        worst = error.max().item()
        if not worst <= tolerance:
            raise Wrong(f"{what} {worst:.2g} of its size: another mask, or a wrong result")


def difference(got, want):
    """Row by row, of the size of the row; of a usual row's where terms cancel and little is left."""
    size = want.float().norm(dim=-1)
    return (got.float() - want.float()).norm(dim=-1) / (size + size.median(dim=-1, keepdim=True).values)
