#!/usr/bin/env python3
"""TeraPipe's planner on measured costs: profiles a GPT in equal slices, fits what a slice of a length behind a context takes, plans the lengths, and runs the plan
beside equal slices.

    bench/terapipe.py [--context 1024] [--width 256] [--layers 8] [--batch 4] [--actors 2] [--counts 2 4 8 16] [--units 64] [--schedule terapipe] [--rounds 3] [--steps 6]

The fit is t(l, c) = a + b l + d l (c + l/2) over forward and backward of the slowest stage, l and c in units of which the sequence has --units. Printed are the fit,
how far measured slices are from it, and the steps, in turn, as medians and as ratios to the fastest equal cut.
"""
import argparse
import json
import pathlib
import statistics
import tempfile

import numpy

from common import median_of, penstock, train
from slices import config_of


def slice_times(folder, options, count):
    """Seconds of forward and backward of each slice, of the slowest stage."""
    config, costs = folder / "profiled.toml", folder / "costs.json"
    config.write_text(config_of(options, f'schedule = "{options.schedule}"\nslices = {count}'))
    penstock("profile", config, "--out", costs)
    times = numpy.zeros((options.actors, count))
    for task in json.loads(costs.read_text())["tasks"]:
        if task.get("kind") in ("F", "B"):
            times[divmod(task["stage"], count)] += task.get("busy", task.get("alone"))["median"]
    return times[times.sum(axis=1).argmax()]


def fitted(options, measured):
    """a, b, d of the formula, and the median distance of measured slices from it."""
    rows, seconds = [], []
    for count, times in measured.items():
        length = options.units / count
        for number, time in enumerate(times):
            rows.append([1, length, length * (number * length + length / 2)])
            seconds.append(time)
    rows, seconds = numpy.array(rows), numpy.array(seconds)
    # Relative distances count: a short slice matters as much as a long one.
    found = numpy.maximum(numpy.linalg.lstsq(rows / seconds[:, None], numpy.ones(len(seconds)), rcond=None)[0], 0)
    return found, numpy.median(abs(rows @ found / seconds - 1))


def planned(folder, options, figures):
    instance = folder / "instance.json"
    instance.write_text(json.dumps({"actors": options.actors, "length": options.units, "fixed": figures[0], "per_token": figures[1], "per_pair": figures[2]}))
    answer = json.loads(penstock("batch", "slices", instance, "--json"))
    return answer["slices"][0], answer["time"], answer["uniform"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"context": 1024, "width": 256, "layers": 8, "batch": 4, "actors": 2, "units": 64, "rounds": 3, "steps": 6}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--counts", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--schedule", default="terapipe")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        figures, distance = fitted(options, {count: slice_times(folder, options, count) for count in options.counts})
        lengths, time, uniform = planned(folder, options, figures)
        print(f"t(l, c) = {1e3 * figures[0]:.3f} + {1e3 * figures[1]:.4f} l + {1e3 * figures[2]:.6f} l (c + l/2) ms, l in {options.context // options.units} tokens; "
              f"measured slices are {100 * distance:.1f} % from it (median)")
        print(f"planned {lengths}: {1e3 * time:.1f} ms for one micro-batch through all stages, equal slices at best {1e3 * uniform:.1f} ms")
        rows = {f"{count} equal": count for count in options.counts} | {"planned": lengths}
        for number, slices in enumerate(rows.values()):
            (folder / f"{number}.toml").write_text(config_of(options, f'schedule = "{options.schedule}"\nslices = {slices}'))
        times = {name: [] for name in rows}
        for _ in range(options.rounds):
            for number, name in enumerate(rows):
                times[name].append(median_of(train(folder, folder / f"{number}.toml"), "seconds"))
        equal = min((name for name in rows if name != "planned"), key=lambda name: statistics.median(times[name]))
        for name, seconds in times.items():
            ratio = statistics.median(one / base for one, base in zip(seconds, times[equal]))
            print(f"| {name} | {1e3 * statistics.median(seconds):.0f} ms | {ratio:.3f} |")


if __name__ == "__main__":
    main()
