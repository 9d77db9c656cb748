#!/usr/bin/env python3
# course/03_flash_fast/table.py
"""usage: table.py [LENGTH] [--programs FOLDER]

Runs the GPU programs of this chapter in order and prints the table of the road as Markdown: time, TFLOP/s, and how many
times as fast each step is as the one before. FOLDER is where they were built; `scripts/course 03` builds them in
build/course/course/03_flash_fast, which is looked at if none is given. A program that cannot run here says why.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINE = re.compile(r"(?:step \d+|library) (.+): ([\d.]+) ms, ([\d.]+) TFLOP/s, largest error ([\d.]+)")
SKIPPED = 77
# Program, and what it changes.
STEPS = (
    ("step1_sequence_gpu", "a CTA for each query tile; fp32 in shared memory"),
    ("step2_registers_gpu", "scores and output in registers, vectors of four"),
    ("step3_tensor_cores_gpu", "tensor cores: `mma.sync`, bf16"),
    ("step4_pipeline_gpu", "swizzle, `cp.async`, two stages"),
    ("step5_wgmma_gpu", "`wgmma`, TMA"),
    ("step6_warp_roles_gpu", "producer and consumer warps, `setmaxnreg`"),
    ("step7_guessed_maximum_gpu", "softmax beside the products, turns, guessed maximum"),
    ("library_gpu", "`keyhole::attention_forward`"),
)


def measure(program, length):
    """(milliseconds, TFLOP/s, largest error), or why there are none."""
    if not program.exists():
        return "not built"
    run = subprocess.run([str(program), *length], capture_output=True, text=True, check=False, timeout=600)
    if run.returncode == SKIPPED:
        return run.stdout.strip() or "skipped"
    match = LINE.search(run.stdout)
    if run.returncode != 0 or match is None:
        return f"failed, status {run.returncode}: " + " ".join((run.stdout + run.stderr).split())
    return match[2], match[3], match[4]


def main(arguments):
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("length", nargs="?")
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "build/course/course/03_flash_fast")
    options = parser.parse_args(arguments)
    length = [options.length] if options.length else []
    print("| step | what changes | ms | TFLOP/s | times the step before | largest error |")
    print("|---|---|---:|---:|---:|---:|")
    before, status = None, 0
    for number, (name, change) in enumerate(STEPS, 1):
        step = "library" if name == "library_gpu" else str(number)
        measured = measure(options.programs / name, length)
        if isinstance(measured, str):
            print(f"| {step} | {change} | {measured} | | | |")
            status = 1 if measured.startswith("failed") else status
            before = None
            continue
        milliseconds, tflops, error = measured
        gain = f"{before / float(milliseconds):.2f}" if before else ""
        print(f"| {step} | {change} | {milliseconds} | {tflops} | {gain} | {error} |")
        before = float(milliseconds)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
