#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted beside measured step times: GPT at several widths, threads and Gloo: every schedule on two actors, actors of two
devices, and tensors split over two.

    bench/predict.py [--of schedules groups tensors] [--widths 64 256] [--backends threads gloo] [--rounds 3] [--steps 25]

Each round profiles the model (once per number of chunks, or for each way of sharding), then runs every case; so profile and run see the same minutes of a shared
machine. The prediction of a round is `penstock simulate` with that round's costs. Printed per case: the medians over the rounds, the median of the
rounds' relative differences, and the spread of the measured times (largest minus smallest, over the median). A prediction passes if the difference is below 3 %
on threads and 5 % over Gloo, or below twice the spread; the order of two schedules passes if it is the measured one or they differ by less.
"""
import argparse
import itertools
import json
import pathlib
import statistics
import sys
import tempfile

from common import BOUND, ROOT, median_of, penstock, spread_of, train, within_bounds

# Each case's [pipeline], and the one under whose table its costs are measured.
ON_TWO = {"actors": 2, "microbatches": 16}
PLAIN, CHUNKED = {**ON_TWO, "schedule": "1f1b"}, {**ON_TWO, "schedule": "interleaved-1f1b", "chunks": 2}
SCHEDULES = {name: ({**PLAIN, "schedule": name}, PLAIN) for name in ("sequential", "gpipe", "1f1b", "eager-1f1b", "zb-h1")}
SCHEDULES["interleaved-1f1b"] = (CHUNKED, CHUNKED)
REPLICAS = {"actors": 1, "data": 2, "microbatches": 4}
GROUPS = {name: (pipeline, pipeline) for name, pipeline in {
    "replicated": {**REPLICAS, "schedule": "gpipe"},
    "zero 1": {**REPLICAS, "schedule": "gpipe", "zero": 1},
    "zero 3": {**REPLICAS, "schedule": "breadth-first", "chunks": 8, "zero": 3},
}.items()}
SPLIT = {"tensor": 2, "microbatches": 4}
IN_SEQUENCE = {"sequence": "tensor"}
TENSORS = {name: (pipeline, pipeline) for name, pipeline in {
    "tensor": {**SPLIT, "actors": 1, "schedule": "sequential"},
    "tensor, sequence": {**SPLIT, "actors": 1, "schedule": "sequential", "layout": IN_SEQUENCE},
    "two actors": {**SPLIT, "actors": 2, "schedule": "1f1b"},
    "two, sequence": {**SPLIT, "actors": 2, "schedule": "1f1b", "layout": IN_SEQUENCE},
}.items()}
CASES = {"schedules": SCHEDULES, "groups": GROUPS, "tensors": TENSORS}


def config_of(width, pipeline, backend, folder):
    file = folder / "gpt.toml"
    pipeline = {**pipeline, "backend": backend}
    layout = pipeline.pop("layout", {})
    keys, axes = ("".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items()) for table in (pipeline, layout))
    file.write_text(f'[model]\nname = "gpt"\nlayers = 8\nwidth = {width}\nheads = 4\ncontext = 128\n'
                    f'[data]\ntext = ["{ROOT / "src"}"]\nvalidation = 0.0\n[train]\nbatch = 32\nvalidation_every = 0\n'
                    f'[pipeline]\n{keys}[layout]\n{axes}[run]\ncheckpoint_every = 0\n')
    return file


def processes_of(pipeline, backend):
    return 1 if backend == "threads" else pipeline["actors"] * pipeline.get("data", 1) * pipeline.get("tensor", 1)


def one_round(cases, width, backend, options, folder):
    """Per case: predicted and measured seconds, predicted and measured bytes of the largest device."""
    costs, results = {}, {}
    for name, (pipeline, measured) in cases.items():
        key = json.dumps(measured)
        if key not in costs:
            costs[key] = folder / f"costs-{len(costs)}.json"
            costs[key].unlink(missing_ok=True)
            penstock("profile", config_of(width, measured, backend, folder), "--rounds", options.profile_rounds, "--out", costs[key],
                     processes=processes_of(measured, backend))
        config = config_of(width, pipeline, backend, folder)
        predicted = json.loads(penstock("simulate", config, "--backend", backend, "--costs", costs[key], "--json"))
        lines = train(folder, config, "--steps", options.steps, processes=processes_of(pipeline, backend))
        results[name] = (predicted["step_seconds"], median_of(lines, "seconds"), max(predicted["peak_bytes"]), max(lines[-1]["peak_bytes"]))
    return results


def judge(rounds, backend):
    medians, passed = {}, True
    for schedule in rounds[0]:
        predicted = statistics.median(r[schedule][0] for r in rounds)
        values = [r[schedule][1] for r in rounds]
        took = statistics.median(values)
        spread = spread_of(values)
        error = statistics.median(r[schedule][0] / r[schedule][1] - 1 for r in rounds)
        bytes_error = rounds[0][schedule][2] / rounds[0][schedule][3] - 1
        good = within_bounds(error, spread, backend)
        passed &= good
        medians[schedule] = (predicted, took, max(BOUND[backend], 2 * spread))
        print(f"  {schedule:18} predicted {1e3 * predicted:8.2f} ms  measured {1e3 * took:8.2f} ms  {100 * error:+5.1f} %  spread {100 * spread:4.1f} %"
              f"  memory {100 * bytes_error:+5.1f} %  {'ok' if good else 'OFF'}")
    for a, b in itertools.combinations(rounds[0], 2):
        (pa, ta, ba), (pb, tb, bb) = medians[a], medians[b]
        if abs(ta - tb) / min(ta, tb) > max(ba, bb) and (pa < pb) != (ta < tb):
            print(f"  ORDER of {a} and {b} is predicted the other way")
            passed = False
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", nargs="+", default=[*CASES], choices=[*CASES])
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--backends", nargs="+", default=["threads", "gloo"], choices=list(BOUND))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--profile-rounds", type=int, default=6)
    options = parser.parse_args()
    passed = True
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for of, width, backend in itertools.product(options.of, options.widths, options.backends):
            print(f"{of}, width {width}, {backend}, {options.rounds} rounds", flush=True)
            passed &= judge([one_round(CASES[of], width, backend, options, folder) for _ in range(options.rounds)], backend)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
