#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The system of each paper beside what Penstock finds without being told which: in the same simulation, with no more memory than the paper's takes.

    bench/papers.py [--only gpipe,xpipe] [--size small|large]

A case is a paper's system in a setting where its idea matters, once on four devices or so, where a search proves its answer or nearly, and once on 16
to 64. The paper's is the fastest of its commands. What is found is the fastest of the commands beside it that holds no more memory (`{memory}`, the
largest of a device's), and in a window of several steps reads nothing later (`{staleness}`, in updates); both are read from the paper's answer. All times of
a case are of one simulation, in one unit; a ratio below 1 says that what was found is faster. Plans and the largest searches end by seconds, so a
slower machine may find less.
"""
import argparse
import collections
import functools
import itertools
import json
import math
import pathlib
import random
import re
import shlex
import tempfile

import long_documents
from common import ROOT, costs_file, penstock

SEARCH = "schedule search --seconds 60 --activation-limit {memory}"
WINDOW = "schedule search --seconds 60 --activation-limit {memory} --staleness {staleness} --out {table} -> simulate {table}"
FILLED = "schedule search --seconds 60 --activation-limit {memory} --out {table} -> simulate {table}"
BEST = "plan --planner best --seconds 60 --memory-limit {memory}"
SEQUENCES = "plan --planner sequences --only slices=1,slices=8"
EXAMPLES = ROOT / "examples"
CLUSTERS = EXAMPLES / "clusters"
LONG = ("gpt --devices 16 --bandwidth 1e11 --figures a100-80 --set layers=16 --set width=4096 --set heads=32 --set model.vocabulary=32000 --set tied=0 "
        "--set dtype=bf16 --set context=65536 --set batch=8 --set microbatches=8")  # fmt: skip
SHORT = ("gpt --devices 4 --bandwidth 1e11 --figures a100-80 --set layers=8 --set width=1024 --set heads=16 --set tied=0 --set dtype=bf16 "
         "--set context=16384 --set batch=4 --set microbatches=4 --slice-unit 1024")  # fmt: skip
WIDE = "gpt --set layers=24 --set width=2048 --set heads=16 --set context=1024 --set model.vocabulary=50304 --set tied=0 --set dtype=bf16"
SMALL_GPT = "gpt --set layers=8 --set width=512 --set heads=8 --set context=256"


def drawn(count, median, sigma, most, seed=1):
    """Lengths, log-normal."""
    generator = random.Random(seed)
    return [max(1, min(most, round(median * math.exp(generator.gauss(0, sigma))))) for _ in range(count)]


def images(count, seed=1):
    """The images of each micro-batch: 0 to 8."""
    generator = random.Random(seed)
    return [generator.randint(0, 8) for _ in range(count)]


# The time that a stage takes for n samples of s tokens, as `penstock batch` reads it.
PADDED = {"fixed": 10, "linear": 4, "quadratic": 1024}
# FlexSP's: a sequence of s tokens on devices of 10,000 tokens each.
GROUPS = {"devices": 8, "capacity": 10000, "a1": 5e-6, "a2": 0.18, "a3": 2, "beta": 100, "bandwidth": {"2": 20, "4": 10, "8": 5}}
DOCUMENTS = {"documents": 256, "context": 131072, "scale": 1}
DOCUMENT_WAYS = ["documents groups", "documents degrees", "documents pipeline", "documents replicas"]


# Inputs are those of all commands: flags, or an instance of `penstock batch`, to which a command may add keys. `a -> b`: b reads the {table} that a has
# written. `a | words`: of its answers those with these words. `{costs:2,1}`: a file of measured costs, in which a stage's F, I and W take as long each.
# `documents WAY`: see documents().
Case = collections.namedtuple("Case", "name size setting inputs papers finders")
CASES = [Case(*case) for case in [
    ("gpipe", "small", "4 actors x 8", "--actors 4 --microbatches 8", ["simulate gpipe"], [SEARCH]),
    ("gpipe", "large", "32 actors x 64", "--actors 32 --microbatches 64", ["simulate gpipe"], [SEARCH]),
    ("jaxpp", "small", "4 actors x 8, 2 chunks", "--actors 4 --microbatches 8 --chunks 2", ["simulate dualpipe-v-jaxpp"], [SEARCH]),
    ("jaxpp", "large", "16 actors x 64, 2 chunks", "--actors 16 --microbatches 64 --chunks 2", ["simulate dualpipe-v-jaxpp"], [SEARCH]),
    ("zeropp", "small", "4 actors x 8, 2 chunks, gathers of 1 and sums of 1", "--actors 4 --microbatches 8 --chunks 2 --gather 1 --reduce 1 --parameters 1",
     ["simulate zeropp --unit 4", "simulate zeropp --unit 8"], [SEARCH]),
    ("zeropp", "large", "64 A100, GPT of 6.2 billion, batch 512", f"gpt --cluster {CLUSTERS}/a100-64.toml --batch 512 --microbatch-sizes 1 --states 2+2+12 --set layers=30 "
     "--set width=4096 --set heads=32 --set context=2048 --set model.vocabulary=50304 --set tied=0 --set dtype=bf16",
     ["plan --planner degrees --only schedule=zeropp,pipe=8"], ["plan --planner degrees --memory-limit {memory}"]),
    ("bitpipe", "small", "4 actors x 4, 2 chunks, 2 copies", "--actors 4 --microbatches 4 --chunks 2", ["simulate bitpipe"], [SEARCH + " --copies 2"]),
    ("bitpipe", "large", "16 actors x 32, 2 chunks, 2 copies", "--actors 16 --microbatches 32 --chunks 2", ["simulate bitpipe"], [SEARCH + " --copies 2"]),
    ("crosspipe", "small", "4 actors x 8, latency 2 on one link", "--actors 4 --microbatches 8 --link 2-3:latency=2",
     ["simulate crosspipe --in-flight 8 --transfers 0,0,2"], [SEARCH]),
    ("crosspipe", "large", "16 actors x 64, latency 8 on the middle link", "--actors 16 --microbatches 64 --link 7-8:latency=8",
     ["simulate crosspipe --transfers 0,0,0,0,0,0,0,8,0,0,0,0,0,0,0"], [SEARCH]),
    ("flexpipe", "small", "4 actors x 8, stages of 3, 2, 2 and 3", "--actors 4 --microbatches 8 --latency 0 --costs {costs:3,2,2,3}",
     [f"simulate {EXAMPLES}/schedules/{rules}.rules" for rules in ("1f1b", "eager-1f1b", "gpipe", "zb-h1")], [SEARCH]),
    ("flexpipe", "large", "16 actors x 64, stages of 2 and 3 in turn", "--actors 16 --microbatches 64 --latency 0 --costs {costs:" + ",".join(["2,3"] * 8) + "}",
     [f"simulate {EXAMPLES}/schedules/{rules}.rules" for rules in ("1f1b", "eager-1f1b", "zb-h1")], [SEARCH]),
    *((name, size, setting, inputs, [f"{of} | schedule={name}"], [of])
      for name in ("terapipe", "slimpipe", "helixpipe")
      for size, setting, inputs, of in (("small", "4 A100, 16,384 tokens x 4", SHORT, f"{SEQUENCES},slices=planned,pipeline.context=1"),
                                        ("large", "16 A100, 65,536 tokens x 8", LONG, f"{SEQUENCES},pipeline.context=2"))),
    ("dynapipe", "small", "4 actors, 10 samples", {"lengths": [100, 96, 64, 60, 33, 32, 17, 16, 8, 8], "actors": 4, **PADDED, "memory": 400},
     ["batch plan"], ["batch search", 'batch search {"ragged": true}']),
    ("dynapipe", "large", "16 actors, 256 samples of 8 to 2,048", {"lengths": drawn(256, 160, 1, 2048), "actors": 16, **PADDED, "memory": 16384},
     ["batch plan"], ["batch search", 'batch search {"ragged": true}']),
    ("flexsp", "small", "8 devices, 5 sequences", {"lengths": [20000, 9900, 9900, 9900, 9900], **GROUPS}, ["batch groups"],
     ["batch groups", *(f'batch groups {{"least_degree": {d}, "most_degree": {d}}}' for d in (4, 8))]),
    ("flexsp", "large", "64 A100, 256 documents like Wikipedia's", DOCUMENTS, ["documents groups"], DOCUMENT_WAYS),
    ("infinipipe", "small", "4 actors, documents of 4, 3, 2, 1, 1 and 1 slices", {"actors": 4}, ['batch chunks {"chunks": [4, 3, 2, 1, 1, 1]}'],
     ['batch chunks {"chunks": [4, 3, 2, 1, 1, 1]}', 'batch table {"forward": [4, 3, 2, 1, 1, 1], "sizes": [4, 3, 2, 1, 1, 1], "cap": {memory}}']),
    ("infinipipe", "large", "64 A100, 256 documents 16 times as long", {**DOCUMENTS, "scale": 16}, ["documents pipeline"], DOCUMENT_WAYS),
    ("dip", "small", "4 actors, 4 micro-batches of 0 to 8 images", {"actors": 4, "images": images(4), "part": 2, "backbone": 4}, ["batch modules"],
     [f'batch modules {{"folded": {folded}, "split": true, "most_live": {{memory}}}}' for folded in ("false", "true")]),
    ("dip", "large", "16 actors, 16 micro-batches of 0 to 8 images", {"actors": 16, "images": images(16), "part": 2, "backbone": 4}, ["batch modules"],
     [f'batch modules {{"folded": {folded}, "split": true, "most_live": {{memory}}}}' for folded in ("false", "true")]),
    ("xpipe", "small", "4 actors x 4, 4 steps", "--actors 4 --microbatches 4 --window 4", ["simulate xpipe"], [WINDOW]),
    ("xpipe", "large", "16 actors x 16, 4 steps", "--actors 16 --microbatches 16 --window 4", ["simulate xpipe"], [WINDOW]),
    ("hetpipe", "small", "2 A100, 2 V100, two encoders", f"{EXAMPLES}/graphs/two-encoders.json --cluster {CLUSTERS}/mixed-4.toml", ["plan --planner hetpipe"], [BEST]),
    ("hetpipe", "large", "16 actors x 8, 8 steps", "--actors 16 --microbatches 8 --window 8", ["simulate hetpipe"], [WINDOW]),
    ("layerpipe", "small", "stages of 4, 2, 1, 1, 20 steps", "--actors 4 --microbatches 1 --window 20 --latency 0 --costs {costs:4,2,1,1}",
     ["simulate layerpipe", "simulate layerpipe --balance 4,2,1,1"], [WINDOW]),
    ("layerpipe", "large", "16 stages of 4, 3, 2, 1 in turn, 32 steps", "--actors 16 --microbatches 1 --window 32 --latency 0 --costs {costs:" + ",".join(["4,3,2,1"] * 4) + "}",
     ["simulate layerpipe", "simulate layerpipe --balance " + ",".join(["4,3,2,1"] * 4)], [WINDOW]),
    ("nestpipe", "small", "4 actors x 4, 4 steps", "--actors 4 --microbatches 4 --window 4", ["simulate nestpipe"], [WINDOW]),
    ("nestpipe", "large", "16 actors x 16, 4 steps", "--actors 16 --microbatches 16 --window 4", ["simulate nestpipe"], [WINDOW]),
    ("graphpipe", "small", "4 devices, two encoders", f"{EXAMPLES}/graphs/two-encoders.json --devices 4 --bandwidth 1e9 --no-replicas", ["plan --planner graphpipe"],
     [BEST]),
    ("graphpipe", "large", "16 V100, 4 branches of 8 layers", f"multimodal --set branches=4 --set layers=8 --set width=512 --set context=260 --cluster {CLUSTERS}/v100-16.toml "
     "--batch 128", ["plan --planner graphpipe"], [BEST]),
    *((planner, size, setting, inputs, [f"plan --planner {planner}"], [BEST])
      for planner in ("dapple", "spp")
      for size, setting, inputs in (("small", "4 V100, GPT of 8 layers", f"{SMALL_GPT} --cluster {CLUSTERS}/v100-4.toml --batch 64"),
                                    ("large", "16 V100, GPT of 24 layers", f"{WIDE} --cluster {CLUSTERS}/v100-16.toml --batch 128"))),
    ("bapipe", "small", "2 A100, 2 V100, GPT of 8 layers", f"{SMALL_GPT} --cluster {CLUSTERS}/mixed-4.toml --batch 64", ["plan --planner bapipe"], [BEST]),
    ("bapipe", "large", "16 V100, GPT of 24 layers", f"{WIDE} --cluster {CLUSTERS}/v100-16.toml --batch 128", ["plan --planner bapipe"], [BEST]),
    ("dawnpiper", "small", "4 V100, GPT of 8 layers", f"{SMALL_GPT} --cluster {CLUSTERS}/v100-4.toml --batch 64", ["plan --planner dawnpiper"], [BEST]),
    ("dawnpiper", "large", "16 V100, GPT of 24 layers", f"{WIDE} --cluster {CLUSTERS}/v100-16.toml --batch 128", ["plan --planner dawnpiper"], [BEST]),
    ("diffusionpipe", "small", "4 actors x 4, frozen layers of 80 % of 1F1B's idle time", "--actors 4 --microbatches 4",
     ["simulate 1f1b --fill 10x2.88"], [FILLED + " --fill 10x2.88"]),
    ("diffusionpipe", "large", "16 actors x 32, frozen layers of 80 % of 1F1B's idle time", "--actors 16 --microbatches 32",
     ["simulate 1f1b --fill 20x28.8"], [FILLED + " --fill 20x28.8"]),
    ("sizing", "small", "4 V100, GPT of 8 layers, replicas", f"{SMALL_GPT} --cluster {CLUSTERS}/v100-4.toml --batch 64",
     ["plan --planner degrees --only pipe=1,tensor=1,context=1,zero=0"], [BEST]),
    ("sizing", "large", "64 A100, GPT of 24 layers, replicas", f"{WIDE} --cluster {CLUSTERS}/a100-64.toml --batch 512",
     ["plan --planner degrees --only pipe=1,tensor=1,context=1,zero=0"], [BEST]),
]]  # fmt: skip


@functools.cache
def document_costs():
    options = argparse.Namespace(cluster=f"{CLUSTERS}/a100-64.toml", layers=32, width=4096, heads=32, vocabulary=32000)
    return long_documents.Costs(options)


def documents(way, inputs):
    """A way to train on documents of different lengths, and its time (bench/long_documents.py); each keeps the devices' memory."""
    costs = document_costs()
    lengths = long_documents.draw(random.Random(1), inputs["documents"], inputs["context"], inputs["scale"])
    if way == "groups":
        return long_documents.grouped(costs, lengths), "FlexSP's groups"
    if way == "degrees":
        return min((long_documents.grouped(costs, lengths, degree), f"groups of {degree}") for degree in long_documents.holding(costs, inputs["context"]))
    return min(long_documents.best_pipelines(costs, lengths, replicas) for replicas in ([1] if way == "pipeline" else costs.degrees()[1:-2]))


