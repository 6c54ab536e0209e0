#!/usr/bin/env python3
"""What schedules for long sequences would bring on a cluster, by published figures: the best configuration of each that fits, and the best of all.

    bench/long_contexts.py [--cluster examples/clusters/a100-64.toml] [--contexts 32768 131072 1048576] [--layers 32] [--width 4096] [--heads 32] [--batch 8]

`penstock plan --planner sequences` compiles and predicts every configuration. A row is a schedule, with its sequences whole or split over devices beside (context
parallelism), and with recomputation where that is faster or memory asks for it.
"""
import argparse
import json

from common import penstock


def planned(options, context):
    """Every configuration that can be compiled, as `plan` tells of it."""
    settings = {"layers": options.layers, "width": options.width, "heads": options.heads, "context": context, "model.vocabulary": options.vocabulary, "dtype": "bf16",
                "batch": options.batch, "microbatches": options.batch}  # fmt: skip
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    found = json.loads(penstock("plan", "gpt", "--cluster", options.cluster, "--planner", "sequences", "--json", *flags))
    return [one for one in found["configurations"] if "refused" not in one]


def words(one):
    of = {key.split(".")[1]: value for key, value in one["settings"].items()}
    parts = [f"pipe {of['actors']}"]
    if of["context"] != "1":
        parts.append(f"context {of['context']}")
    if of["slices"] != "1":
        parts.append(f"{of['slices']} slices")
    if of["recompute"] != "none":
        parts.append("recomputed")
    return ", ".join(parts)


def rows_of(found):
    """By schedule, whole or in slices: the best that fits, else the smallest."""
    families = {}
    for one in found:
        schedule, sliced = one["settings"]["schedule"], one["settings"]["slices"] != "1"
        families.setdefault(schedule + (" in slices" if sliced and schedule in ("1f1b", "zb-h1") else ""), []).append(one)
    for name, members in families.items():
        fitting = [one for one in members if one["fits"]]
        yield name, (min(fitting, key=lambda one: one["predicted_time"]) if fitting else min(members, key=lambda one: max(one["memory"])))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="examples/clusters/a100-64.toml")
    parser.add_argument("--contexts", type=int, nargs="+", default=[32768, 131072, 1048576])
    for name, value in {"layers": 32, "width": 4096, "heads": 32, "vocabulary": 32000, "batch": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    for context in options.contexts:
        found = planned(options, context)
        rows = sorted(rows_of(found), key=lambda row: (not row[1]["fits"], row[1]["predicted_time"]))
        best = rows[0][1]["predicted_time"]
        print(f"\n{context} tokens, {len(found)} configurations\n\n| schedule | configuration | step, s | of the best | idle | GB |\n|---|---|---|---|---|---|")
        for name, one in rows:
            fits = "" if one["fits"] else " (does not fit)"
            print(f"| {name} | {words(one)} | {one['predicted_time']:.2f} | {one['predicted_time'] / best:.3f} | {100 * one['bubble']:.1f} % | "
                  f"{max(one['memory']) / 1e9:.1f}{fits} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
