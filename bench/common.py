# SPDX-License-Identifier: Apache-2.0
"""Benchmarks that run the program share these helpers."""
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PENSTOCK = os.environ.get("PENSTOCK", str(ROOT / "build/penstock"))
WARM_UP = 3  # steps of a run that are not counted
BOUND = {"threads": 0.03, "gloo": 0.05}  # how far a prediction may be off


def penstock(*arguments, processes=1):
    """Standard output of `penstock ARGUMENTS`, over several processes by `penstock launch`. Ends the benchmark if it fails."""
    command = [str(argument) for argument in arguments]
    launch = ["launch", "-n", str(processes), "--"] if processes > 1 else []
    done = subprocess.run([PENSTOCK, *launch, *command], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.exit(f"penstock {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def costs_file(stages, file):
    """Writes what `penstock profile` would of stages that take (F, I, W) seconds; returns the file."""
    tasks = []
    for stage, (forward, input_, weight) in enumerate(stages):
        for kind, seconds in (("F", forward), ("B", input_ + weight), ("I", input_), ("W", weight)):
            sample = {"median": seconds, "spread": 0, "count": 1, "mean": seconds}
            tasks.append({"hash": f"0x{len(tasks) + 1:016x}", "name": f"{kind}{stage}", "kind": kind, "stage": stage, "stages": len(stages),
                          "kernel_bytes": 0, "busy": sample, "beside": {}})
    file.write_text(json.dumps({
        "penstock": "costs 1", "machine": {"processor": "", "cores": 0, "memory_bytes": 0, "build": ""}, "model": "drawn", "tasks": tasks,
        "links": {}, "step_overhead": {}, "input_seconds": {}, "copy_bandwidth": 0}))
    return file


def train(folder, *arguments, processes=1, skipped=WARM_UP):
    """The lines of metrics.jsonl of `penstock train ARGUMENTS`, without the first `skipped` steps."""
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    penstock("train", *arguments, "--out", out, processes=processes)
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()][skipped:]


def median_of(lines, key):
    return statistics.median(line[key] for line in lines)


def spread_of(values):
    """Largest minus smallest, over the median."""
    return (max(values) - min(values)) / statistics.median(values)


def within_bounds(error, spread, backend="threads"):
    return abs(error) <= max(BOUND[backend], 2 * spread)
