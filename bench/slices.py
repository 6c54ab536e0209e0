#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps of a GPT on long sequences, whole and in slices: time and memory of schedules that cut a micro-batch's sequence beside 1f1b.

    bench/slices.py [--context 1024] [--width 256] [--layers 8] [--batch 4] [--actors 2] [--rounds 3] [--steps 6] [--slices 8 16 [5,4,4,3]] [--only NAME ...] [--predict]

Each round trains every row once for some steps; printed are the medians over rounds of the step's time and its ratio to 1f1b's of the same round, the bytes planned
and measured on each actor, and with --predict what the step would take by costs that are then profiled of the same configuration, in as many steps of each kind as
were measured in a round. Lengths of slices, in any unit, are for terapipe, whose planner they come from (`penstock batch slices`).
"""
import argparse
import json
import pathlib
import statistics
import tempfile

from common import WARM_UP, median_of, penstock, train


def rows_of(options):
    """By name, what the row says in [pipeline]."""
    rows = {"1f1b": 'schedule = "1f1b"', "1f1b, recomputed": 'schedule = "1f1b"\nrecompute = "inputs"'}
    if options.layers % options.actors == 0 and options.batch % options.actors == 0:
        rows["helixpipe"] = f'schedule = "helixpipe"\nchunks = {options.layers // options.actors}'
    for n in options.slices:
        for schedule in ("1f1b", "terapipe", "slimpipe") if n.isdigit() else ("terapipe",):
            rows[f"{schedule} in {n}"] = f'schedule = "{schedule}"\nslices = {n}'
    return {name: row for name, row in rows.items() if not options.only or name in options.only}


def config_of(options, row):
    return f"""[model]
name = "gpt"
layers = {options.layers}
width = {options.width}
heads = 4
context = {options.context}
[data]
validation = 0
[train]
batch = {options.batch}
steps = {options.steps}
[pipeline]
actors = {options.actors}
microbatches = {options.batch}
{row}
[run]
checkpoint_every = 0
"""


def predicted(config, folder, rounds):
    """Seconds of a step by what this machine's profile of the configuration gives."""
    costs = folder / "costs.json"
    penstock("profile", config, "--out", costs, "--rounds", rounds)
    return json.loads(penstock("simulate", config, "--costs", costs, "--json"))["step_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"context": 1024, "width": 256, "layers": 8, "batch": 4, "actors": 2, "rounds": 3, "steps": 6}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--slices", nargs="+", default=["8"])
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--predict", action="store_true")
    options = parser.parse_args()
    rows = rows_of(options)
    skipped = min(WARM_UP, options.steps // 2)
    times, peaks, losses = {name: [] for name in rows}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for number, row in enumerate(rows.values()):
            (folder / f"{number}.toml").write_text(config_of(options, row))
        for _ in range(options.rounds):
            for number, name in enumerate(rows):
                lines = train(folder, folder / f"{number}.toml", skipped=skipped)
                times[name].append(median_of(lines, "seconds"))
                peaks[name], losses[name] = lines[-1]["peak_bytes"], lines[-1]["loss"]
        first = next(iter(rows))
        print(f"| step | ms | of {first}'s | peak of each actor, MB | loss |" + (" predicted ms |" if options.predict else ""))
        for number, name in enumerate(rows):
            ratio = statistics.median(one / base for one, base in zip(times[name], times[first]))
            cells = [name, f"{1e3 * statistics.median(times[name]):.0f}", f"{ratio:.3f}", " ".join(f"{peak / 1e6:.1f}" for peak in peaks[name]), f"{losses[name]:.6f}"]
            if options.predict:
                config = folder / f"{number}.toml"
                cells.append(f"{1e3 * predicted(config, folder, options.steps - skipped):.0f}")
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
