#!/usr/bin/env python3
# bench/numpy_matmul.py [--records FILE]
# What numpy's matmul reaches on this machine, for products of the shapes dense attention is made of and
# for one large square: the yardstick beside the FMA peak. With --records, says it beside the peak
# and the dense times of that run and appends its own records.
import argparse
import json
import os
import statistics
import time

# (name, m, k, n): scores = q k^T and out = p v of one head of 2,048 tokens, head_dim 128.
SHAPES = [("scores 2048 x 128 x 2048", 2048, 128, 2048),
          ("output 2048 x 2048 x 128", 2048, 2048, 128),
          ("square 2048 x 2048 x 2048", 2048, 2048, 2048)]


def measure(numpy, clock, m, k, n, budget_s=0.5, most_s=5):
    generator = numpy.random.default_rng(1)
    a = generator.standard_normal((m, k), dtype=numpy.float32)
    b = generator.standard_normal((k, n), dtype=numpy.float32)
    out = numpy.empty((m, n), dtype=numpy.float32)
    numpy.matmul(a, b, out=out)
    # Nothing is timed without a check: one entry against fp64.
    exact = a[-1].astype(numpy.float64) @ b[:, -1].astype(numpy.float64)
    if abs(out[-1, -1] - exact) > 1e-4 * k**0.5:
        raise SystemExit("numpy's matmul gives a wrong product")
    samples, begin, spent = [], time.perf_counter(), 0
    while not samples or (spent < most_s and len(samples) < 200 and
                          (spent < budget_s or len(samples) < 5)):
        start = clock()
        numpy.matmul(a, b, out=out)
        samples.append((clock() - start) * 1e3)
        spent = time.perf_counter() - begin
    samples.sort()
    return {"median": statistics.median(samples), "p10": samples[len(samples) // 10],
            "p90": samples[len(samples) * 9 // 10], "min": samples[0], "runs": len(samples)}


def main():
    parser = argparse.ArgumentParser(description="Times numpy's matmul.")
    parser.add_argument("--records", help="records of `keyhole bench` of the same run")
    arguments = parser.parse_args()
    records = []
    if arguments.records:
        with open(arguments.records) as file:
            records = [json.loads(line) for line in file if line.strip()]
    records = [r for r in records if "gpu" not in r.get("machine", {})]  # numpy has no part in those
    with_peak = next((r for r in records if "peak_gflops" in r), None)
    peak = with_peak["peak_gflops"] if with_peak else None

    # The same clock and number of threads as the records; numpy reads the latter when it is loaded.
    is_cpu_time = with_peak is not None and with_peak["clock"] == "cpu"
    if with_peak:
        for library in ("OPENBLAS", "OMP", "MKL"):
            os.environ[f"{library}_NUM_THREADS"] = str(with_peak["threads"])
    import numpy

    clock = time.process_time if is_cpu_time else time.perf_counter

    print(f"\nnumpy {numpy.__version__} matmul, fp32" +
          (f", FMA peak {peak:.0f} GFLOP/s" if peak else ""))
    lines = []
    for name, m, k, n in SHAPES:
        ms = measure(numpy, clock, m, k, n)
        gflops = 2 * m * k * n / (ms["median"] * 1e6)
        share = f"   {100 * gflops / peak:5.1f}% of peak" if peak else ""
        print(f"{name:27}{ms['median']:9.3f} ms {gflops:8.1f} GFLOP/s{share}")
        record = {"suite": "numpy", "case": name, "check": "ok", "ms": ms, "gflops": gflops,
                  "numpy": numpy.__version__}
        if with_peak:
            record |= {key: with_peak[key] for key in ("machine", "commit", "dirty", "threads", "clock")}
            record |= {"peak_gflops": peak, "of_peak": gflops / peak,
                       "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        lines.append(json.dumps(record))
    for record in records:
        if record["suite"] in ("forward", "backward") and record["case"] == "dense-2k":
            print(f"keyhole dense {record['suite']:13}{record['ms']['median']:9.3f} ms "
                  f"{record['gflops']:8.1f} GFLOP/s   {100 * record['of_peak']:5.1f}% of peak")
    if arguments.records:
        with open(arguments.records, "a") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
