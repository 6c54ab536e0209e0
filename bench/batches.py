#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps of batches that are planned one by one, predicted beside measured.

    bench/batches.py [--steps 100] [--batch 64] [--context 2048] [--layers 4] [--width 128] [--backend threads|gloo] [--planner searched]

Documents are the functions of Python's library (this interpreter's), whole. The model is profiled on some of their batches: what its stages
take for a micro-batch of any shape is fitted to those (`penstock profile` with a planner). Then it trains on others, with these costs, and the
prediction of each step (`predicted_seconds` of metrics.jsonl) stands beside what it took. Printed are the steps, and the median and the
largest of their errors; the error of the sum of all steps; and how far two runs of the same steps are apart, which no prediction can beat.
"""
import argparse
import ast
import json
import pathlib
import statistics
import sysconfig
import tempfile

from common import BOUND, penstock, train

KEPT = 10  # steps shown


def functions(folder):
    """A .jsonl file of the sources of all functions of the standard library with a docstring, in the order of their files."""
    file = folder / "functions.jsonl"
    with file.open("w") as out:
        for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
            source = path.read_text(errors="ignore")
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                    out.write(json.dumps({"text": ast.get_source_segment(source, node)}) + "\n")
    return file


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"steps": 100, "batch": 64, "context": 2048, "layers": 4, "width": 128, "actors": 2, "rounds": 6}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--backend", default="threads", choices=sorted(BOUND))
    parser.add_argument("--planner", default="searched", choices=["searched", "dynapipe"])
    options = parser.parse_args()
    processes = options.actors if options.backend == "gloo" else 1
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = folder / "config.toml"
        config.write_text(f'[model]\nname = "gpt"\nlayers = {options.layers}\nwidth = {options.width}\nheads = 4\ncontext = {options.context}\n'
                          f'[data]\ndocuments = ["{functions(folder)}"]\nvalidation = 0\n[train]\nbatch = {options.batch}\n'
                          f'validation_every = 0\n[pipeline]\nactors = {options.actors}\nbackend = "{options.backend}"\n'
                          f'[batch]\nplanner = "{options.planner}"\n[run]\ncheckpoint_every = 0\n')
        costs = folder / "costs.json"
        penstock("profile", config, "--out", costs, "--rounds", options.rounds, processes=processes)
        runs = [train(folder, config, "--steps", options.steps, "--seed", 7, "--set", f"batch.costs={costs}", processes=processes) for _ in range(2)]
    pairs = [(line["predicted_seconds"], line["seconds"]) for line in runs[0]]
    errors = [predicted / measured - 1 for predicted, measured in pairs]
    print("step  predicted, ms  measured, ms   error")
    for line, (predicted, measured) in list(zip(runs[0], pairs))[:KEPT]:
        print(f"{line['step']:4}  {1e3 * predicted:13.1f}  {1e3 * measured:12.1f}  {predicted / measured - 1:+6.1%}")
    again = [abs(b["seconds"] / a["seconds"] - 1) for a, b in zip(*runs)]
    total = sum(p for p, _ in pairs) / sum(m for _, m in pairs) - 1
    print(f"{len(pairs)} steps: error {statistics.median(map(abs, errors)):.1%} in the middle, {max(map(abs, errors)):.1%} at most, "
          f"{total:+.1%} of all together; the same step again differs by {statistics.median(again):.1%} in the middle")


if __name__ == "__main__":
    main()
