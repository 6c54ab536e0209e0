#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what late parameters cost: a small gpt trained by schedules that update within a window of steps, beside 1f1b; docs/asynchronous.md.

    bench/late_parameters.py [--steps 400] [--seeds 3] [--rate 1e-3] [--svg FILE]

Each run prints a line while they go. Then a table: means over the seeds of the validation loss, the lowest and highest at the end, the
last one over 1f1b's, and a step's time over 1f1b's (medians; seeds in turn). --svg draws loss against steps and against seconds.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import tempfile

import common

WINDOW = ("--window", "8")
SCHEDULES = {
    "1f1b": ("--schedule", "1f1b"),
    "pipeoptim": ("--schedule", "pipeoptim", *WINDOW),
    "xpipe": ("--schedule", "xpipe", *WINDOW),
    "pipedream": ("--schedule", "pipedream", *WINDOW),
    "pipedream-2bw": ("--schedule", "pipedream-2bw", *WINDOW),
    "pipedream, one micro-batch": ("--schedule", "pipedream", "--window", "20"),
}
COLOURS = ("#1f2328", "#0969da", "#1a7f37", "#8250df", "#cf222e", "#9a6700")
EVERY = 40  # steps between validations


def model(steps, rate):
    keys = {"layers": 4, "width": 128, "heads": 4, "context": 128, "tied": 0, "clip": 0, "checkpoint_every": 0, "validation_every": EVERY,
            "validation_batches": 8, "learning_rate": rate, "warmup": 40}  # fmt: skip
    return [*(word for key, value in keys.items() for word in ("--set", f"{key}={value}")), "--batch", 16, "--actors", 4, "--steps", steps]


def run(folder, schedule, arguments, seed):
    """(validation losses by step, seconds of each step) of a run."""
    microbatches = 1 if schedule.endswith("one micro-batch") else 4
    lines = common.train(folder, *arguments, *SCHEDULES[schedule], "--microbatches", microbatches, "--seed", seed, skipped=0)
    losses = {line["step"]: line["validation_loss"] for line in lines if line.get("validation_loss") is not None}
    return losses, statistics.median(line["seconds"] for line in lines[EVERY // 2 :])


def mean(runs, step):
    return statistics.mean(losses[step] for losses, _ in runs)


def print_table(found, steps):
    shown = [step for step in sorted(found["1f1b"][0][0]) if step % (2 * EVERY) == 0]
    print("| schedule |", " | ".join(f"{step} steps" for step in shown), "| lowest to highest | over 1f1b's | a step over 1f1b's |")
    print("|" + "---|" * (len(shown) + 4))
    whole = mean(found["1f1b"], steps)
    for schedule, runs in found.items():
        last = [losses[steps] for losses, _ in runs]
        time = statistics.median(seconds / other for (_, seconds), (_, other) in zip(runs, found["1f1b"]))
        print(f"| {schedule} |", " | ".join(f"{mean(runs, step):.3f}" for step in shown),
              f"| {min(last):.3f} to {max(last):.3f} | {mean(runs, steps) / whole:.3f} | {time:.2f} |")  # fmt: skip


def panel(x, title, lines, most):
    """One diagram, 420 x 300, of (name, colour, points), with its axes; x from 0 to `most`."""
    low = min(y for _, _, points in lines for _, y in points)
    high = max(y for _, _, points in lines for _, y in points)
    place = lambda px, py: (x + 50 + 350 * px / most, 30 + 230 * (high - py) / (high - low))  # noqa: E731
    out = [f'<text x="{x + 50}" y="18">{title}</text>', f'<path d="M{x + 50} 30V260H{x + 400}" fill="none" stroke="#8c959f"/>']
    for share in (0, 0.5, 1):
        out.append(f'<text x="{x + 44}" y="{34 + 230 * share:.0f}" text-anchor="end">{high - share * (high - low):.2f}</text>')
        out.append(f'<text x="{x + 50 + 350 * share:.0f}" y="276" text-anchor="middle">{most * share:.0f}</text>')
    for name, colour, points in lines:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(*point) for point in points))
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"><title>{name}</title></polyline>')
    return out


def picture(found, steps):
    """Validation loss against steps and against seconds, means over the seeds, with a legend."""
    by_steps, by_seconds, legend = [], [], []
    seconds = {schedule: statistics.median(time for _, time in runs) for schedule, runs in found.items()}
    for i, (schedule, colour) in enumerate(zip(found, COLOURS)):
        points = [(step, mean(found[schedule], step)) for step in sorted(found[schedule][0][0])]
        by_steps.append((schedule, colour, points))
        by_seconds.append((schedule, colour, [(step * seconds[schedule], loss) for step, loss in points]))
        legend.append(f'<rect x="{50 + 140 * i}" y="296" width="12" height="3" fill="{colour}"/><text x="{66 + 140 * i}" y="302">{schedule}</text>')
    parts = panel(0, "validation loss by steps", by_steps, steps) + panel(430, "by seconds", by_seconds, steps * max(seconds.values())) + legend
    style = 'font-family="sans-serif" font-size="12" fill="#57606a"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 940 316" {style}>', '<rect width="940" height="316" fill="#fff"/>',
                      *parts, "</svg>", ""])  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="a multiple of 40")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=list(SCHEDULES))
    parser.add_argument("--svg", type=pathlib.Path)
    options = parser.parse_args()
    found = {schedule: [] for schedule in dict.fromkeys(["1f1b", *options.schedules])}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name in ("docs", "src"):
            shutil.copytree(common.ROOT / name, folder / "text" / name)
        arguments = [*model(options.steps, options.rate), "--text", folder / "text"]
        for seed in range(1, options.seeds + 1):
            for schedule, runs in found.items():
                runs.append(run(folder, schedule, arguments, seed))
                print(json.dumps({"schedule": schedule, "seed": seed, "validation": runs[-1][0][options.steps], "seconds": runs[-1][1]}), flush=True)
    print_table(found, options.steps)
    if options.svg:
        options.svg.write_text(picture(found, options.steps))


if __name__ == "__main__":
    main()
