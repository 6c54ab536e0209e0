#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peak memory per device of a GPT on one long sequence (examples/long.toml) whose places are split over the axis context: what the plan says, and beside it the
formula of what a stage keeps.

    bench/context.py [--length 16384] [--contexts 1 2 4] [--pipes 1 2] [--attention heads parts] [--train]

Kept of each place and layer are 16 h + a + 4 numbers (h width, a heads): what enters the norms, query, key and value, the MLP's hidden layer before and
after GELU, and the statistics. Each of N devices keeps it of its own places. --train also runs a step of each and prints the measured peak and the loss.
"""
import argparse
import json
import pathlib
import re
import tempfile

from common import ROOT, penstock, train

LAYERS, WIDTH, HEADS, BYTES = 4, 128, 4, 4


def sets(**pipeline):
    return [word for key, value in pipeline.items() for word in ("--set", f"pipeline.{key}={value}")]


def kept_by_formula(length, context, pipe):
    return length * LAYERS // pipe * (16 * WIDTH + HEADS + 4) * BYTES / context


def sent_for_attention(settings):
    """Bytes that the first member sends along context in a step."""
    layouts = penstock("compile", "--emit", "layouts", *settings)
    found = re.search(r"axis context.*?each micro-batch: [^\n]*each member sends ([^\n]*)", layouts, re.DOTALL)
    return found.group(1) if found else "-"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--pipes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--attention", nargs="+", choices=["heads", "parts"], default=["heads", "parts"])
    parser.add_argument("--train", action="store_true")
    options = parser.parse_args()
    print("| pipe | context | attention | kept by the formula | peak of the largest device | over context 1 | a member sends |"
          + (" measured peak | loss |" if options.train else ""))
    for pipe in options.pipes:
        alone = None
        for context in options.contexts:
            for attention in options.attention if context > 1 else ["whole"]:
                settings = [ROOT / "examples/long.toml", *sets(actors=pipe, context=context), "--set", f"model.context={options.length}"]
                if context > 1:
                    settings += sets(attention=attention)
                said = json.loads(penstock("simulate", *settings, "--device", "a100-80", "--latency", "1e-5", "--bandwidth", "1e11", "--json"))
                peak = max(said["peak_bytes"])
                alone = alone or peak
                row = [pipe, context, attention, f"{kept_by_formula(options.length, context, pipe) / 1e6:.1f} MB", f"{peak / 1e6:.1f} MB", f"{peak / alone:.3f}",
                       sent_for_attention(settings) if context > 1 else "-"]
                if options.train:
                    with tempfile.TemporaryDirectory() as name:
                        last = train(pathlib.Path(name), *settings, "--steps", 2, "--set", "run.checkpoint_every=0", "--set", "data.validation=0", skipped=0)[-1]
                    row += [f"{max(last['peak_bytes']) / 1e6:.1f} MB", f"{last['loss']:.6f}"]
                print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)


if __name__ == "__main__":
    main()
