#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans of `penstock plan --cluster local` beside an even split by layers: CANDLE-Uno, the multimodal transformer and GPT on two actors.

    bench/planned.py [--models candle-uno multimodal gpt] [--rounds 5] [--steps 13]

Each model is planned once (which profiles it). The even split is what one would write by hand: the layers, branch after branch, in two
halves, embeddings with the first layer that reads them, the head with the last; in micro-batches of the plan's size. It runs by the plain
schedule that is predicted to be the fastest with measured costs, and once more by the table that `penstock schedule search` finds for these costs.

Each round profiles the planned stages again and predicts their step, then runs the three, in turn. The table has, as Markdown, medians over the
rounds: the prediction of the plan's file, the measured step, its spread (largest minus smallest, over the median), the prediction's difference to it,
and the same of the rounds' own predictions; steps of the even split, and the rounds' ratios of the plan's step to them (below 1: the plan is faster).
A prediction is within bounds if its difference is below 3 % or twice the spread.
"""
import argparse
import json
import pathlib
import re
import statistics
import tempfile

from common import ROOT, median_of, penstock, spread_of, train, within_bounds

# Steps of about 50 to 100 ms on two cores. The head of this GPT costs as much as three of its layers.
MODELS = {
    "candle-uno": {"model": {"branches": 7, "layers": 4, "width": 512}, "batch": 256},
    "multimodal": {"model": {"branches": 4, "layers": 8, "width": 96, "heads": 4, "context": 160}, "batch": 16},
    "gpt": {"model": {"layers": 8, "width": 128, "heads": 4, "context": 64, "vocabulary": 4096}, "batch": 16},
}
PLAIN = ["gpipe", "1f1b", "eager-1f1b", "zb-h1"]
LAYER = re.compile(r"(?:branch\.(\d+)\.)?(?:h|layer)\.(\d+)")
EMBEDDING = re.compile(r"(?:branch\.(\d+)\.embedding|(?:wte|model)$)")


def config_of(model, folder):
    file = folder / f"{model}.toml"
    sizes = "".join(f"{key} = {value}\n" for key, value in MODELS[model]["model"].items())
    text = "" if model == "candle-uno" else f'text = ["{ROOT / "src"}"]\n'
    file.write_text(f'[model]\nname = "{model}"\n{sizes}[data]\n{text}validation = 0\n'
                    f'[train]\nbatch = {MODELS[model]["batch"]}\nvalidation_every = 0\n'
                    '[pipeline]\nactors = 2\nmicrobatches = 8\n[run]\ncheckpoint_every = 0\n')
    return file


def place_of(node):
    """Branch and layer; the head is behind all of them."""
    if found := LAYER.match(node):
        return int(found[1] or 0), int(found[2])
    if found := EMBEDDING.match(node):
        return int(found[1] or 0), 0
    return 1 << 20, 0


def halves(nodes):
    layers = sorted({place_of(node) for node in nodes if LAYER.match(node)})
    middle = layers[len(layers) // 2]
    return [[node for node in nodes if (place_of(node) >= middle) == is_second] for is_second in (False, True)]


def even_plan(plan, table):
    """The file of a plan whose stages are the two halves."""
    nodes = [node for stage in plan["stages"] for node in stage["nodes"]]
    stages = [{**plan["stages"][0], "name": f"half {i}", "nodes": half, "devices": [i]} for i, half in enumerate(halves(nodes))]
    even = {**plan, "planner": "even split by layers", "stages": stages, "links": [], "schedule": table}
    even.pop("timeline", None)
    return even


def write(file, plan):
    file.write_text(json.dumps(plan))
    return file


def predict(config, plan, costs):
    return json.loads(penstock("simulate", config, "--plan", plan, "--costs", costs, "--json"))["step_seconds"]


def profile(config, plan, rounds, costs):
    costs.unlink(missing_ok=True)
    penstock("profile", config, "--plan", plan, "--rounds", rounds, "--out", costs)
    return costs


def even_plans(config, plan, options, folder):
    """Name of the best plain schedule, and the files of its plan and of the searched table's."""
    shape = ("--actors", 2, "--microbatches", plan["microbatches"])
    files = {name: write(folder / f"even-{name}.json", even_plan(plan, penstock("schedule", name, *shape))) for name in PLAIN}
    costs = profile(config, files["1f1b"], options.profile_rounds, folder / "even-costs.json")
    best = min(PLAIN, key=lambda name: predict(config, files[name], costs))
    table = folder / "searched.csv"
    penstock("schedule", "search", *shape, "--costs", costs, "--out", table)
    return best, files[best], write(folder / "even-searched.json", even_plan(plan, table.read_text()))


def race(model, options, folder):
    """The table's row."""
    config, file = config_of(model, folder), folder / "plan.json"
    plan = json.loads(penstock("plan", config, "--cluster", "local", "--out", file) and file.read_text())
    schedule, plain, searched = even_plans(config, plan, options, folder)
    racers, times, predictions = [file, plain, searched], {}, []
    for number in range(options.rounds):
        predictions.append(predict(config, file, profile(config, file, options.profile_rounds, folder / "costs.json")))
        for racer in racers if number % 2 == 0 else reversed(racers):
            lines = train(folder, config, "--plan", racer, "--steps", options.steps)
            times.setdefault(racer, []).append(median_of(lines, "seconds"))
    return row_of(model, plan, schedule, predictions, [times[racer] for racer in racers])


def row_of(model, plan, schedule, predictions, times):
    planned, plain, searched = times
    took, spread = statistics.median(planned), spread_of(planned)
    stages = ", ".join(f"{stage['name']} ({len(stage['nodes'])})" for stage in plan["stages"])

    def error_text(error):
        return f"{100 * error:+.1f} %, {'within' if within_bounds(error, spread) else 'beyond'}"

    def beside(others):
        return [f"{1e3 * statistics.median(others):.1f}", f"{statistics.median(a / b for a, b in zip(planned, others)):.3f}"]

    return [model, f"{stages}; {plan['microbatches']} x {plan['stages'][0]['micro_batch']}", f"{1e3 * plan['predicted_time']:.1f}", f"{1e3 * took:.1f}",
            f"{100 * spread:.1f} %", error_text(plan["predicted_time"] / took - 1),
            error_text(statistics.median(a / b - 1 for a, b in zip(predictions, planned))), schedule, *beside(plain), *beside(searched)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--profile-rounds", type=int, default=6)
    options = parser.parse_args()
    columns = ["model", "planned stages (nodes); micro-batches", "predicted, ms", "measured, ms", "spread", "error", "error of the rounds' predictions",
               "even split by", "ms", "ratio", "searched, ms", "ratio"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for model in options.models:
        with tempfile.TemporaryDirectory() as name:
            print(f"| {' | '.join(race(model, options, pathlib.Path(name)))} |", flush=True)


if __name__ == "__main__":
    main()
