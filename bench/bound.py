#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A step of the reference work beside what its matrix products alone take: how far kernels, schedule and runtime are from the bound.

    bench/bound.py [--width 768] [--layers 12] [--dtype bf16] [--rounds 3] [--steps 6]

The step is bench/peer.py's (16 micro-batches of 2 sequences of 128, vocabulary 2048) on one actor with one thread. The bound is the sum over its products of the
time that the fastest library takes for one of that shape by itself (build/bench/kernels: our loops, oneDNN, MKL), its operands in the caches. Both are measured in
turn; printed are the medians of the rounds, and the median of their ratios.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import tempfile

from common import ROOT, WARM_UP, median_of, train

ROWS, VOCABULARY, MICROBATCHES, BATCH = 256, 2048, 16, 32


def products_of(width, layers):
    """How often a micro-batch computes each product: as the arguments of build/bench/kernels, rows/columns/inner/transposed."""
    dense = {(width, 3 * width): layers, (width, width): layers, (width, 4 * width): layers, (4 * width, width): layers, (width, VOCABULARY): 1}
    products = {}
    for (into, out), count in dense.items():
        for shape in ((ROWS, out, into, 2), (ROWS, into, out, 0), (out, into, ROWS, 1)):
            products["/".join(map(str, shape))] = count
    return products


def bound(products, dtype):
    """Seconds of all products of a step, each by its fastest library."""
    shapes = "|".join(products)
    done = subprocess.run([ROOT / "build/bench/kernels", f"--benchmark_filter=^product/{dtype}_[a-z]+/({shapes})$", "--benchmark_min_time=0.05s",
                           "--benchmark_format=json"], capture_output=True, text=True, check=True)  # fmt: skip
    fastest = {}
    for one in json.loads(done.stdout)["benchmarks"]:
        shape = re.fullmatch(r"product/[a-z0-9_]+/(.*)", one["name"])[1]
        fastest[shape] = min(fastest.get(shape, float("inf")), 1e-9 * one["cpu_time"])
    return MICROBATCHES * sum(count * fastest[shape] for shape, count in products.items())


def step(folder, options):
    sets = {"model.name": "reference", "layers": options.layers, "width": options.width, "clip": 0, "checkpoint_every": 0, "data.text": json.dumps([str(ROOT / "src")])}
    lines = train(folder, *(part for key, value in sets.items() for part in ("--set", f"{key}={value}")), "--mesh", "pipe=1", "--dtype", options.dtype,
                  "--batch", BATCH, "--microbatches", MICROBATCHES, "--steps", options.steps, skipped=min(WARM_UP, options.steps // 2))  # fmt: skip
    return median_of(lines, "seconds")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"width": 768, "layers": 12, "rounds": 3, "steps": 6}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    options = parser.parse_args()
    products = products_of(options.width, options.layers)
    bounds, steps = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            bounds.append(bound(products, options.dtype))
            steps.append(step(pathlib.Path(folder), options))
    ratio = statistics.median(one / least for one, least in zip(steps, bounds))
    print(f"width {options.width}, {options.layers} layers, {options.dtype}: a step {statistics.median(steps):.3f} s, its products alone {statistics.median(bounds):.3f} s, "
          f"{ratio:.3f} times the bound")


if __name__ == "__main__":
    main()