Answer = collections.namedtuple("Answer", "time memory staleness words proof")  # `memory`: of the fullest device; `words`: what takes this time
SHOWN = ("schedule", "slices", "chunks", "qkv_in_attention", "recompute")  # of a whole configuration's settings, where they are not the usual


def largest(values):
    return max(values, default=None) if isinstance(values, list) else values


def most_live(ranks):
    """The most segments of DIP's orders between F and B, or W, at once."""
    return max(max(itertools.accumulate({"F": 1, "I": 0}.get(run[-1], -1) for run in rank)) for rank in ranks)


def time_in(out):
    return next(out[key] for key in ("makespan", "predicted_time", "time", "milliseconds") if key in out)


def answers_of(out, words, proof):
    """The answers in a command's JSON: of whole configurations all that fit."""
    if "configurations" in out:
        settings = [(one, {key.split(".")[-1]: value for key, value in one["settings"].items()}) for one in out["configurations"] if one.get("fits")]
        return [Answer(one["predicted_time"], largest(one["memory"]), 0, " ".join(f"{key}={of[key]}" for key in SHOWN if of.get(key, "none") not in ("none", "1")), "")
                for one, of in settings]  # fmt: skip
    if (versions := largest(out.get("versions", 1))) > 1:
        words += f", {versions} versions"
    memory = most_live(out["ranks"]) if "ranks" in out else largest(out.get("peak_live", out.get("peak_bytes")))
    return [Answer(time_in(out.get("fill", out)), memory, largest(out.get("staleness", 0)), words, proof)]


