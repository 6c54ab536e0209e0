#!/usr/bin/env python3
"""The searched schedule beside the best generators, measured: GPT of width 256 on two actors.

    bench/searched.py [--microbatches 4 16] [--rounds 5] [--steps 12] [--limit 2.5]

The model is profiled once for one and once for two stages per actor; `penstock schedule search` finds a table for these costs under the
limit (activations per actor; 1F1B holds 2), with one stage per actor and with two, and the faster of both is raced. Of the generators 1F1B and those predicted to be
the fastest are raced. In each round every schedule runs once, in turn; printed are the medians of the rounds' medians, their ratio to 1F1B,
what was predicted, and the measured share of time in which the two actors do not compute.
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


def searched(microbatches, limit, costs, folder):
    """Name, chunks, predicted seconds and what was found, of the faster of both numbers of stages."""
    found = []
    for chunks in PROFILED:
        table = folder / f"searched-{microbatches}-{chunks}.csv"
        result = json.loads(penstock("schedule", "search", "--actors", 2, "--microbatches", microbatches, "--chunks", chunks,
                                     "--memory-limit", limit, "--costs", costs, "--out", table, "--json"))
        found.append((result["makespan"], str(table), chunks))
    makespan, table, chunks = min(found)
    return table, chunks, makespan


def generators(microbatches, limit, costs, count):
    """1F1B and the `count` fastest by prediction that keep the limit: name, chunks, predicted seconds."""
    compared = json.loads(penstock("schedule", "compare", "--actors", 2, "--microbatches", microbatches, "--chunks", 2, "--costs", costs,
                                   "--memory-limit", limit, "--json"))
    rows = {}
    for row in compared["schedules"]:
        if row.get("fits") and row["copies"] == 1 and row["title"] == row["name"]:
            rows[row["name"]] = (row["name"], row["chunks"], row["makespan"])
    best = sorted(rows.values(), key=lambda row: row[2])[:count]
    return best if rows["1f1b"] in best else [rows["1f1b"], *best]


def measure(config, schedule, chunks, steps, folder):
    lines = train(folder, config, "--schedule", schedule, "--chunks", chunks, "--steps", steps)
    return median_of(lines, "seconds"), median_of(lines, "bubble")


def race(microbatches, options, costs, folder):
    config = config_of(microbatches, folder)
    table, chunks, makespan = searched(microbatches, options.limit, costs, folder)
    racers = [*generators(microbatches, options.limit, costs, options.generators), (table, chunks, makespan)]
    times = {name: [] for name, _, _ in racers}
    for _ in range(options.rounds):
        for name, chunks, _ in racers:
            times[name].append(measure(config, name, chunks, options.steps, folder))
    predicted_base = next(makespan for name, _, makespan in racers if name == "1f1b")
    print(f"{microbatches} micro-batches, at most {options.limit:g} activations, {options.rounds} rounds")
    for name, chunks, makespan in sorted(racers, key=lambda racer: statistics.median(t[0] for t in times[racer[0]])):
        seconds = [t[0] for t in times[name]]
        median = statistics.median(seconds)
        paired = statistics.median(a / b[0] for a, b in zip(seconds, times["1f1b"]))
        title = "searched" if name == table else name
        print(f"  {title:18} {chunks} stages/actor {1e3 * median:7.1f} ms  over 1f1b {paired:.3f}, predicted {makespan / predicted_base:.3f}  "
              f"idle {100 * statistics.median(t[1] for t in times[name]):4.1f} %  spread {100 * spread_of(seconds):4.1f} %", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--microbatches", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--limit", type=float, default=2.5)
    parser.add_argument("--generators", type=int, default=4)
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
