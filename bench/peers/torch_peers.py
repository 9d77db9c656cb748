#!/usr/bin/env python3
# bench/peers/torch_peers.py
# Times the attention that ships with PyTorch beside Keyhole's GPU kernels, case by case, forward and backward, and prints
# the tables, the bars and who met them. Keyhole's times come from keyhole_gpu_kernels, which is called for each case.
"""Times PyTorch's attention beside Keyhole's, on the same cases.

  fa2, cudnn, math   scaled_dot_product_attention with that backend
  flex               FlexAttention, compiled (the first compilation of a process can take minutes)
  sparse             torch.sparse: block-sparse scores, softmax and product; forward only
  naive              matmul, softmax, matmul; on the cases named memory-* only

example:
  bench/peers/torch_peers.py --keyhole build/default/bin/keyhole_gpu_kernels --json out/peers.jsonl --seconds 500
  bench/peers/torch_peers.py --cases 'memory-*' --dram ...           with DRAM traffic, where ncu is allowed
  bench/peers/tables.py out/peers.jsonl [MORE...]                    the tables again, from the records"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import attention
import dram
import tables
import torch
from cases import read_cases

DRAM_OF = ("naive", "fa2")  # of the peers: the others would compile for minutes under a profiler
ROOT = pathlib.Path(__file__).resolve().parents[2]


def first_line(error):
    """Of a message that may be a page long; an exception of Python's own kind is named."""
    text = next(iter(str(error).strip().splitlines()), "")[:200]
    return text if text and isinstance(error, (RuntimeError, OSError, attention.Refused)) else f"{type(error).__name__}: {text}"


class Records:
    """JSON lines, written as they come: a run that is cut off keeps what it has."""

    def __init__(self, path):
        self.lines = []
        self.file = open(path, "w") if path else None  # for as long as the run lasts

    def add(self, **record):
        self.lines.append(record)
        if self.file:
            print(json.dumps(record), file=self.file, flush=True)
        if "who" in record and "case" in record:
            print(tables.told(record), flush=True)


def git(*words):
    try:
        return subprocess.run(["git", *words], check=False, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def commit():
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + (" with changes" if git("status", "--porcelain") else "")


def time_keyhole(program, case_file, case):
    """The record that keyhole_gpu_kernels writes of the case, or why there is none."""
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as file:
        command = [program, case_file, "--only", case.name, "--json", file.name]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        except (OSError, subprocess.TimeoutExpired) as error:
            return {"why_not": first_line(error)}
        for line in file:
            record = json.loads(line)
            return {key: value for key, value in record.items() if key not in ("case", "who")}
        return {"why_not": (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()[-1]}


def prepare(problem, peer):
    """The peer's attention, compiled and checked, or why there is none."""
    try:
        made = attention.PEERS[peer](problem)
        attention.check(problem, made)
        return made
    except Exception as error:  # whatever a peer does, the others are still to be timed
        return first_line(error)
    finally:
        forget(problem.device)


def forget(device):
    """What PyTorch keeps of freed memory goes back, for the other process and the next peer."""
    if device == "cuda":
        torch.cuda.empty_cache()


def peers_of(case, peers):
    return [peer for peer in peers if (peer == "naive") <= case.name.startswith("memory-")]


def run_case(case, arguments, records, is_late):
    """Everything is compiled and checked first; then Keyhole and the peers are timed one right after the other."""
    peers = peers_of(case, arguments.peers)
    mask = {"case": case.name, "who": "mask", **case._asdict()}
    if is_late():
        records.add(**mask)
        for who in [*(["keyhole"] if arguments.keyhole else []), *peers]:
            records.add(case=case.name, who=who, why_not="not run (time)")
        return
    problem = attention.Problem(case, arguments.device)
    records.add(**mask, pairs=problem.pairs, tiles=int((problem.counts > 0).sum()))
    ready = {peer: "not run (time)" if is_late() else prepare(problem, peer) for peer in peers}
    if arguments.keyhole:
        records.add(case=case.name, who="keyhole", **time_keyhole(arguments.keyhole, arguments.case_file, case))
    for peer, made in ready.items():
        if isinstance(made, str):
            records.add(case=case.name, who=peer, why_not=made)
            continue
        try:
            records.add(case=case.name, who=peer, **attention.measure(problem, made))
        except Exception as error:  # as above
            records.add(case=case.name, who=peer, why_not=first_line(error))
        forget(arguments.device)


def measure_dram(case, arguments, records, is_late):
    """DRAM traffic of one call each, by this script and keyhole_gpu_kernels run under ncu."""
    own = [sys.executable, __file__, "--case-file", arguments.case_file, "--cases", case.name, "--profile"]
    keyhole = [arguments.keyhole, arguments.case_file, "--only", case.name, "--profile"]
    timed = {line["who"] for line in records.lines if line.get("case") == case.name and "forward_ms" in line}
    for who in [who for who in (*DRAM_OF, "keyhole") if who in timed]:
        record = {}
        for operation in ("forward", "backward"):
            try:
                if is_late():
                    raise dram.NotMeasured("not run (time)")
                record[f"{operation}_dram_bytes"] = dram.bytes_of(
                    [*keyhole, operation] if who == "keyhole" else [*own, f"{who}:{operation}"]
                )
            except dram.NotMeasured as error:
                record[f"why_no_{operation}_dram"] = str(error)
        records.add(case=case.name, who=who, **record)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keyhole", help="keyhole_gpu_kernels; without it only the peers are timed")
    parser.add_argument("--peers", default=",".join(attention.PEERS), help="default: %(default)s")
    parser.add_argument("--cases", default="*", help="names, comma-separated; * stands for anything")
    parser.add_argument("--case-file", default=str(ROOT / "bench/cases/gpu_kernels.txt"), help="default: those of the repository")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="what is not begun by then is not run")
    parser.add_argument("--json", help="write the records, one a line")
    parser.add_argument("--dram", action="store_true", help="also DRAM traffic of the cases memory-*, by ncu")
    parser.add_argument("--profile", metavar="PEER:OPERATION", help="one call between the marks of a profiler, not timed")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the script, at small sizes")
    arguments = parser.parse_args()
    arguments.peers = arguments.peers.split(",")
    unknown = [peer for peer in arguments.peers if peer not in attention.PEERS]
    if unknown:
        parser.error(f"no peer is called {', '.join(unknown)}; there are {', '.join(attention.PEERS)}")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU here; --device cpu tries the script at small sizes")
    return arguments


def main():
    arguments = parse_arguments()
    cases = read_cases(arguments.case_file, arguments.cases)
    if arguments.profile:
        peer, operation = arguments.profile.split(":")
        problem = attention.Problem(cases[0], arguments.device)
        attention.profile(problem, attention.PEERS[peer](problem), operation)
        return
    end = time.monotonic() + arguments.seconds

    def is_late():
        return time.monotonic() > end

    records = Records(arguments.json)
    is_gpu = arguments.device == "cuda"
    records.add(
        who="run",
        machine=torch.cuda.get_device_name() if is_gpu else "cpu",
        torch=torch.__version__,
        commit=commit(),
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        peaks=attention.measured_peaks() if is_gpu else {},
    )
    if "flex" in arguments.peers and is_gpu:
        attention.warm_up_flex()
    for case in cases:
        run_case(case, arguments, records, is_late)
    if arguments.dram:
        for case in cases:
            if case.name.startswith("memory-"):
                measure_dram(case, arguments, records, is_late)
    print()
    print(tables.as_text(records.lines))


if __name__ == "__main__":
    main()