def proof_of(out):
    """The proof of an answer in words, where it is of all that a search looks at."""
    if "configurations" in out:
        return ""
    bound = out.get("lower_bound", 0) if out.get("kind") != "table" else 0
    if out.get("proven") or out.get("optimal") or (bound > 0 and time_in(out) <= bound * (1 + 1e-9)):
        return ", proven"
    return f", at most {100 * (time_in(out) / bound - 1):.1f} % above the least" if bound > 0 else ""


def words_of(command, out):
    """The schedule, planner or configuration of the answer, in few words."""
    verb, kind, *more = command.split(maxsplit=2)
    if verb == "batch":
        return ", ".join([out.get("found_by", kind), *(key for key, value in json.loads(more[0] if more else "{}").items() if value is True)])
    if "mesh" in out:
        return f"{out['schedule']} of {out['chunks']} chunks, {out['mesh'].removeprefix('--mesh ')}, ZeRO-{out['zero']}{', recomputed' if out['recompute'] else ''}"
    if "planner" in out:
        return out["planner"] + (f": {out['degrees']}" if "degrees" in out else "")
    return out.get("found_by", " ".join([kind, *more]).replace(f"{EXAMPLES}/schedules/", ""))


def program(command, inputs, folder):
    """The JSON of a command of the program with the case's inputs."""
    if isinstance(inputs, dict):
        verb, kind, *more = command.split(maxsplit=2)
        return json.loads(penstock(verb, kind, json.dumps({**inputs, **(json.loads(more[0]) if more else {})}), "--json"))
    for given in re.findall(r"{costs:([0-9,]*)}", inputs):
        inputs = inputs.replace(f"{{costs:{given}}}", str(costs_file([(time, time, time) for time in map(float, given.split(","))], folder / "costs.json")))
    if "{table}" in command and "--out" not in command:  # a table says itself what shape it has
        inputs = re.sub(r"--(actors|microbatches|chunks|window) \S+", "", inputs)
    return json.loads(penstock(*shlex.split(f"{command} {inputs}".replace("{table}", str(folder / "table.csv"))), "--json"))


