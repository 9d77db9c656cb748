# bench/peers/dram.py
# A command in, the DRAM bytes of its profiled range out, by NVIDIA's ncu.
import csv
import shutil
import subprocess

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")


class NotMeasured(Exception):
    """The text says why."""


def bytes_of(command):
    """Read and written, summed over the kernels between the profiler's marks. What a kernel leaves in the second-level
    cache is not in it."""
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
    return sum_metrics(done.stdout + done.stderr)


def sum_metrics(text):
    """A table of CSV among other lines: names, units, then one line a kernel."""
    lines = text.splitlines()
    header = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if header is None:
        complaint = next((line for line in lines if line.startswith("==ERROR==")), "ncu profiled no kernel")
        raise NotMeasured(complaint.removeprefix("==ERROR==").strip())
    kernels = [row for row in csv.DictReader(lines[header:]) if row["ID"].isdigit()]
    return sum(int(float(row[metric].replace(",", ""))) for row in kernels for metric in METRICS)
