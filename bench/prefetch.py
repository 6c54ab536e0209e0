#!/usr/bin/env python3
"""What looking rows up ahead brings (pipeline.prefetch): DLRM on two actors, tables and their lookups on one, dense layers on the other.

Each round runs `nestpipe` with and without in turn, plain SGD. Of a measured window it prints, per step: the period (its length over its steps, from the first
forward on), what the first actor spends on lookups, what else it computes, and what the second computes. NestPipe's claim is that the period is
max(lookups, compute).

usage: bench/prefetch.py [--batch 256] [--bag 64] [--embedding 16] [--rows 2000] [--rounds 3] ...
"""

import argparse
import json
import pathlib
import statistics
import tempfile

from common import train

KEYS = ("rows", "bag", "embedding", "branches", "layers", "width", "post")


def measured(folder, options, prefetch):
    """Seconds of one step of the window that was measured last: its period, and the actors' parts."""
    sets = [f"{key}={getattr(options, key)}" for key in KEYS] + ["model.name=dlrm", "optimiser=sgd", "momentum=0", "weight_decay=0", "clip=0"]
    sets.append(f"pipeline.prefetch={str(prefetch).lower()}")
    lines = train(folder, *(part for one in sets for part in ("--set", one)), "--schedule", "nestpipe", "--window", options.window, "--actors", 2,
                  "--microbatches", options.microbatches, "--batch", options.batch, "--steps", 3 * options.window, "--set", "validation_every=0",
                  skipped=options.window)  # fmt: skip
    timeline = json.loads((folder / "run" / "timeline.json").read_text())["penstock"]
    parts = {"lookups": 0.0, "rest": 0.0, "compute": 0.0}
    activities = timeline["activities"]
    for begin, end, device, lane, task in zip(*(activities[key] for key in ("begin", "end", "device", "lane", "task"))):
        if timeline["lanes"][lane] != "compute" or task < 0:
            continue
        first = "lookups" if timeline["tasks"][task].startswith("lookup.") else "rest"
        parts[first if device == 0 else "compute"] += end - begin
    parts = {name: seconds / options.window for name, seconds in parts.items()}
    return {"period": statistics.median(line["seconds"] for line in lines), **parts}, lines[-1]["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"rows": 2000, "bag": 64, "embedding": 16, "branches": 2, "layers": 1, "width": 256, "post": 4, "batch": 256, "microbatches": 1, "window": 8, "rounds": 3}
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    found = {False: [], True: []}
    losses = set()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for prefetch in found:
                seconds, loss = measured(pathlib.Path(folder), options, prefetch)
                found[prefetch].append(seconds)
                losses.add(loss)
    print("| lookups | period, ms | lookups ahead | other work of actor 0 | compute | period over max(lookups, compute) |")
    for prefetch, rounds in found.items():
        period, lookups, rest, compute = (statistics.median(one[key] for one in rounds) for key in ("period", "lookups", "rest", "compute"))
        cells = ["ahead" if prefetch else "when read", *(f"{1e3 * seconds:.1f}" for seconds in (period, lookups, rest, compute))]
        print("| " + " | ".join([*cells, f"{period / max(lookups, compute):.3f}"]) + " |", flush=True)
    print("the losses are the same" if len(losses) == 1 else f"THE LOSSES DIFFER: {losses}")


if __name__ == "__main__":
    main()
