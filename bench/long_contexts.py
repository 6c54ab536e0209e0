#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicts what schedules for long sequences would bring on a cluster, by published figures: the best configuration of each that fits, and the best of all.

    bench/long_contexts.py [--cluster examples/clusters/a100-64.toml] [--contexts 32768 131072 1048576] [--layers 32] [--width 4096] [--heads 32] [--batch 8]
                           [--positions rotary]
                           [--only pipeline.context=8,slices=1,slices=8] [--out FILE.json]

`penstock plan --planner sequences` compiles and predicts every configuration (bench/long_documents.py is about documents of different lengths). A row
is a schedule, with its sequences whole or split over devices beside (context parallelism), and with recomputation where memory asks for it: the
fastest that fits, else the smallest. MFU counts the model's products once: 6 a parameter and token, and half of attention's squares. `--out` keeps
every configuration.
"""
import argparse
import json
import pathlib

from common import penstock

PEAK = 312e12  # of an A100 in bf16


def planned(options, context):
    """Every configuration that can be compiled, as `plan` tells of it, the fastest that fits first."""
    settings = {"layers": options.layers, "width": options.width, "heads": options.heads, "context": context, "positions": options.positions, "model.vocabulary": options.vocabulary, "tied": 0,
                "dtype": "bf16", "batch": options.batch, "microbatches": options.batch}  # fmt: skip
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    flags += ["--only", options.only] if options.only else []
    found = json.loads(penstock("plan", "gpt", "--cluster", options.cluster, "--planner", "sequences", "--json", *flags))
    return [one for one in found["configurations"] if "refused" not in one]


def products(options, context):
    """The floating-point operations of a step's products, forward and backward."""
    parameters = 12 * options.layers * options.width**2 + options.vocabulary * options.width
    return options.batch * context * (6 * parameters + 6 * options.layers * options.width * context)


def values_of(one):
    return {key.split(".")[-1]: value for key, value in one["settings"].items()}


def words(one):
    of = values_of(one)
    parts = [f"pipe {of['actors']}"]
    if of["context"] != "1":
        parts.append(f"context {of['context']}")
    if of["slices"] != "1":
        parts.append(f"{of['slices']} slices")
    if of["recompute"] != "none":
        parts.append("recomputed")
    return ", ".join(parts)


def family(one):
    of = values_of(one)
    if of["actors"] == "1":
        return "context parallelism alone"
    if "head_shards" in of:
        return "slimpipe, vocabulary in parts"
    return of["schedule"] + (" in slices" if of["slices"] != "1" and of["schedule"] in ("1f1b", "zb-h1") else "")


def rows_of(found):
    """By schedule, whole or in slices: the best that fits, else the smallest."""
    families = {}
    for one in found:
        families.setdefault(family(one), []).append(one)
    for name, members in families.items():
        fitting = [one for one in members if one["fits"]]
        yield name, (min(fitting, key=lambda one: one["predicted_time"]) if fitting else min(members, key=lambda one: max(one["memory"])))


def print_rows(options, context, found):
    rows = sorted(rows_of(found), key=lambda row: (not row[1]["fits"], row[1]["predicted_time"]))
    best = rows[0][1]["predicted_time"]
    print(f"\n{context} tokens, {len(found)} configurations\n\n| schedule | configuration | step, s | of the best | idle | MFU | GB |\n|---|---|---|---|---|---|---|")
    for name, one in rows:
        fits = "" if one["fits"] else " (does not fit)"
        mfu = products(options, context) / (one["predicted_time"] * PEAK * len(one["memory"]))
        print(f"| {name} | {words(one)} | {one['predicted_time']:.2f} | {one['predicted_time'] / best:.3f} | {100 * one['bubble']:.1f} % | {100 * mfu:.1f} % | "
              f"{max(one['memory']) / 1e9:.1f}{fits} |", flush=True)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="examples/clusters/a100-64.toml")
    parser.add_argument("--contexts", type=int, nargs="+", default=[32768, 131072, 1048576])
    parser.add_argument("--positions", default="learned", choices=["learned", "rotary"], help="learned ones are a table of as many rows as a sequence has tokens")
    parser.add_argument("--only", help="values of settings that are looked at, as plan's --only")
    parser.add_argument("--out", help="file for all that was found, by context")
    for name, value in {"layers": 32, "width": 4096, "heads": 32, "vocabulary": 32000, "batch": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    everything = {}
    for context in options.contexts:
        everything[context] = found = planned(options, context)
        print_rows(options, context, found)
        if options.out:
            pathlib.Path(options.out).write_text(json.dumps(everything))


if __name__ == "__main__":
    main()
