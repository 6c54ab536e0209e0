#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Penstock shown in eight parts, each of which runs what it speaks of; ends with exit code 1 where something is not as it is claimed to be.

    make demo     # or: .venv/bin/python examples/demo/demo.py [--quick] [--out runs/demo] [--penstock build/penstock]

--quick is smaller, leaves out the comparison with the peer, and judges no times.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time

from demo_page import make_page

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = {"layers": 8, "width": 64, "heads": 4, "context": 128}
QUICK_MODEL = {"layers": 8, "width": 32, "heads": 2, "context": 32}
MOST_SPREAD = 0.25  # of the middle half of the steps, to the median: beyond it the machine was too busy to compare anything
LENGTHS_CONTEXT, LENGTHS_BATCH = 512, 32  # of the samples that differ in length; the context is the model's own with --quick
STEPS, EVERY, KILLED_AFTER = 240, 40, 100  # of a training, from checkpoint to checkpoint, and before the kill


class Failed(Exception):
    pass


class Demo:
    """Where things are, and what is said and found."""

    def __init__(self, options):
        self.penstock_path, self.quick, self.out = options.penstock, options.quick, options.out
        self.model = QUICK_MODEL if options.quick else MODEL
        self.config = self.out / "demo.toml"
        self.table, self.broken_table, self.training_table = (self.out / f"{name}.csv" for name in ("zbv", "broken", "zbv-2"))
        self.weights, self.dump, self.costs = self.out / "gpt.safetensors", self.out / "check", self.out / "costs.json"
        self.pairs = self.out / "docstrings.jsonl"
        self.lengths_context = QUICK_MODEL["context"] if options.quick else LENGTHS_CONTEXT
        self.predicted, self.run_folder, self.killed_folder = self.out / "predicted.json", self.out / "run", self.out / "killed"
        self.results = {"findings": [], "parts": []}  # what results.json holds, and the page is made of

    def part(self, heading):
        self.results["parts"].append([heading, ""])
        print(f"\n== {len(self.results['parts'])}. {heading} ==\n")

    def say(self, text):
        print(text, flush=True)
        self.results["parts"][-1][1] += f"{text}\n"

    def find(self, text):
        self.results["findings"].append(f"{len(self.results['parts'])}. {text}")
        self.say(f"-> {text}")

    def claim(self, holds, text):
        if not holds:
            raise Failed(text)
        self.find(text)

    def command(self, *arguments):
        return [str(self.penstock_path), *map(str, arguments)]

    def run(self, command, code=0):
        """Runs it, and says so; its standard output. Where it is to fail with `code`: its standard error."""
        self.say(f"$ {shlex.join(command)}")
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != code:
            raise Failed(f"exit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
        return done.stderr if code else done.stdout

    def penstock(self, *arguments, code=0):
        return self.run(self.command(*arguments), code)


def metrics_of(folder):
    """The steps of a run, of several lines of one the last; the last line may be half written while it runs, or where it was killed."""
    file = folder / "metrics.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    steps = {step["step"]: step for step in map(json.loads, lines)}
    return [steps[step] for step in sorted(steps)]


class Bystanders:
    """Measures which share of the cores other programs take."""

    def __init__(self):
        self.begin = self.sample()

    def sample(self):
        own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        user, nice, system, _, _, irq, softirq, steal = map(int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
        ticks = user + nice + system + irq + softirq + steal
        return time.monotonic(), ticks / os.sysconf("SC_CLK_TCK") - sum(usage.ru_utime + usage.ru_stime for usage in own)

    def share(self):
        seconds, busy = (after - before for before, after in zip(self.begin, self.sample()))
        return busy / seconds / os.cpu_count()


def write_config(demo):
    model = "\n".join(f"{key} = {value}" for key, value in demo.model.items())
    demo.config.write_text(f"""[model]
{model}
[data]
text = ["src"]
[train]
steps = {STEPS}
batch = 16
warmup = 10
validation_every = 0
validation_batches = 1
[pipeline]
actors = 2
schedule = "{demo.training_table}"
microbatches = 8
[run]
checkpoint_every = {EVERY}
""")


def from_pytorch(demo):
    import pytorch_side

    demo.part("A zero-bubble table and a GPT's weights, both from PyTorch")
    pytorch_side.write_zero_bubble_table(demo.table, 4, 8)
    pytorch_side.write_zero_bubble_table(demo.training_table, 2, 8)
    cells = demo.table.read_text().count(",") + 4
    demo.say(f"torch.distributed.pipelining wrote its ZB-V schedule for 4 ranks and 8 micro-batches: {cells} cells.")
    gpt = pytorch_side.make_gpt(**demo.model)
    pytorch_side.write_weights(demo.weights, gpt)
    parameters = sum(parameter.numel() for parameter in gpt.parameters())
    demo.say(f"PyTorch made a GPT of {demo.model['layers']} layers of width {demo.model['width']}: {parameters} parameters, in f64.\n")
    write_config(demo)
    demo.say(demo.penstock("verify", demo.table))
    demo.say(demo.penstock("simulate", demo.table, "--show"))
    options = ["--schedule", demo.table, "--actors", 4, "--dtype", "f64", "--init", demo.weights, "--dump", demo.dump]
    demo.say(demo.penstock("check", demo.config, *options))
    there, here = pytorch_side.read_tensors(demo.dump / "parameters.safetensors"), gpt.state_dict()
    same = there.keys() == here.keys() and all(there[name].equal(here[name]) for name in here)
    demo.claim(same, f"PyTorch's table ran on 4 actors, from PyTorch's weights: all {len(here)} tensors are the same to the bit")
    return gpt


def one_misplaced_action(demo):
    demo.part("One action out of place")
    rows = [line.split(",") for line in demo.table.read_text().splitlines()]
    rows[1].remove("1F3")
    rows[1].insert(rows[1].index("1I0") + 1, "1F3")
    demo.broken_table.write_text("".join(",".join(row) + "\n" for row in rows))
    demo.say("In the row of actor 1, 1F3 (forward of micro-batch 3 in stage 1) now stands after 1I0.\n")
    message = demo.penstock("verify", demo.broken_table, code=1)
    demo.say(message)
    cycle = re.search(r"^  cycle: (.*)$", message, re.MULTILINE)
    through = cycle and "1F3" in cycle[1]
    demo.claim(through, "the table with 1F3 out of place is rejected before anything runs, with a cycle that goes through 1F3")


def beside_autograd(demo, gpt):
    import pytorch_side

    demo.part("Loss and gradients beside PyTorch's autograd")
    loss, loss_difference, difference, worst = pytorch_side.compare_with_autograd(gpt, demo.dump)
    demo.say("The same batch through the PyTorch model, in f64; Penstock's figures are those of the 4 actors above.\n")
    demo.say(f"loss                           {loss:.15f}\n  relative difference          {loss_difference:.1e}")
    demo.say(f"largest gradient difference    {difference:.1e}  ({worst})\n")
    equal = loss_difference < 1e-12 and difference < 1e-10
    demo.claim(equal, f"the pipelined step is PyTorch's to rounding: loss to {loss_difference:.1e}, gradients to {difference:.1e}")


def relative_spread(values):
    """The width of their middle half as a share of the median."""
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / middle


def why_incomparable(demo, seconds, others):
    """Why these steps say nothing of a prediction; "" where they do."""
    if demo.quick:
        return "steps as short as these are not judged by their time"
    if others > 0.03:
        return f"the machine was too busy to compare, other programs took {100 * others:.0f} % of the cores meanwhile, which no profile can know"
    if relative_spread(seconds) > MOST_SPREAD:
        return f"the machine was too busy to compare, the middle half of the steps differ by {100 * relative_spread(seconds):.0f} %"
    return ""


def judge_time(demo, predicted, seconds, others):
    incomparable = why_incomparable(demo, seconds, others)
    demo.results["time"] = {"predicted": predicted, "measured": seconds, "others": others, "incomparable": incomparable}
    if incomparable:
        demo.find(f"the time is not judged: {incomparable}")
        return
    error, allowed = predicted / statistics.median(seconds) - 1, max(0.1, 2 * relative_spread(seconds))
    holds = abs(error) <= allowed
    demo.claim(holds, f"the step takes as long as predicted: {100 * error:+.1f} %, and {100 * allowed:.0f} % are allowed")


def predicted_and_measured(demo):
    demo.part("Predicted beside measured")
    bystanders = Bystanders()
    demo.penstock("profile", demo.config, "--out", demo.costs)
    tasks = len(json.loads(demo.costs.read_text())["tasks"])
    demo.say(f"{tasks} distinct tasks measured. What the training of this model on 2 actors will be:\n")
    demo.say(demo.penstock("simulate", demo.config, "--costs", demo.costs, "--timeline", demo.predicted))
    predicted = json.loads(subprocess.check_output(demo.command("simulate", demo.config, "--costs", demo.costs, "--json")))
    demo.penstock("train", demo.config, "--init", demo.weights, "--out", demo.run_folder)
    others = bystanders.share()
    demo.say(f"{STEPS} steps of it are done. Beside the prediction:\n")
    demo.say(demo.penstock("simulate", demo.config, "--costs", demo.costs, "--against", demo.run_folder))
    steps = metrics_of(demo.run_folder)
    for actor, (planned, found) in enumerate(zip(predicted["peak_bytes"], steps[-1]["peak_bytes"])):
        error = planned / found - 1
        demo.claim(abs(error) < 0.03, f"memory of actor {actor}: {planned} bytes predicted, {found} measured ({100 * error:+.2f} %)")
    demo.results["memory"] = {"predicted": predicted["peak_bytes"], "measured": steps[-1]["peak_bytes"]}
    judge_time(demo, predicted["step_seconds"], [step["seconds"] for step in steps[10:]], others)


def beside_the_peer(demo):
    demo.part("Speed beside torch.distributed.pipelining")
    demo.say("The same work in both, on two cores: a transformer of 8 layers of width 64, 16 micro-batches of 2 x 128 tokens, AdamW, f32.\n"
             "The peer's AdamW is fused, and its MKL is told to multiply as fast as it can on any processor. Median seconds of a step:\n")  # fmt: skip
    schedules = ["--ours", "1f1b", "gpipe", "--peers", "1F1B", "GPipe"]
    answer = demo.run([os.path.relpath(sys.executable), "bench/peer.py", "--width", "64", "--rounds", "1", "--fair", *schedules])
    demo.say(answer)
    ratio = float(answer.rsplit("= ", 1)[1])
    medians = re.findall(r"^(penstock|peer) +(\S+) +([\d.]+) s", answer, re.MULTILINE)
    demo.results["peer"] = {"ratio": ratio, "medians": [(who, schedule, float(seconds)) for who, schedule, seconds in medians]}
    demo.claim(ratio < 1, f"a step of Penstock takes {ratio:.2f} of the peer's time")


def train_and_kill(demo):
    """Starts the same training, and kills it in the middle. How many steps are done then."""
    command = demo.command("train", demo.config, "--init", demo.weights, "--out", demo.killed_folder)
    demo.say(f"$ {shlex.join(command)}")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and len(metrics_of(demo.killed_folder)) < KILLED_AFTER:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    if process.wait() != -signal.SIGKILL:
        raise Failed("the training had ended before it could be killed")
    return len(metrics_of(demo.killed_folder))


def killed_and_resumed(demo):
    demo.part("Killed, and resumed on three actors under another schedule")
    done = train_and_kill(demo)
    newest = max(int(path.name.split("-")[1]) for path in demo.killed_folder.glob("checkpoint-*") if (path / "manifest.json").exists())
    demo.say(f"Killed (SIGKILL) after step {done} of {STEPS}; the newest checkpoint is of step {newest}. On with three actors:\n")
    demo.penstock("train", "--resume", demo.killed_folder, "--actors", 3, "--schedule", "zb-h1")
    unbroken, resumed = metrics_of(demo.run_folder), metrics_of(demo.killed_folder)
    demo.say("step   unbroken, 2 actors   killed and resumed")
    for step in sorted({1, *range(EVERY, STEPS + 1, EVERY), newest + 1}):
        where = "2 actors" if step <= newest else "3 actors"
        demo.say(f"{step:4}   {unbroken[step - 1]['loss']:18.6f}   {resumed[step - 1]['loss']:10.6f}, {where}")
    demo.say("")
    losses = [[step["loss"] for step in run] for run in (unbroken, resumed)]
    demo.results["losses"] = {"unbroken": losses[0], "resumed": losses[1], "killed_after": done, "resumed_from": newest}
    whole = [step["step"] for step in resumed] == list(range(1, STEPS + 1))
    demo.claim(whole, f"killed after step {done}, on with three actors from step {newest}: every step is there")
    difference = max(abs(a - b) / a for a, b in zip(*losses))
    demo.claim(difference < 1e-4, f"the losses of all steps differ from the unbroken run's by at most {difference:.1e} of themselves")
    first, before, last = (statistics.mean(losses[1][end - 10 : end]) for end in (10, newest, STEPS))
    falls = f"{first:.3f} at first, {before:.3f} at the checkpoint, {last:.3f} at last"
    demo.claim(last < before < first, f"the loss, a mean of 10 steps, falls: {falls}")


def one_batch(demo, way, *arguments):
    """The fourth step of a training whose batches are cut this way: the same samples from the same parameters for all ways but rounding."""
    folder = demo.out / "lengths" / way
    settings = {**demo.model, "layers": 4, "context": demo.lengths_context, "documents": demo.pairs, "validation": 0}
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    demo.penstock("train", *sets, "--batch", LENGTHS_BATCH, "--actors", 2, *arguments, "--steps", 4, "--out", folder)
    return {**metrics_of(folder)[3], "timeline": folder / "timeline.json"}


def padded_packed_planned(demo):
    demo.part("One batch padded, packed and planned")
    demo.say("The functions of Python's library, each followed by what its docstring says, are documents of very different lengths:\n")
    subprocess.run([sys.executable, ROOT / "examples/docstrings.py", "--out", demo.pairs], check=True, stdout=subprocess.DEVNULL)
    demo.say(demo.penstock("data", "show", demo.pairs, "--pairs"))
    padded = one_batch(demo, "padded")
    tokens = padded["tokens_per_second"] * padded["seconds"]
    rows = next(n for n in (1, 2, 4, 8, 16, 32) if n * demo.lengths_context >= tokens or n == LENGTHS_BATCH)
    ways = {
        "padded": padded,
        "packed": one_batch(demo, "packed", "--set", "batch.planner=balanced", "--microbatches", rows),
        "planned": one_batch(demo, "planned", "--set", "batch.planner=searched", "--set", "batch.rows=ragged"),
    }
    demo.say(f"The same {LENGTHS_BATCH} documents, {tokens:.0f} tokens: padded to {demo.lengths_context} each; packed into {rows} rows; and cut, "
             "ordered and scheduled anew for this batch.\n\nway       step      tokens/s  loss")  # fmt: skip
    for way, step in ways.items():
        demo.say(f"{way:8}  {1e3 * step['seconds']:6.1f} ms  {step['tokens_per_second']:8.0f}  {step['loss']:.6f}")
    demo.say("")
    demo.results["lengths"] = {way: [step["seconds"], step["tokens_per_second"]] for way, step in ways.items()}
    difference = max(abs(step["loss"] / padded["loss"] - 1) for step in ways.values())
    demo.claim(difference < 1e-4, f"whichever way, the loss of the batch is the same: they differ by at most {difference:.1e} of it")
    ratio = ways["planned"]["tokens_per_second"] / padded["tokens_per_second"]
    if demo.quick:
        demo.find("the times are not judged: steps as short as these are not judged by their time")
    else:
        demo.claim(ratio > 1, f"planned, the step gets through {ratio:.1f} times the tokens per second of the padded one")
    titles = {
        "padded": f"padded: {LENGTHS_BATCH} documents in rows of {demo.lengths_context}",
        "packed": f"packed: the same documents in {rows} rows of {demo.lengths_context}",
        "planned": "planned: the same documents, cut, ordered and scheduled for this batch",
    }
    return [titled(step["timeline"], titles[way], demo.out / "lengths" / f"{way}.json") for way, step in ways.items()]


def titled(timeline, title, out):
    """A copy of a timeline's file under another title, which says more than the run's."""
    whole = json.loads(timeline.read_text())
    whole["penstock"]["title"] = title
    out.write_text(json.dumps(whole))
    return out


def timelines_of(demo):
    """The predicted step, and the measured one where the two can be compared."""
    measured = demo.run_folder / "timeline.json"
    time = demo.results["time"]
    median, here = statistics.median(time["measured"]), json.loads(measured.read_text())["penstock"]["makespan"]
    typical = abs(here / median - 1) <= max(0.1, 2 * relative_spread(time["measured"]))
    return [demo.predicted, measured] if typical and not time["incomparable"] else [demo.predicted]


def page(demo, lengths):
    file, timelines, ways = (demo.out / f"{name}.html" for name in ("demo", "timelines", "lengths"))
    print(f"\n== {len(demo.results['parts']) + 1}. One page ==\n")
    (demo.out / "results.json").write_text(json.dumps(demo.results, indent=1) + "\n")
    subprocess.run(demo.command("show", *timelines_of(demo), "--out", timelines), check=True, stdout=subprocess.DEVNULL)
    subprocess.run(demo.command("show", *lengths, "--out", ways), check=True, stdout=subprocess.DEVNULL)
    file.write_text(make_page(demo.results, timelines.read_text(), ways.read_text()))
    print(f"drawn in {file}")


def from_root(path):
    """As the messages show it: everything runs in the repository's root."""
    path = pathlib.Path(path).resolve()
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def prepare(demo):
    if not demo.penstock_path.exists():
        raise Failed(f"{demo.penstock_path} is not there: make build")
    demo.out.mkdir(parents=True, exist_ok=True)
    for folder in (demo.dump, demo.run_folder, demo.killed_folder, demo.out / "lengths"):
        shutil.rmtree(folder, ignore_errors=True)
    demo.costs.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=from_root, default=pathlib.Path("runs/demo"))
    parser.add_argument("--penstock", type=from_root, default=pathlib.Path("build/penstock"))
    demo = Demo(parser.parse_args())
    os.chdir(ROOT)
    try:
        prepare(demo)
        gpt = from_pytorch(demo)
        one_misplaced_action(demo)
        beside_autograd(demo, gpt)
        predicted_and_measured(demo)
        if not demo.quick:
            beside_the_peer(demo)
        killed_and_resumed(demo)
        page(demo, padded_packed_planned(demo))
    except Failed as failure:
        sys.exit(f"\nNOT AS CLAIMED: {failure}")


if __name__ == "__main__":
    main()