@functools.cache
def cached(command, inputs):
    """All answers of a command. `inputs`: text, or that of JSON."""
    given = json.loads(inputs) if inputs.startswith("{") else inputs
    if command.startswith("documents "):
        time, words = documents(command.split()[1], given)
        return [Answer(time, None, 0, words, "")]
    with tempfile.TemporaryDirectory() as name:
        first, *then = command.split(" -> ")
        out = program(first, given, pathlib.Path(name))
        words, proof = words_of(first, out), "" if "--fill" in command else proof_of(out)
        for step in then:
            out = program(step, given, pathlib.Path(name))
        return answers_of(out, words, proof)


def fastest(commands, inputs, limit=None):
    """The fastest of all answers of these commands; `limit`: the answer whose memory and staleness they keep to."""
    found = []
    for command in commands:
        command, _, wanted = command.partition(" | ")
        if limit:
            command = command.replace("{memory}", repr(limit.memory)).replace("{staleness}", str(limit.staleness))
        found += [one for one in cached(command, inputs if isinstance(inputs, str) else json.dumps(inputs)) if wanted in one.words]
    if limit:
        found = [one for one in found if one.staleness <= limit.staleness and (limit.memory is None or one.memory <= limit.memory * (1 + 1e-9))]
    return min(found, key=lambda one: one.time)


