#!/usr/bin/env python3
"""Predicted beside measured step times: GPT at several widths, every schedule, threads and Gloo.

    bench/predict.py [--widths 64 256] [--backends threads gloo] [--rounds 3] [--steps 25]

Each round profiles the model once per number of chunks, then runs every schedule; so profile and run see the same minutes of a shared machine.
The prediction of a round is `penstock simulate` with that round's costs. Printed per schedule: the medians over the rounds, the median of the
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

PROCESSES = {"threads": 1, "gloo": 2}
SCHEDULES = {"sequential": 1, "gpipe": 1, "1f1b": 1, "eager-1f1b": 1, "zb-h1": 1, "interleaved-1f1b": 2}


def config_of(width, folder):
    file = folder / f"gpt-{width}.toml"
    file.write_text(f'[model]\nname = "gpt"\nlayers = 8\nwidth = {width}\nheads = 4\ncontext = 128\n'
                    f'[data]\ntext = ["{ROOT / "src"}"]\n[train]\nbatch = 32\nvalidation_every = 0\n'
                    '[pipeline]\nactors = 2\nmicrobatches = 16\n[run]\ncheckpoint_every = 0\n')
    return str(file)


def measured(config, schedule, backend, steps, folder):
    lines = train(folder, config, "--schedule", schedule, "--chunks", SCHEDULES[schedule], "--backend", backend, "--steps", steps,
                  "--set", "data.validation=0", processes=PROCESSES[backend])
    return median_of(lines, "seconds"), max(lines[-1]["peak_bytes"])


def one_round(config, backend, options, folder):
    """Per schedule: predicted and measured seconds, predicted and measured bytes of the largest actor."""
    costs = {}
    for chunks in sorted(set(SCHEDULES.values())):
        costs[chunks] = folder / f"costs-{chunks}.json"
        costs[chunks].unlink(missing_ok=True)
        schedule = "interleaved-1f1b" if chunks > 1 else "1f1b"
        penstock("profile", config, "--schedule", schedule, "--chunks", chunks, "--backend", backend, "--rounds", options.profile_rounds,
                 "--out", costs[chunks], processes=PROCESSES[backend])
    results = {}
    for schedule, chunks in SCHEDULES.items():
        predicted = json.loads(penstock("simulate", config, "--schedule", schedule, "--chunks", chunks, "--set", f"pipeline.backend={backend}",
                                        "--backend", backend, "--costs", costs[chunks], "--json"))
        seconds, peak = measured(config, schedule, backend, options.steps, folder)
        results[schedule] = (predicted["step_seconds"], seconds, max(predicted["peak_bytes"]), peak)
    return results


def judge(rounds, backend):
    medians, passed = {}, True
    for schedule in SCHEDULES:
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
    for a, b in itertools.combinations(SCHEDULES, 2):
        (pa, ta, ba), (pb, tb, bb) = medians[a], medians[b]
        if abs(ta - tb) / min(ta, tb) > max(ba, bb) and (pa < pb) != (ta < tb):
            print(f"  ORDER of {a} and {b} is predicted the other way")
            passed = False
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--backends", nargs="+", default=["threads", "gloo"], choices=list(BOUND))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--profile-rounds", type=int, default=6)
    options = parser.parse_args()
    passed = True
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for width, backend in itertools.product(options.widths, options.backends):
            config = config_of(width, folder)
            print(f"width {width}, {backend}, {options.rounds} rounds", flush=True)
            passed &= judge([one_round(config, backend, options, folder) for _ in range(options.rounds)], backend)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
