#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ZeroPP (2402.03791) beside 1F1B, interleaved and breadth-first schedules with sharded parameters, simulated.

    bench/zeropp.py [--cluster examples/clusters/a100-64.toml] [--microbatches 8,16,32,64] [--models 6.2,14.6,28.3,63.6]

GPT of 6 to 64 billion parameters on 8 hosts of 8 GPUs: a stage's group is a host, micro-batches have one sequence of 2048 tokens, states are
mixed precision's 2 + 2 + 12 bytes a parameter, times the roofline's of an A100. Printed per model and number of micro-batches: each
schedule in its fastest number of chunks, whatever it holds, and the fastest of each that fits into 80 GB. Then the paper's claims.
"""
import argparse
import json
import pathlib

from common import ROOT, penstock

MODELS = {"6.2": (30, 4096, 32), "14.6": (46, 5120, 40), "28.3": (62, 6144, 48), "63.6": (78, 8192, 64)}  # layers, width, heads
STATES = "2+2+12"
GIB = 2**30
MEMORY = 80e9
CHUNKS = (1, 2, 4, 8, 16)

# Name, schedule, ZeRO level, gathered block by block.
FAMILIES = [
    ("1F1B, ZeRO-1", "1f1b", 1, False),
    ("1F1B + FSDP, by layer", "1f1b", 3, True),
    ("1F1B + FSDP, by stage", "1f1b", 3, False),
    ("interleaved, ZeRO-1", "interleaved-1f1b", 1, False),
    ("interleaved + FSDP", "interleaved-1f1b", 3, False),
    ("breadth-first + FSDP", "breadth-first", 3, False),
    ("ZeroPP", "zeropp", 3, False),
]


def alternatives(model, microbatches, cluster):
    """All degrees of 8 stages' groups, each a node."""
    layers, width, heads = MODELS[model]
    settings = {"layers": layers, "width": width, "heads": heads, "context": 2048, "vocabulary": 50304, "tied": 0}
    sets = [word for key, value in settings.items() for word in ("--set", f"model.{key}={value}")]
    found = json.loads(penstock(
        "plan", "gpt", *sets, "--set", "train.dtype=bf16", "--batch", 8 * microbatches, "--microbatch-sizes", 1, "--states", STATES,
        "--cluster", cluster, "--device", "a100-80", "--memory", 1e15, "--planner", "degrees", "--only", "pipe=8,data=8,tensor=1,context=1,order=pipe/data", "--every",
        "--explain", "--json"))  # fmt: skip
    return found["alternatives"]


def choose(rows, family, unit=None, fitting=False):
    """The fastest of a family: without recomputation, or any that fits. None: there is none."""
    _, schedule, zero, by_block = family
    wanted = [row for row in rows if (row["schedule"], row["zero"], row["by_block"]) == (schedule, zero, by_block) and row["chunks"] in CHUNKS]
    if unit is not None:
        wanted = [row for row in wanted if row["unit"] == unit]
    wanted = [row for row in wanted if (row["memory"] <= MEMORY if fitting else not row["recompute"])]
    return min(wanted, key=lambda row: row["predicted_time"], default=None)


def line(name, row, fitting):
    def share(key):
        return f"{100 * row[key] / row['predicted_time']:.1f} %"

    def cell(what):
        return f"{what['predicted_time']:.2f} s, {what['memory'] / GIB:.0f} GiB{', recompute' if what['recompute'] else ''}" if what else "none"

    return (f"| {name} | {row['chunks']} | {row['predicted_time']:.2f} s | {share('bubble')} | {share('exposed')} "
            f"| {row['memory'] / GIB:.1f} GiB | {cell(fitting)} |")


def print_table(model, microbatches, rows):
    print(f"\n{model} billion parameters, {microbatches} micro-batches:\n\n"
          "| schedule | chunks | step | bubble | exposed | memory | fastest in 80 GB |\n|---|---|---|---|---|---|---|")
    for family in FAMILIES:
        if family[0] != "ZeroPP":
            print(line(family[0], choose(rows, family), choose(rows, family, fitting=True)))
            continue
        for unit in sorted({row["unit"] for row in rows if row["unit"]}):
            print(line(f"ZeroPP, U = {unit}", choose(rows, family, unit), choose(rows, family, unit, fitting=True)))


def claims(model, microbatches, rows):
    """ZeroPP's throughput over the others', and its memory beside theirs; then among what fits."""
    family = {family[0]: family for family in FAMILIES}
    cells = [model, str(microbatches)]
    for fitting in (False, True):
        best = choose(rows, family["ZeroPP"], fitting=fitting)
        for name in ("breadth-first + FSDP", "1F1B + FSDP, by layer", "1F1B + FSDP, by stage"):
            other = choose(rows, family[name], fitting=fitting)
            if not best or not other:
                cells.append("none")
                continue
            faster, memory = other["predicted_time"] / best["predicted_time"] - 1, best["memory"] / other["memory"] - 1
            cells.append(f"{100 * faster:+.0f} %, {100 * memory:+.0f} %")
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", type=pathlib.Path, default=ROOT / "examples/clusters/a100-64.toml")
    parser.add_argument("--microbatches", default="8,16,32,64")
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()
    lines = []
    for model in options.models.split(","):
        for microbatches in map(int, options.microbatches.split(",")):
            rows = alternatives(model, microbatches, options.cluster)
            print_table(model, microbatches, rows)
            lines.append(claims(model, microbatches, rows))
    print("\nThroughput and memory of ZeroPP (its fastest unit) beside each; then of what fits into 80 GB, recomputing where that is faster:\n\n"
          "| billion parameters | micro-batches | breadth-first | 1F1B by layer | 1F1B by stage | breadth-first, fitting | 1F1B by layer, fitting "
          "| 1F1B by stage, fitting |\n|---|---|---|---|---|---|---|---|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
