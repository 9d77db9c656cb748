# bench/peers/dram.py
# A command in, the DRAM bytes of its profiled calls out, by NVIDIA's ncu.
import csv
import shutil
import subprocess

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
MARK = "spin_kernel"  # only torch.cuda._sleep launches it; it goes before each profiled call


class NotMeasured(Exception):
    """The text says why."""


def bytes_of(command, num_calls):
    """Of each of its calls: read and written, summed over the kernels up to the next mark. What a kernel leaves in the
    second-level cache is not in it."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise NotMeasured("ncu is not on PATH")
    options = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--profile-from-start", "off"]
    try:
        done = subprocess.run(
            [ncu, *options, "--metrics", ",".join(METRICS), *command], check=False, capture_output=True, text=True, timeout=180
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotMeasured(f"ncu: {error}") from error
    sums = sums_of(done.stdout + done.stderr)
    if len(sums) != num_calls:
        raise NotMeasured(f"ncu profiled {len(sums)} of {num_calls} calls")
    return sums


def sums_of(text):
    """A table of CSV among other lines: names, units, then one line a kernel."""
    lines = text.splitlines()
    header = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if header is None:
        complaint = next((line for line in lines if line.startswith("==ERROR==")), "ncu profiled no kernel")
        raise NotMeasured(complaint.removeprefix("==ERROR==").strip())
    sums = []
    for row in csv.DictReader(lines[header:]):
        if not row["ID"].isdigit():
            continue
        if MARK in row["Kernel Name"]:
            sums.append(0)
        elif sums:
            sums[-1] += sum(int(float(row[metric].replace(",", ""))) for metric in METRICS)
    return sums