def compared(case):
    """The paper's answer and what is found."""
    theirs = fastest(case.papers, case.inputs)
    return theirs, fastest(case.finders, case.inputs, theirs)


def row_of(case):
    theirs, ours = compared(case)
    late = f", at most {theirs.staleness} update{'s' * (theirs.staleness > 1)} late" if theirs.staleness else ""
    row = (f"| {case.name} | {case.setting}{late} | {theirs.time:.4g} ({theirs.words}) | {ours.time:.4g}{ours.proof} | {ours.words} "
           f"| {ours.time / theirs.time:.3f} |")  # fmt: skip
    return re.sub(r"((,[\d.]+){3})(,[\d.]+){4,}", r"\1,...", row)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names of papers, between commas")
    parser.add_argument("--size", choices=["small", "large"])
    options = parser.parse_args()
    names = {case.name for case in CASES}
    if unknown := set((options.only or "").split(",")) - names - {""}:
        parser.error(f"--only {','.join(sorted(unknown))}: there is no such system; there are {', '.join(sorted(names))}")
    print("| name | setting | the paper's | found | by | ratio |\n|---|---|---|---|---|---|")
    for case in CASES:
        if case.name in (options.only or case.name).split(",") and case.size in (options.size or case.size):
            print(row_of(case), flush=True)


if __name__ == "__main__":
    main()
