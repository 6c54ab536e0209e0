#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two actors of which one is held back: equal stages beside those that planners balance for it, predicted and measured; docs/asynchronous.md.

    bench/unequal.py [--factor 2] [--rounds 3] [--steps 12]

Plans are measured and predicted on the held-back cluster itself (penstock plan --cluster local). Each round runs all of them in turn; medians,
and over equal stages.
"""
import argparse
import json
import pathlib
import statistics
import tempfile

import common

MODEL = [word for pair in ("layers=8", "width=128", "tied=0", "checkpoint_every=0", "validation_every=0") for word in ("--set", pair)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factor", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    config, held_back = common.ROOT / "examples/gpt.toml", f"1={options.factor:g}"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        costs = folder / "costs.json"
        common.penstock("profile", config, *MODEL, "--straggler", held_back, "--out", costs)
        equal = json.loads(common.penstock("simulate", config, *MODEL, "--costs", costs, "--json"))
        ways, predicted, cuts = {"equal stages": []}, {"equal stages": equal["step_seconds"]}, {"equal stages": ""}
        for planner in ("hetpipe", "best"):
            file = folder / f"{planner}.json"
            common.penstock("plan", config, *MODEL, "--set", f"straggler={held_back}", "--cluster", "local", "--planner", planner, "--microbatch-sizes", 4,
                            "--candidates", 1, "--out", file)  # fmt: skip
            plan = json.loads(file.read_text())
            ways[planner], predicted[planner] = ["--plan", file], plan["predicted_time"]
            cuts[planner] = ", ".join(str(len(stage["nodes"])) for stage in plan["stages"])
        seconds = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way, arguments in ways.items():
                lines = common.train(folder, config, *MODEL, "--steps", options.steps, "--straggler", held_back, *arguments)
                seconds[way].append(common.median_of(lines, "seconds"))
        print(f"| actor 1 takes {options.factor:g} times as long | nodes of stages | predicted | measured | of equal stages |\n|---|---|---|---|---|")
        for way, measured in seconds.items():
            share = statistics.median(a / b for a, b in zip(measured, seconds["equal stages"]))
            print(f"| {way} | {cuts[way]} | {1e3 * predicted[way]:.0f} ms | {1e3 * statistics.median(measured):.0f} ms | {share:.2f} |")


if __name__ == "__main__":
    main()
