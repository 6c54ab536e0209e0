#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Frozen stages in the idle time of the step before: a latent diffusion model whose encoder of captions computes where actors wait.

    bench/filled.py [--actors 2] [--microbatches 4] [--window 8] [--rounds 5] [--text-layers 2] [--caption 24]

Rows, interleaved: `alone`, with next to no frozen work; `ahead`, its frozen forwards ahead of each step; `filled`, each step's in the idle time of the one
before, with tables for --window steps. What frozen forwards take of a stage's is measured first (`penstock profile`) and given to the tables. Printed are
the medians of steps over rounds, paired with `alone`, and how much of the idle time of 1F1B the frozen work is.
"""
import argparse
import json
import pathlib
import statistics
import tempfile

from common import median_of, penstock, train

def settings(options, text):
    """`text`: whether the encoder of captions is more than next to nothing."""
    model = {"layers": 4, "width": options.width, "image": 64, "patch": 8, "caption": options.caption if text else 1,
             "text_layers": options.text_layers if text else 1, "text_width": options.width if text else 4, "frozen_stages": 1}  # fmt: skip
    flags = ["--set", "model.name=latent_diffusion", "--actors", options.actors, "--microbatches", options.microbatches, "--batch", options.batch,
             "--set", "clip=0", "--set", "validation=0", "--set", "checkpoint_every=0"]  # fmt: skip
    return flags + [part for key, value in model.items() for part in ("--set", f"model.{key}={value}")]


def stage_times(options, folder):
    """The seconds of a micro-batch by kind and stage ("F1"), while both actors compute."""
    out = folder / "costs.json"
    penstock("profile", *settings(options, True), "--frozen", 1, "--out", out, "--rounds", 6)
    return {task["name"]: task["busy"]["median"] for task in json.loads(out.read_text())["tasks"] if "kind" in task}


def step_seconds(options, text, frozen, window, folder):
    steps = options.window * 3
    flags = [*settings(options, text), "--frozen", frozen, "--window", window, "--steps", steps]
    return median_of(train(folder, *flags, skipped=options.window), "seconds")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"actors": 2, "microbatches": 4, "batch": 32, "width": 128, "window": 8, "rounds": 5, "text-layers": 2, "caption": 24}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        times = stage_times(options, folder)
        stages = range(1, options.actors + 1)
        forward, both = (statistics.mean(sum(times[kind + str(s)] for kind in kinds) for s in stages) for kinds in ("F", "FB"))
        frozen, idle = options.microbatches * times["F0"], options.actors * (options.actors - 1) * both
        print(f"a frozen forward {1e3 * times['F0']:.2f} ms, a stage's {1e3 * forward:.2f} ms; frozen work is {100 * frozen / idle:.0f} % of 1f1b's idle time")
        rows = {"alone": (False, 0.01, options.window), "ahead": (True, times["F0"] / forward, 1), "filled": (True, times["F0"] / forward, options.window)}
        seconds = {row: [] for row in rows}
        for _ in range(options.rounds):
            for row, (text, share, window) in rows.items():
                seconds[row].append(step_seconds(options, text, share, window, folder))
        for row, measured in seconds.items():
            paired = [a / b for a, b in zip(measured, seconds["alone"])]
            print(f"{row:7} {1e3 * statistics.median(measured):8.2f} ms, of alone {statistics.median(paired):.3f} ({min(paired):.3f} to {max(paired):.3f})")


if __name__ == "__main__":
    main()
