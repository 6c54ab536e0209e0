#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether `penstock plan --planner best` keeps its time, and whether another planner finds a faster plan in as much time.

    bench/best.py [--problems 20] [--seed 1] [--seconds 3] [--most-nodes 5000] [--most-devices 1000] [--others]

Each problem is a random graph (series of chains and branches, sizes drawn by their logarithm) on a uniform cluster, some with a memory limit. Printed
per problem: nodes, devices, the process's seconds beyond the limit, and with --others the largest ratio of best's predicted step to another planner's,
with that planner's name (inf where best finds none and another does). Fails where best takes more than a fifth of its time, or a second, too long, or where a ratio is above 1.
"""
import argparse
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PENSTOCK = str(ROOT / "build/penstock")
OTHERS = ["graphpipe", "pipedream", "piper", "max-load", "dapple", "spp", "bapipe", "dawnpiper", "exact"]


def between(generator, low, high):
    return round(math.exp(generator.uniform(math.log(low), math.log(high))))


def graph(generator, nodes):
    """Chains that join and fork: each node follows the one before it, or begins a branch that joins a few nodes later."""
    drawn, edges = [], []
    for node in range(nodes):
        forward = generator.uniform(0.2, 2) * 1e-3
        drawn.append({"name": f"n{node}", "output_bytes": between(generator, 1 << 12, 1 << 22),
                      "costs": [{"forward": forward, "backward": 2 * forward, "live_bytes": between(generator, 1 << 14, 1 << 24),
                                 "resident_bytes": 4 << 20, "parameter_bytes": 1 << 20}]})  # fmt: skip
        if node:
            edges.append([node - 1 if generator.random() < 0.8 else max(0, node - generator.randint(2, 6)), node])
    return {"penstock": "graph 1", "name": "drawn", "samples": 64, "nodes": drawn,
            "edges": [{"from": a, "to": b, "bytes": drawn[a]["output_bytes"]} for a, b in edges]}


def plan(arguments, planner, seconds):
    begin = time.monotonic()
    command = [PENSTOCK, "plan", *arguments, "--planner", planner, "--seconds", str(seconds), "--json"]
    done = subprocess.run([str(a) for a in command], capture_output=True, text=True)
    taken = time.monotonic() - begin
    if done.returncode and not done.stderr.startswith("error: "):
        sys.exit(f"{command[0]} does not run: {done.stderr}")
    return (json.loads(done.stdout) if done.returncode == 0 else None), taken, done.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--most-nodes", type=int, default=5000)
    parser.add_argument("--most-devices", type=int, default=1000)
    parser.add_argument("--others", action="store_true")
    options = parser.parse_args()
    generator = random.Random(options.seed)
    late = behind = 0
    print(f"seed {options.seed}, {options.seconds} s\n{'nodes':>6} {'devices':>8} {'late by':>8}  worst ratio to another planner")
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.problems):
            nodes, devices = between(generator, 10, options.most_nodes), between(generator, 2, options.most_devices)
            file = pathlib.Path(folder) / "graph.json"
            file.write_text(json.dumps(graph(generator, nodes)))
            arguments = [file, "--devices", devices, "--bandwidth", 1e10, "--batch", 256, "--microbatch-sizes", "64"]
            if generator.random() < 0.3:
                arguments += ["--memory-limit", between(generator, 1 << 28, 1 << 34)]
            best, taken, error = plan(arguments, "best", options.seconds)
            beyond = taken - options.seconds
            late += beyond > max(1, 0.2 * options.seconds)
            worst = (0, "")
            for other in OTHERS if options.others else []:
                found, _, _ = plan(arguments, other, options.seconds)
                if found:
                    worst = max(worst, (best["predicted_time"] / found["predicted_time"] if best else math.inf, other))
            behind += worst[0] > 1 + 1e-9
            print(f"{nodes:6} {devices:8} {beyond:8.2f}  " + (f"{worst[0]:.4f} {worst[1]}" if best or worst[1] else error.splitlines()[0]), flush=True)
    print(f"{late} of {options.problems} late, {behind} behind another planner")
    sys.exit(1 if late or behind else 0)


if __name__ == "__main__":
    main()
