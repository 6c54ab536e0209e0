#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ways to train on samples that differ in length, in turn on the same batches: real tokens per second of GPT and T5 on two actors.

    bench/lengths.py [--rounds 12] [--models gpt t5] [--texts FILE.jsonl] [--pairs FILE.jsonl]

GPT reads the functions of this Python's library that have a docstring, T5 a function's source and writes the first paragraph of its docstring, unless
files say otherwise; 64 samples a step, contexts of 2048 bytes, 4 layers (2 and 2) of width 128; one stage on each actor, and two (interleaved), where
each actor of T5 has a layer of the encoder and one of the decoder. The table has, as Markdown, for each way the share of padding, the median of real tokens per second over the batches, and the medians of a batch's own ratios of time, and of the processors' time, to those
of the best ragged rows. `build/bench/lengths` (cmake -DPENSTOCK_BENCH=ON) runs the steps.
"""
import argparse
import ast
import json
import os
import pathlib
import statistics
import subprocess
import sys
import sysconfig
import tempfile

from common import ROOT

PROGRAM = os.environ.get("LENGTHS", str(ROOT / "build/bench/lengths"))


def functions():
    """(source without docstring, first paragraph of the docstring) of the library's functions, in a fixed order."""
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        if {"site-packages", "dist-packages", "test", "tests", "lib2to3"} & set(path.parts):
            continue
        try:
            text = path.read_text()
            tree = ast.parse(text)
        except (SyntaxError, UnicodeDecodeError):
            continue
        lines = text.splitlines()
        for node in ast.walk(tree):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or not ast.get_docstring(node):
                continue
            doc = node.body[0]
            source = "\n".join(lines[node.lineno - 1:doc.lineno - 1] + lines[doc.end_lineno:node.end_lineno])
            if source:
                yield source, ast.get_docstring(node).split("\n\n")[0]


def write_lines(file, lines):
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def race(model, file, rounds):
    done = subprocess.run([PROGRAM, model, str(file), str(rounds)], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.exit(done.stderr)
    steps = {}
    for line in done.stdout.splitlines():
        step = json.loads(line)
        steps.setdefault(step["way"] + ("" if step["schedule"] == "1f1b" else ", interleaved"), []).append(step)
    # The first batch warms caches and arenas.
    return {way: sorted(of, key=lambda step: step["batch"])[1:] for way, of in steps.items()}


def rows_of(steps):
    """By way: share of padding, real tokens per second, and the ratio of its seconds to those of the best ragged rows."""
    rate = {way: statistics.median(step["tokens"] / step["seconds"] for step in of) for way, of in steps.items()}
    best = max((way for way in steps if way.startswith("ragged")), key=rate.get)
    for way, of in steps.items():
        padding = 1 - sum(step["tokens"] for step in of) / sum(step["padded"] for step in of)
        ratios = [statistics.median(a[key] / b[key] for a, b in zip(of, steps[best])) for key in ("seconds", "cpu")]
        yield way, [f"{100 * padding:.0f} %", f"{rate[way]:,.0f}", *(f"{ratio:.2f}" for ratio in ratios)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--models", nargs="+", default=["gpt", "t5"], choices=["gpt", "t5"])
    parser.add_argument("--texts", type=pathlib.Path)
    parser.add_argument("--pairs", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [] if options.texts and options.pairs else list(functions())
        texts = options.texts or write_lines(pathlib.Path(folder) / "texts.jsonl", ({"text": source} for source, _ in found))
        pairs = options.pairs or write_lines(pathlib.Path(folder) / "pairs.jsonl", ({"input": source, "target": doc} for source, doc in found))
        rows = {model: dict(rows_of(race(model, {"gpt": texts, "t5": pairs}[model], options.rounds))) for model in options.models}
    print("| way |" + "".join(f" {model}: padding | tokens/s | time over ragged | CPU |" for model in rows) + f"\n|---|{'---|' * 4 * len(rows)}")
    first = next(iter(rows.values()))
    for way in sorted(first, key=lambda way: float(first[way][2]), reverse=True):
        print(f"| {way} | {' | '.join(cell for of in rows.values() for cell in of[way])} |")


if __name__ == "__main__":
    main()
