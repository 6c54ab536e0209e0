#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time that looking rows up ahead saves (pipeline.prefetch): DLRM on two actors, the table and its lookups on one, the dense layers on the other.

Each round measures in turn: both actors' work alone (`1f1b` of one micro-batch, in which one waits for the other), `nestpipe` with rows looked up when they are
read, `1f1b`, whose backwards are not split, with rows looked up ahead, and `nestpipe` with rows looked up ahead; plain SGD, and a table of which a step reads a
part. It prints, per step: each actor's work alone, the periods (a window's length over its steps, with its first data and last update, which nothing hides), and
the periods over the larger work. NestPipe's claim is that this is 1.

usage: bench/prefetch.py [--batch 256] [--bag 128] [--embedding 16] [--rows 100000] [--rounds 5] ...
"""

import argparse
import json
import pathlib
import statistics
import tempfile

from common import train

TABLES = (("nestpipe", "false"), ("1f1b", "true"), ("nestpipe", "true"))  # and pipeline.prefetch
KEYS = ("rows", "bag", "embedding", "branches", "layers", "width", "post")


def run(folder, options, *table):
    """The measured lines of a run by this table."""
    sets = [f"{key}={getattr(options, key)}" for key in KEYS] + ["model.name=dlrm", "optimiser=sgd", "momentum=0", "weight_decay=0", "clip=0", "validation_every=0"]
    return train(folder, *(part for one in sets for part in ("--set", one)), *table, "--actors", 2, "--microbatches", options.microbatches,
                 "--batch", options.batch, "--steps", 4 * options.window, skipped=options.window)  # fmt: skip


def work_in(folder):
    """Seconds that each actor computed in the step that was measured last."""
    timeline = json.loads((folder / "run" / "timeline.json").read_text())["penstock"]
    activities = timeline["activities"]
    work = [0.0, 0.0]
    for begin, end, device, lane, task in zip(*(activities[key] for key in ("begin", "end", "device", "lane", "task"))):
        if timeline["lanes"][lane] == "compute" and task >= 0:
            work[device] += end - begin
    return work


def measured(folder, options):
    """One round: each actor's work alone, and the period of each of TABLES; and the last losses of these."""
    run(folder, options, "--schedule", "1f1b")
    alone = work_in(folder)
    periods, losses = [], set()
    for schedule, prefetch in TABLES:
        lines = run(folder, options, "--schedule", schedule, "--window", options.window, "--set", f"pipeline.prefetch={prefetch}")
        periods.append(statistics.median(line["seconds"] for line in lines))
        losses.add(lines[-1]["loss"])
    return [*alone, *periods], losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"rows": 100000, "bag": 128, "embedding": 16, "branches": 1, "layers": 1, "width": 512, "post": 4, "batch": 256, "microbatches": 1, "window": 32, "rounds": 5}
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    rounds, losses = [], set()
    print("| round | actor 0 alone, ms | actor 1 alone, ms | period, looked up when read | ahead, 1f1b | ahead | over the larger: when read | ahead, 1f1b | ahead |")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            seconds, last = measured(pathlib.Path(folder), options)
            rounds.append(seconds)
            losses |= last
            show(number + 1, seconds)
    show("median", [statistics.median(column) for column in zip(*rounds)])
    print("the losses are the same" if len(losses) == 1 else f"THE LOSSES DIFFER: {losses}")


def show(name, seconds):
    ratios = (period / max(seconds[:2]) for period in seconds[2:])
    print("| " + " | ".join([str(name), *(f"{1e3 * one:.1f}" for one in seconds), *(f"{one:.3f}" for one in ratios)]) + " |", flush=True)


if __name__ == "__main__":
    main()
