#!/usr/bin/env python3
"""Penstock's simulator beside torch.distributed.pipelining's own dry run (_simulate_comms_compute) on the same CSV tables.

    .venv/bin/python bench/torch_simulate.py [--penstock build/penstock] [--sizes 32x128 128x512]

torch's dry run has no costs: every action, send and receive takes one step of all ranks. It is timed from tables that it has already read
and completed with sends and receives. Penstock is timed as a whole process: start, reading the file, validity, simulation with latency and
its lower bounds, and the answer as JSON. What its start alone takes is in the first line.
"""
import argparse
import csv
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

from torch.distributed.pipelining import schedules

SCHEDULES = {"1f1b": 1, "zb-h1": 1, "interleaved-1f1b": 2}


def clock(work, rounds):
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times), result


def read_table(file):
    rows = csv.reader(file.read_text().splitlines())
    return {rank: [schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}


def dry_run(file, actors, stages, rounds):
    """Median seconds, and the steps that it counts."""
    order = schedules._add_send_recv(read_table(file), lambda stage: stage % actors, stages)
    seconds, result = clock(lambda: schedules._simulate_comms_compute(order, lambda stage: stage % actors, stages), rounds)
    return seconds, max(len(row) for row in result.values())


def ours(program, file, rounds):
    command = [str(program), "simulate", str(file), "--latency", "0.1", "--json"]
    return clock(lambda: json.loads(subprocess.run(command, check=True, capture_output=True).stdout), rounds)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", type=pathlib.Path, default=root / "build/penstock")
    parser.add_argument("--sizes", nargs="*", default=["32x128", "128x512"], help="actors x micro-batches")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        file = pathlib.Path(name) / "table.csv"
        file.write_text("0F0,0B0\n")
        start, _ = ours(options.penstock, file, 5)
        print(f"penstock on a table of two actions: {1e3 * start:.0f} ms")
        print(f"{'schedule':18}{'size':>9}{'actions':>9}{'torch, s':>10}{'actions/s':>11}{'penstock, s':>13}{'actions/s':>11}{'ratio':>8}")
        for schedule, chunks in SCHEDULES.items():
            for size in options.sizes:
                actors, microbatches = map(int, size.split("x"))
                shape = ["--actors", str(actors), "--microbatches", str(microbatches), "--chunks", str(chunks)]
                table = subprocess.run([str(options.penstock), "schedule", schedule, *shape], check=True, capture_output=True, text=True)
                file.write_text(table.stdout)
                actions = sum(len(row) for row in read_table(file).values())
                theirs, _ = dry_run(file, actors, actors * chunks, options.rounds)
                whole, _ = ours(options.penstock, file, options.rounds)
                print(f"{schedule:18}{size:>9}{actions:9}{theirs:10.3f}{actions / theirs:11.0f}{whole:13.3f}{actions / whole:11.0f}"
                      f"{theirs / whole:8.1f}", flush=True)


if __name__ == "__main__":
    main()
