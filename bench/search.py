#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How near to the best `penstock schedule search` comes, and how long it takes.

    bench/search.py [--instances 30] [--seed 2024] [--seconds 10] [--only random|large]

Random instances: 2 to 8 actors, 2 to 16 micro-batches, stages of half to one and a half times the mean, F:I:W between 1:1:1 and 1:1.6:0.4, latency 0
to 1, a memory limit from one micro-batch to none; all in sixteenths. Then 16 actors with 64 micro-batches under several limits. Printed per
instance: the makespan of the best registered schedule within the limit, the searched table's, the proven lower bound, the gap between the two,
whether the table is proven to be the fastest, and seconds. Fails if a limit is exceeded or a generator is faster.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from common import PENSTOCK, costs_file


def draw(generator, folder):
    actors, microbatches = generator.randint(2, 8), generator.randint(2, 16)
    skew, latency = generator.randint(0, 9) / 16, generator.randint(0, 16) / 16
    sizes = [generator.randint(8, 24) / 16 for _ in range(actors)]
    limit = generator.randint(1, microbatches + 1)
    file = folder / "costs.json"
    costs_file([(size, size * (1 + skew), size * (1 - skew)) for size in sizes], file)
    name = f"{actors} x {microbatches}, I:W {1 + skew:g}:{1 - skew:g}, latency {latency:g}"
    return name, actors, microbatches, limit if limit <= microbatches else None, ["--costs", str(file), "--latency", str(latency)]


def search(actors, microbatches, limit, more):
    arguments = [PENSTOCK, "schedule", "search", "--actors", str(actors), "--microbatches", str(microbatches), *more, "--json"]
    begin = time.monotonic()
    done = subprocess.run([*arguments, *(["--memory-limit", str(limit)] if limit else [])], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}\n{done.stderr}")
    found = json.loads(done.stdout)
    best = found["generator"]["makespan"] if found["generator"] else float("inf")
    if limit and max(found["peak_live"]) > limit * (1 + 1e-9) or found["makespan"] > best * (1 + 1e-9):
        sys.exit(f"{' '.join(arguments)}: the limit is exceeded or {found['generator']} is faster")
    return best, found, time.monotonic() - begin


def print_table(instances, seconds):
    print("| instance | limit | best generator | found | bound | gap | proven | seconds |\n|---|---|---|---|---|---|---|---|")
    rows = []
    for name, actors, microbatches, limit, more in instances:
        best, found, took = search(actors, microbatches, limit, [*more, "--seconds", str(seconds)])
        rows.append((best / found["makespan"] - 1, found["gap"], found["optimal"], took))
        print(f"| {name} | {limit or 'none'} | {best:.4g} | {found['makespan']:.4g} | {found['lower_bound']:.4g} | {100 * found['gap']:.2f} % "
              f"| {'yes' if found['optimal'] else ''} | {took:.2f} |", flush=True)
    gains, gaps, proven, times = zip(*rows)
    gained = [gain for gain in gains if gain < float("inf")]
    print(f"\n{len(rows)} instances, {sum(proven)} proven; gap: median {100 * statistics.median(gaps):.2f} %, largest {100 * max(gaps):.2f} %; "
          f"best generator slower by: median {100 * statistics.median(gained):.1f} %, most {100 * max(gained):.1f} %; "
          f"seconds: median {statistics.median(times):.2f}, most {max(times):.2f}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=30)
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--seconds", type=float, default=10, help="of one search")
    parser.add_argument("--only", choices=["random", "large"])
    options = parser.parse_args()
    generator = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        if options.only != "large":
            # Drawn one after the other: each search reads the file before the next is written.
            print_table((draw(generator, pathlib.Path(folder)) for _ in range(options.instances)), options.seconds)
        if options.only != "random":
            print_table([(f"16 x 64, latency {latency}", 16, 64, limit, ["--input", "1.3", "--weight", "0.7", "--latency", str(latency)])
                         for latency in (0, 0.5) for limit in (8, 16, 24, 32, None)], options.seconds)


if __name__ == "__main__":
    main()
