#!/usr/bin/env python3
# bench/peers/compare.py
# Times Keyhole beside the attention that ships with PyTorch, in one process and on the same tensors, case by case, forward
# and backward; prints the tables, the bars and who met them, writes the records and draws a figure.
"""Times Keyhole beside PyTorch's attention, on the same tensors, after checking them against each other.

  keyhole            the Python package; deterministic: with its deterministic backward pass
  sm80               the Python package with backend="sm80", whatever the GPU; on the cases whose bars judge it only
  fa2, cudnn, math   scaled_dot_product_attention with that backend
  flex               FlexAttention, compiled (the first compilation of a process can take minutes)
  naive              matmul, softmax, matmul; on the cases named memory-* only

On the cases named own-* Keyhole stands alone: bars hold its times against those of its other cases.

exit status:
  0   all that were timed passed the check, or do not take the case
  1   one failed the check; or keyhole, or another that --who names, could not run: there was an error
      on some case, or it takes none of them. Keyhole's backends take every case: one that they refuse is an error
  2   the words of the command line are wrong

example:
  bench/peers/compare.py --out out/peers --seconds 500             the cases that bars name come first
  bench/peers/compare.py --out out/peers --seconds 500 --resume    what is missing there, into the same records
  bench/peers/compare.py --out out/own --who keyhole --passes forward --cases 'own-*,dense-16k,dense-16k-d64'
  bench/peers/compare.py --out out/peers --resume --cases 'memory-*' --dram    with DRAM traffic, where ncu is allowed
  bench/peers/tables.py out/peers/records.jsonl [MORE...]          the tables again, from the records
  bench/plot.py out/peers/records.jsonl --out FOLDER               and the figure"""

import argparse
import contextlib
import pathlib
import subprocess
import sys
import time

import attention
import dram
import tables
import timing
import torch
from agreement import Agreement
from attention import ATTENTIONS, Problem, Refused, Wrong
from cases import CASE_FILE, OPERATIONS, OURS, PASSES, is_about_memory, is_own, most_telling_first, read_bars, read_cases
from records import Log

BY_DEFAULT = [name for name in ATTENTIONS if name != "deterministic"]
DRAM_OF = ("naive", "fa2", "keyhole")  # the others would compile for minutes under a profiler
ROOT = pathlib.Path(__file__).resolve().parents[2]


def first_line(error):
    """Of a message that may be a page long; an exception of Python's own kind is named."""
    text = next(iter(str(error).strip().splitlines()), "")[:200]
    return text if text and isinstance(error, (RuntimeError, OSError, Refused)) else f"{type(error).__name__}: {text}"


def how_it_failed(error):
    """Fields of a record; `failed` is not among them where it was said that the case is not taken."""
    failed = {"failed": "check"} if isinstance(error, Wrong) else {} if isinstance(error, Refused) else {"failed": "run"}
    return {"why_not": first_line(error), **failed}


