#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far a run in bf16 is from the same run in f32: loss by step, on average over a few steps, and validation loss.

    bench/bf16_curve.py [--config examples/gpt.toml] [--steps 300] [--seeds 1] [--over 20]
"""
import argparse
import json
import pathlib
import tempfile

from common import ROOT, train


def curve(config, steps, seed, dtype, folder):
    lines = train(folder, config, "--steps", steps, "--seed", seed, "--dtype", dtype, "--set", "checkpoint_every=0", skipped=0)
    return [line["loss"] for line in lines], [line["validation_loss"] for line in lines if "validation_loss" in line]


def averages(losses, over):
    return [sum(losses[i : i + over]) / over for i in range(len(losses) - over + 1)]


def furthest(ours, theirs):
    return max(abs(a / b - 1) for a, b in zip(ours, theirs))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default=str(ROOT / "examples/gpt.toml"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--over", type=int, default=20, help="steps of an average")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for seed in options.seeds:
            (losses, validation), (losses32, validation32) = (
                curve(options.config, options.steps, seed, dtype, pathlib.Path(name)) for dtype in ("bf16", "f32"))  # fmt: skip
            smooth = furthest(averages(losses, options.over), averages(losses32, options.over))
            print(f"seed {seed}: step by step {100 * furthest(losses, losses32):.2f} %, over {options.over} steps {100 * smooth:.2f} %, "
                  f"validation {100 * furthest(validation, validation32):.2f} % ({validation[-1]:.3f}, {validation32[-1]:.3f})", flush=True)


if __name__ == "__main__":
    main()
