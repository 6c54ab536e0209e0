#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The searched schedule beside the best generators, measured: GPT of width 256 on two actors.

    bench/searched.py [--microbatches 4 16] [--rounds 5] [--steps 12] [--limit 2.5] [--candidates 6] [--search-rounds 5]

The model is profiled once for one and once for two stages per actor. `penstock schedule search --measure` finds tables for these costs
under the limit (activations per actor; 1F1B holds 2), races the best of them and the best generators in one process, and takes the fastest.
That one is raced again here, in runs of its own, against 1F1B and the generators that are predicted to be the fastest with one stage per
actor and with two. In each round every schedule runs once, in turn; printed are the medians of the rounds' medians, their ratio to 1F1B,
what was predicted, and the measured share of time in which the two actors do not compute; then how the search's own race ended.
"""
import argparse
import json
import pathlib
import statistics
import tempfile

from common import ROOT, median_of, penstock, spread_of, train

PROFILED = {1: "1f1b", 2: "interleaved-zb"}  # by stages per actor


def config_of(microbatches, folder):
    """Two sequences in each micro-batch, so that tasks cost the same for any number of them."""
    file = folder / f"gpt-{microbatches}.toml"
    file.write_text(f'[model]\nname = "gpt"\nlayers = 8\nwidth = 256\nheads = 4\ncontext = 128\n'
                    f'[data]\ntext = ["{ROOT / "src"}"]\nvalidation = 0\n[train]\nbatch = {2 * microbatches}\nvalidation_every = 0\n'
                    f'[pipeline]\nactors = 2\nmicrobatches = {microbatches}\n[run]\ncheckpoint_every = 0\n')
    return file


def searched(config, microbatches, options, costs, folder):
    """The JSON of the search and its race, and the file of the table."""
    table = folder / f"searched-{microbatches}.csv"
    found = json.loads(penstock("schedule", "search", "--actors", 2, "--microbatches", microbatches, "--memory-limit", options.limit,
                                "--costs", costs, "--measure", config, "--candidates", options.candidates, "--rounds",
                                options.search_rounds, "--out", table, "--json"))
    return found, str(table)


def generators(microbatches, options, costs):
    """1F1B and, for each number of stages per actor, the fastest that keep the limit and are predicted to be faster: name, chunks, predicted
    seconds."""
    racers = []
    for chunks in PROFILED:
        compared = json.loads(penstock("schedule", "compare", "--actors", 2, "--microbatches", microbatches, "--chunks", chunks, "--costs",
                                       costs, "--memory-limit", options.limit, "--json"))
        best = {}  # by predicted seconds: equal times are mostly equal tables
        for row in compared["schedules"]:
            if not row.get("fits") or row["copies"] > 1 or row["title"] != row["name"]:
                continue
            if row["name"] == "1f1b" and chunks == 1:
                racers.insert(0, (row["name"], 1, row["makespan"]))
            elif row["chunks"] == chunks:
                best.setdefault(row["makespan"], (row["name"], chunks, row["makespan"]))
        racers += [best[makespan] for makespan in sorted(best) if makespan < racers[0][2]][:options.generators]
    return racers


def measure(config, schedule, chunks, steps, folder):
    lines = train(folder, config, "--schedule", schedule, "--chunks", chunks, "--steps", steps)
    return median_of(lines, "seconds"), median_of(lines, "bubble")


def race(microbatches, options, costs, folder):
    config = config_of(microbatches, folder)
    found, table = searched(config, microbatches, options, costs, folder)
    racers = [*generators(microbatches, options, costs), (table, found["stages"] // 2, found["makespan"])]
    times = {racer: [] for racer in racers}
    for _ in range(options.rounds):
        for name, chunks, makespan in racers:
            times[name, chunks, makespan].append(measure(config, name, chunks, options.steps, folder))
    base = racers[0]
    print(f"{microbatches} micro-batches, at most {options.limit:g} activations, {options.rounds} rounds")
    for racer in sorted(racers, key=lambda racer: statistics.median(t[0] for t in times[racer])):
        name, chunks, makespan = racer
        seconds = [t[0] for t in times[racer]]
        median = statistics.median(seconds)
        paired = statistics.median(a / b[0] for a, b in zip(seconds, times[base]))
        title = "searched" if name == table else name
        print(f"  {title:18} {chunks} stages/actor {1e3 * median:7.1f} ms  over 1f1b {paired:.3f}, predicted {makespan / base[2]:.3f}  "
              f"idle {100 * statistics.median(t[1] for t in times[racer]):4.1f} %  spread {100 * spread_of(seconds):4.1f} %", flush=True)
    print(f"  the search took: {found['found_by']}. Its race:")
    for racer in found["race"]:
        if "measured" in racer:
            print(f"    {racer['name']:50} {racer['chunks']} stages/actor, predicted {1e3 * racer['predicted']:7.1f} ms, "
                  f"measured {1e3 * racer['measured']:7.1f} ms in {racer['rounds']} rounds", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--microbatches", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--limit", type=float, default=2.5)
    parser.add_argument("--generators", type=int, default=3, help="for each number of stages per actor")
    parser.add_argument("--candidates", type=int, default=6, help="of the search's race")
    parser.add_argument("--search-rounds", type=int, default=5, help="of the search's race")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        costs = folder / "costs.json"
        for chunks, schedule in PROFILED.items():
            penstock("profile", config_of(16, folder), "--schedule", schedule, "--chunks", chunks, "--rounds", 6, "--out", costs)
        for microbatches in options.microbatches:
            race(microbatches, options, costs, folder)


if __name__ == "__main__":
    main()
