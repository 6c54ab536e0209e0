#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Texts with images: every batch planned by DIP beside one table for all of them, simulated and measured.

    bench/dip.py [--batches 50] [--seed 0] [--rounds 5] [--steps 12] [--no-measure]

Simulated: batches of micro-batches with 0 to 8 images each, drawn; an image takes 1 on each of 4 ranks, forward, the text as long as a mean
micro-batch's images. The best table for all batches is the best of all named schedules with all their options and of one searched for the
mean batch (`penstock batch static-modules`); each batch's own is `penstock batch modules`, as DIP has it and in two further ways.

Measured, on two actors: examples/vision.toml padded, with the shapes that are there under one table, and planned, in turn; printed are the
medians of the rounds' medians and their ratio to the first.
"""
import argparse
import json
import pathlib
import random
import statistics
import tempfile

from common import ROOT, median_of, penstock, train

RANKS, MOST = 4, 8


def solved(kind, **instance):
    return json.loads(penstock("batch", kind, json.dumps(instance), "--json"))


# DIP's own tables go over the ranks one way, with whole backwards; ours also there and back, and with split ones.
WAYS = {"DIP": {"part": 2}, "there and back": {"part": 1, "folded": True}, "and split": {"part": 1, "folded": True, "split": True}}


def simulate(options, microbatches):
    """The rows of the table for so many micro-batches."""
    generator = random.Random(options.seed)
    batches = [[generator.randint(0, MOST) for _ in range(microbatches)] for _ in range(options.batches)]
    static = solved("static-modules", actors=RANKS, backbone=MOST // 2, batches=batches)
    for way, keys in WAYS.items():
        own = [solved("modules", actors=RANKS, backbone=MOST // 2, images=images, **keys) for images in batches]
        total = sum(answer["makespan"] for answer in own)
        bound = sum(answer["lower_bound"] for answer in own)
        proven = sum(answer["proven"] for answer in own)
        print(f"| {microbatches} | {static['table']} | {static['total'] / len(batches):.1f} | {way} | {total / len(batches):.1f} "
              f"| {100 * (1 - total / static['total']):.1f} % | {100 * (total / bound - 1):.1f} % | {proven} of {len(batches)} |", flush=True)


def measure(options, folder):
    """Step times of the three ways, the median of the rounds' medians."""
    common = [ROOT / "examples/vision.toml", "--steps", options.steps, "--set", "data.validation=0", "--set", "checkpoint_every=0"]
    ways = {"padded, ZB-V": "pad", "its own shapes, ZB-V": "shapes", "its own shapes, parts and table": "dip"}
    times = {way: [] for way in ways}
    planning = []
    for _ in range(options.rounds):
        for way, planner in ways.items():
            lines = train(folder, *common, "--set", f"batch.planner={planner}")
            times[way].append(median_of(lines, "seconds"))
            if planner == "dip":
                planning.append(median_of(lines, "planning_seconds"))
    medians = {way: statistics.median(values) for way, values in times.items()}
    first = next(iter(medians.values()))
    print("\n| way | step | of the first |\n|---|---|---|")
    for way, seconds in medians.items():
        print(f"| {way} | {1e3 * seconds:.1f} ms | {seconds / first:.2f} |")
    print(f"\nPlanning and lowering: {1e3 * statistics.median(planning):.0f} ms a batch.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--no-measure", action="store_true")
    options = parser.parse_args()
    print("| micro-batches | best table for all | its mean | planned by | mean | less | above the bound | proven |\n|---|---|---|---|---|---|---|---|")
    for microbatches in (4, 6) if options.batches else ():
        simulate(options, microbatches)
    if not options.no_measure:
        with tempfile.TemporaryDirectory() as folder:
            measure(options, pathlib.Path(folder))


if __name__ == "__main__":
    main()
