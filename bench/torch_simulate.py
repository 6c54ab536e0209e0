#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Penstock's simulator beside torch.distributed.pipelining's own dry run (_simulate_comms_compute) on the same tables.

    ninja -C build penstock table_bench && .venv/bin/python bench/torch_simulate.py [--sizes 8x32 32x128 128x512]

Both are timed inside their process, from tables that are already there: torch's with sends and receives added, ours (table_bench) with the
index of the table, times, peaks. torch's dry run has no costs and no memory: every action, send and receive takes one step of all ranks.
"""
import argparse
import csv
import json
import pathlib
import subprocess
import time

from torch.distributed.pipelining import schedules

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Stages per actor, and the benchmark.
SCHEDULES = {"1f1b": (1, "simulate_1f1b"), "zb-h1": (1, "simulate_zero_bubble"), "interleaved-1f1b": (2, "simulate_interleaved")}


def output_of(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def read_table(schedule, actors, microbatches, chunks):
    shape = ["--actors", actors, "--microbatches", microbatches, "--chunks", chunks]
    rows = csv.reader(output_of(ROOT / "build/penstock", "schedule", schedule, *shape).splitlines())
    return {rank: [schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}


def theirs(table, actors, stages, rounds):
    """The fastest of `rounds` dry runs, in seconds."""
    times = []
    order = schedules._add_send_recv(table, lambda stage: stage % actors, stages)
    for _ in range(rounds):
        begin = time.perf_counter()
        schedules._simulate_comms_compute(order, lambda stage: stage % actors, stages)
        times.append(time.perf_counter() - begin)
    return min(times)


def ours(bench, size, rounds):
    name = f"^{bench}/{size.replace('x', '/')}$"
    report = output_of(ROOT / "build/bench/table_bench", f"--benchmark_filter={name}", f"--benchmark_repetitions={rounds}", "--benchmark_format=json")
    return min(run["real_time"] for run in json.loads(report)["benchmarks"] if run["run_type"] == "iteration") / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", default=["8x32", "32x128", "128x512"], help="actors x micro-batches, of table_bench's")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{'schedule':18}{'size':>9}{'actions':>9}{'torch, ms':>12}{'actions/s':>11}{'penstock, ms':>14}{'actions/s':>12}{'ratio':>8}")
    for schedule, (chunks, bench) in SCHEDULES.items():
        for size in options.sizes:
            actors, microbatches = map(int, size.split("x"))
            table = read_table(schedule, actors, microbatches, chunks)
            actions = sum(map(len, table.values()))
            torch_seconds, our_seconds = theirs(table, actors, actors * chunks, options.rounds), ours(bench, size, options.rounds)
            print(f"{schedule:18}{size:>9}{actions:9}{1e3 * torch_seconds:12.2f}{actions / torch_seconds:11.0f}{1e3 * our_seconds:14.3f}"
                  f"{actions / our_seconds:12.0f}{torch_seconds / our_seconds:8.0f}", flush=True)


if __name__ == "__main__":
    main()