def git(*words):
    try:
        return subprocess.run(["git", *words], check=False, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def run_record(arguments):
    is_gpu = arguments.device == "cuda"
    commit = git("rev-parse", "--short=12", "HEAD") or "unknown"
    return {
        "who": "run",
        "machine": torch.cuda.get_device_name() if is_gpu else "cpu",
        "torch": torch.__version__,
        "commit": commit + (" with changes" if git("status", "--porcelain") else ""),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cache": "cold" if arguments.cold else "warm",
        "peaks": timing.measured_peaks() if is_gpu else {},
    }


class Run:
    """One run over the cases: what it was asked for, what it has recorded, and when it has to end."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.begin = time.monotonic()
        self.cases = read_cases(arguments.case_file, arguments.cases)
        self.bars = read_bars()
        arguments.out.mkdir(parents=True, exist_ok=True)
        self.log = Log(arguments.out / "records.jsonl", arguments.resume)
        self.log.add(**run_record(arguments))
        self.timer = timing.Timer(arguments.device, arguments.repeats, arguments.pause, arguments.cold)

    def is_late(self):
        return time.monotonic() - self.begin > self.arguments.seconds

    def attentions_for(self, case):
        is_sm80_judged = any(bar.who == "sm80" and bar.holds_for(case.name) for bar in self.bars)
        is_asked = {"naive": is_about_memory(case), "sm80": is_sm80_judged}
        asked = [who for who in self.arguments.who if is_asked.get(who, True)]
        return [who for who in asked if who in OURS or not is_own(case)]

    def left(self):
        """Cases without a record of some attention that was asked for, in the order to time them in."""
        known = self.log.cases()
        passes = self.arguments.passes
        left = [case for case in self.cases if not all(known[case.name].has(who, passes) for who in self.attentions_for(case))]
        return most_telling_first(left, self.bars)

    def compare(self):
        left = self.left()
        if left and not set(OURS).isdisjoint(self.arguments.who):
            attention.warm_up_keyhole(self.arguments.device)
        if left and "flex" in self.arguments.who and self.arguments.device == "cuda":
            flex_s = timing.host_seconds(attention.warm_up_flex)
            self.log.add(who="warm_up", flex_s=flex_s)
            print(f"FlexAttention compiled its first kernels in {flex_s:.0f} s", flush=True)
        for case in left:
            if self.is_late():
                return
            self.compare_on(case)

    def compare_on(self, case):
        """Everything is compiled and checked first; then all are timed one right after the other. Who has said why not in
        the records that are resumed is not asked again."""
        print(f"{case.name}: {case.pattern}; {time.monotonic() - self.begin:.0f} s", flush=True)
        known = self.log.cases()[case.name]
        asked = [who for who in self.attentions_for(case) if known.value(who, "why_not") is None]
        problem = None
        with self.refusals(case, asked):
            problem = Problem(case, self.arguments.device)
        pairs = {"pairs": problem.pairs, "tiles": int((problem.counts > 0).sum())} if problem else {}
        self.log.add(case=case.name, who="mask", **case._asdict(), **pairs)
        if not problem:
            return
        agreement, ready = Agreement(problem), {}
        for who in asked:
            begin = time.monotonic()
            with self.refusals(case, [who]):
                made = ATTENTIONS[who](problem)
                agreement.check(who, made)
                ready[who] = made, time.monotonic() - begin
        del agreement
        for who, (made, ready_s) in ready.items():
            with self.refusals(case, [who]):
                record = timing.measure(problem, made, self.timer, PASSES[self.arguments.passes])
                self.log.add(case=case.name, who=who, **record, ready_s=ready_s, **problem.notes.get(who, {}))

    @contextlib.contextmanager
    def refusals(self, case, names):
        """Whatever one does, the others are still to be timed: an error becomes their record. What PyTorch keeps of freed
        memory goes back, since the workspaces of others are not PyTorch's."""
        try:
            yield
        except Exception as error:
            for who in names:
                self.log.add(case=case.name, who=who, **how_it_failed(error))
        if self.arguments.device == "cuda":
            try:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
            except RuntimeError as error:
                raise SystemExit(
                    f"{case.name}, {', '.join(names)}: {first_line(error)}. The GPU is lost to this process; "
                    "the same command with --resume goes on without them"
                ) from error

    def measure_dram(self):
        """DRAM traffic of one call each, by this script run under ncu: once for a case."""
        for case in [case for case in self.cases if is_about_memory(case)]:
            known = self.log.cases()[case.name]
            calls = [(who, operation) for who in DRAM_OF for operation in OPERATIONS if known.value(who, f"{operation}_ms")]
            if self.is_late() or all(known.value(who, f"{operation}_dram_bytes") is not None for who, operation in calls):
                continue
            told = ",".join(f"{who}:{operation}" for who, operation in calls)
            command = [sys.executable, __file__, "--case-file", self.arguments.case_file, "--cases", case.name, "--profile", told]
            try:
                for (who, operation), total in zip(calls, dram.bytes_of(command, len(calls))):
                    self.log.add(case=case.name, who=who, **{f"{operation}_dram_bytes": total})
            except dram.NotMeasured as error:
                self.log.add(case=case.name, who="keyhole", why_no_dram=str(error))

    def tell(self):
        text = tables.as_text(self.log.lines)
        (self.arguments.out / "tables.txt").write_text(text + "\n")
        print(f"\n{text}")
        try:
            sys.path.append(str(ROOT / "bench"))
            import plot  # needs matplotlib, which a machine for measuring may lack

            for path in plot.draw_all(self.log.lines, self.arguments.out):
                print(path)
        except ImportError as error:
            print(f"no figure: {error}; draw it elsewhere by bench/plot.py {self.log.path}")
        if left := self.left():
            names = ", ".join(case.name for case in left)
            print(f"{len(left)} of {len(self.cases)} cases are not done: {names}; the same command with --resume goes on")

    def failures(self):
        """In words, what the exit status is about."""
        return [line for who in self.arguments.who for line in self.failures_of(who)]

    def failures_of(self, who):
        known = self.log.cases()
        must_run = who == "keyhole" or self.arguments.is_named
        refused = {name: case for name, case in known.items() if case.value(who, "why_not")}
        found = []
        for name, case in refused.items():
            failed = case.value(who, "failed") or ("run" if who in OURS else None)
            if failed == "check" or (failed == "run" and must_run):
                found.append(f"{who} on {name}: {case.value(who, 'why_not')}")
        if who in OURS:
            other_pairs = [name for name, case in known.items() if not case.same_pairs(who)]
            found += [f"{who} on {name}: the plan keeps other pairs than the pattern" for name in other_pairs]
        is_timed = any(case.value(who, "forward_ms") for case in known.values())
        if must_run and refused and not found and not is_timed:
            found.append(f"{who} takes none of the cases: {next(iter(refused.values())).value(who, 'why_not')}")
        return found


def parse_arguments(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--who", help=f"default: {','.join(BY_DEFAULT)}; whom this names has to run, see exit status")
    parser.add_argument("--cases", default="*", help="names, comma-separated; * stands for anything")
    parser.add_argument("--case-file", default=str(CASE_FILE), help="default: that of the repository")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/peers"), help="for records, tables and the figure")
    parser.add_argument("--resume", action="store_true", help="keep the records that are there, and time what they lack")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no case is begun later")
    parser.add_argument("--passes", choices=("both", "forward"), default="both", help="forward: gradients are not timed")
    parser.add_argument("--repeats", type=int, default=15, help="of each call; 3 where it takes over 100 ms")
    parser.add_argument("--pause", type=float, default=0.05, metavar="SECONDS", help="before a single launch (default 0.05)")
    parser.add_argument("--cold", action="store_true", help="clear the second-level cache before each call")
    parser.add_argument("--dram", action="store_true", help="also DRAM traffic of the cases memory-*, by ncu")
    parser.add_argument(
        "--profile", metavar="WHO:OPERATION,...", help="one call of each between the marks of a profiler, not timed"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the script, at small sizes")
    arguments = parser.parse_args(words)
    arguments.is_named = arguments.who is not None
    arguments.who = arguments.who.split(",") if arguments.is_named else BY_DEFAULT
    unknown = [who for who in arguments.who if who not in ATTENTIONS]
    if unknown:
        parser.error(f"--who: unknown {', '.join(unknown)}; there are {', '.join(ATTENTIONS)}")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU here; --device cpu tries the script at small sizes")
    if not set(OURS).isdisjoint(arguments.who):
        try:
            attention.import_keyhole()
        except Refused as error:
            parser.error(str(error))
    return arguments


def profile(arguments):
    problem = Problem(read_cases(arguments.case_file, arguments.cases)[0], arguments.device)
    for word in arguments.profile.split(","):
        who, operation = word.split(":")
        timing.profile(problem, ATTENTIONS[who](problem), operation)


def main(words=None):
    """The words of the command line, unless given."""
    arguments = parse_arguments(words)
    if arguments.profile:
        return profile(arguments)
    run = Run(arguments)
    run.compare()
    if arguments.dram:
        run.measure_dram()
    run.tell()
    failures = run.failures()
    for line in failures:
        print(line, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
