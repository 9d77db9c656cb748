# bench/peers/records.py
# Records of compare.py, one JSON object a line: written as they come, read back, and gathered case by case.
import collections
import json
import pathlib

from cases import PASSES, TIMINGS, has_nan


class Measured:
    """All records of one case: `mask` has its shape and pairs, the others are by name."""

    def __init__(self):
        self.by = {}

    def __getattr__(self, field):
        return self.by["mask"].get(field)

    def add(self, record):
        """What was timed again replaces what was there of that pass; bytes and masks are added to it."""
        known = self.by.setdefault(record["who"], {})
        if "why_not" in record:
            known.clear()
        for operation in PASSES["both"]:
            if f"{operation}_ms" in record:
                for field in [field for field in known if field == "why_not" or field.startswith(f"{operation}_")]:
                    del known[field]
        known.update(record)

    def value(self, who, field):
        return self.by.get(who, {}).get(field)

    def has(self, who, passes="both"):
        """Whether these passes were timed, or it said why they could not be."""

        def is_told(operation):
            fields = (f"{operation}_ms", f"why_no_{operation}", "why_not")
            return any(self.value(who, field) is not None for field in fields)

        return all(map(is_told, PASSES[passes]))

    def title(self):
        """The pattern, and what is special about the tensors."""
        return f"{self.pattern}, one NaN" if has_nan(self) else self.pattern

    def sizes(self):
        return self.batch, self.heads, self.length, self.head_dim, self.dtype

    def shape(self):
        dtype = "" if self.dtype == "bf16" else f" {self.dtype}"
        return f"{self.batch}x{self.heads}x{self.length:,} d{self.head_dim}{dtype}"

    def kept(self):
        """The share of all pairs that attends."""
        return self.pairs / self.length**2

    def flops(self, operation):
        return (4 if operation == "forward" else 10) * self.pairs * self.batch * self.heads * self.head_dim

    def tensor_bytes(self, operation):
        """Each tensor once: q, k, v, out; backward also dout, dq, dk, dv."""
        element = 4 if self.dtype == "f32" else 2
        return (4 if operation == "forward" else 8) * self.batch * self.heads * self.length * self.head_dim * element

    def ms(self, who, passes, timing="queued"):
        """The time of a pass, or of both together."""
        times = [self.value(who, operation + TIMINGS[timing]) for operation in PASSES[passes]]
        return None if None in times else sum(times)

    def amount(self, per):
        """How many there are of what a time is divided by; pairs are those of all heads."""
        pairs = {"call": 1, "pair": self.pairs, "visited": self.value("keyhole", "visited_pairs")}[per]
        return pairs and pairs * (1 if per == "call" else self.batch * self.heads)

    def ratio(self, who, passes, timing="queued", other=None, per="call", judged="keyhole"):
        """How many times as fast as `who`, on this case or on another, Keyhole is, or another of ours."""
        other = other or self
        ours, theirs = self.ms(judged, passes, timing), other.ms(who, passes, timing)
        our_amount, their_amount = self.amount(per), other.amount(per)
        if not all((ours, theirs, our_amount, their_amount)):
            return None
        return (theirs / their_amount) / (ours / our_amount)

    def same_pairs(self, who="keyhole"):
        return self.value(who, "pairs") in (None, self.pairs)


def read(paths):
    texts = [pathlib.Path(path).read_text() for path in paths]
    return [json.loads(line) for text in texts for line in text.splitlines() if line.strip()]


def grouped(records):
    """name: Measured, in the order of the records."""
    cases = collections.defaultdict(Measured)
    for record in records:
        if "case" in record:
            cases[record["case"]].add(record)
    return cases


class Log:
    """A file of records that a run writes: what is cut off keeps what it has, and what is resumed goes on in it."""

    def __init__(self, path, is_resumed):
        self.path = path
        self.lines = read([path]) if is_resumed and path.exists() else []
        if not is_resumed:
            path.write_text("")

    def add(self, **record):
        self.lines.append(record)
        with open(self.path, "a") as file:
            print(json.dumps(record), file=file)
        if "case" in record and record["who"] != "mask":
            print(told(record), flush=True)

    def cases(self):
        return grouped(self.lines)


def told(record):
    """A line for whoever waits."""
    shown = [f"{key} {value:,.3f}" for key, value in record.items() if key.endswith("_ms") and isinstance(value, float)]
    shown += [f"{key} {value:,}" for key, value in record.items() if key.endswith("_bytes") and value is not None]
    shown += [f"{key}: {value}" for key, value in record.items() if key.startswith("why_no")]
    return f"  {record['who']:8} {', '.join(shown)}"
