#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FlexSP and InfiniPipe on a simulated cluster: batches of documents of very different lengths, beside packing, and beside both together.

    bench/long_documents.py [--cluster examples/clusters/a100-64.toml] [--contexts 131072 524288] [--scale 1] [--documents 512] [--batches 10] [--seed 1]

Costs: one device's step of the model is predicted (`penstock plan`, published figures) for sequences of three lengths; what a sequence adds to the
step is fixed + a2 s + a1 s^2 milliseconds exactly, and what it adds to memory is bytes per token. On d devices it takes 1/d of that and two
all-to-alls each way and layer (FlexSP's a3), over the cluster's links. Lengths: log-normal (median 384 times --scale, sigma 1.26), of which 1.6 %
are replaced by a Pareto tail of index 2 from 8192 times --scale on (the mean, the 90th and 99th percentile of FlexSP's million Wikipedia
lengths come out within a tenth), cut at the context.

A row is the mean over the same batches. `packed`: rows of up to a context's tokens, each document attending to itself, dealt to groups of the one
degree that is best for all batches among those that hold a whole context. `one degree`: `penstock batch groups` with one degree, the same for all
batches. `FlexSP`: its micro-batches and groups. `InfiniPipe`: `penstock batch split` and `chunks` on p stages of 64 / p devices, the p and number of
pieces that are best for each batch. `replicas`: the same on d replicas of such pipelines, among which documents are dealt by their work: FlexSP's groups
with pipelines in them. Optimiser, gathers of parameters and sums of gradients are the same work for all, and left out.
"""
import argparse
import json
import math
import random
import statistics
import tomllib

from common import ROOT, penstock

SAMPLE = (8192, 65536, 262144)  # lengths that are predicted
USABLE = 0.95  # of a device's memory
STATE_BYTES = 16  # of a parameter with its gradient and AdamW's moments, over all devices
TAIL, TAIL_FROM, MEDIAN, SIGMA = 0.016, 8192, 384, 1.26


def predicted(options, length, sequences):
    settings = {"layers": options.layers, "width": options.width, "heads": options.heads, "vocabulary": options.vocabulary, "tied": 0, "dtype": "bf16",
                "context": length, "batch": sequences, "microbatches": sequences, "actors": 1}  # fmt: skip
    flags = [part for key, value in settings.items() for part in ("--set", f"{'model.' * (key == 'vocabulary')}{key}={value}")]
    found = json.loads(penstock("plan", "gpt", "--devices", 1, "--bandwidth", 1e11, "--device", options.device, "--vary", "slices=1", "--json", *flags))
    return found["configurations"][0]


def fit(points):
    """fixed, a2, a1 of the parabola through three points."""
    (x0, y0), (x1, y1), (x2, y2) = points
    first, second = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    a1 = (second - first) / (x2 - x0)
    a2 = first - a1 * (x0 + x1)
    return y0 - a2 * x0 - a1 * x0 * x0, a2, a1


class Costs:
    """Milliseconds, tokens and bytes of the model on the cluster."""

    def __init__(self, options):
        cluster = tomllib.loads((ROOT / options.cluster).read_text())
        figures = tomllib.loads((ROOT / "src/predict/simulate/devices.toml").read_text())
        options.device = cluster["devices"][0]["device"]
        self.devices = cluster["devices"][0]["count"]
        self.node = cluster["levels"][0]["size"]
        self.inside = figures["links"][cluster["levels"][0]["link"]]["bandwidth"] * 1e6  # bytes a millisecond
        self.outside = cluster["levels"][1]["bandwidth"] * 1e6
        memory = figures["devices"][options.device]["memory"] * 1e9
        one = {length: predicted(options, length, 1) for length in SAMPLE}
        two = {length: predicted(options, length, 2) for length in SAMPLE}
        self.fixed, self.a2, self.a1 = fit([(s, 1e3 * (two[s]["predicted_time"] - one[s]["predicted_time"])) for s in SAMPLE])
        self.token_bytes = (one[SAMPLE[1]]["memory"][0] - one[SAMPLE[0]]["memory"][0]) / (SAMPLE[1] - SAMPLE[0])
        self.parameters = 12 * options.layers * options.width**2 + 2 * options.vocabulary * options.width
        self.capacity = (USABLE * memory - STATE_BYTES * self.parameters / self.devices) / self.token_bytes
        self.a3 = 16 * options.layers * options.width

    def bandwidth(self, degree):
        """Bytes a millisecond at which a device of a group sends all that its tokens send: to itself nothing, and inside and outside of its node at once."""
        node = min(degree, self.node)
        return degree / max((node - 1) / self.inside, (degree - node) / self.outside) if degree > 1 else math.inf

    def sent(self, tokens, degree):
        return self.a3 * tokens / (degree * self.bandwidth(degree)) if degree > 1 else 0

    def time(self, tokens, degree):
        return (self.a1 * tokens * tokens + self.a2 * tokens) / degree + self.sent(tokens, degree)

    def degrees(self):
        return [1 << k for k in range(self.devices.bit_length())]

    def instance(self, lengths):
        bandwidth = {str(d): self.bandwidth(d) for d in self.degrees() if d > 1}
        return {"lengths": lengths, "devices": self.devices, "capacity": self.capacity, "a1": self.a1, "a2": self.a2, "a3": self.a3,
                "beta": self.fixed, "bandwidth": bandwidth}  # fmt: skip


def draw(generator, count, context, scale):
    def length():
        if generator.random() < TAIL:
            return scale * TAIL_FROM * generator.random() ** -0.5
        return scale * min(TAIL_FROM, MEDIAN * math.exp(generator.gauss(0, SIGMA)))

    return sorted((max(1, min(context, round(length()))) for _ in range(count)), reverse=True)


def dealt(items, places, work):
    """Items among so many places, the one with most work first to where least is."""
    parts = [[] for _ in range(places)]
    sums = [0.0] * places
    for item in sorted(items, key=work, reverse=True):
        least = sums.index(min(sums))
        parts[least].append(item)
        sums[least] += work(item)
    return parts, max(sums)


def packed_rows(lengths, context):
    """First fit, the longest first."""
    rows = []
    for length in lengths:
        row = next((row for row in rows if sum(row) + length <= context), None)
        rows.append([length]) if row is None else row.append(length)
    return rows


def packed(costs, lengths, context, degree):
    rows = packed_rows(lengths, context)
    return dealt(rows, costs.devices // degree, lambda row: costs.fixed + sum(costs.time(s, degree) for s in row))[1]


def solve(kind, instance):
    return json.loads(penstock("batch", kind, json.dumps(instance), "--json"))


def grouped(costs, lengths, degree=None):
    only = {"least_degree": degree, "most_degree": degree} if degree else {}
    return solve("groups", {**costs.instance(lengths), **only, "micro_batches": True})["milliseconds"]


def pipelined(costs, lengths, stages, degree, pieces):
    """InfiniPipe's step on so many stages of so many devices; infinite where what lives at once does not fit."""
    split = solve("split", {"lengths": lengths, "pieces": pieces, "a1": costs.a1, "a2": costs.a2})
    tokens = [sum(chunk) for sequence in split["sequences"] for chunk in sequence]
    times = [time / degree + costs.sent(n, degree) + costs.fixed for time, n in zip(split["times"], tokens)]
    table = solve("chunks", {"actors": stages, "chunks": [len(sequence) for sequence in split["sequences"]], "forward": [t / 3 / stages for t in times],
                             "backward": [2 * t / 3 / stages for t in times], "sizes": tokens})  # fmt: skip
    room = costs.capacity * degree * stages
    return table["makespan"] if max(table["peak_live"]) <= room else math.inf


def best_pipelines(costs, lengths, replicas):
    """The fastest (milliseconds, words) of pipelines on so many replicas."""
    devices = costs.devices // replicas
    best = (math.inf, "")
    for stages in (1 << k for k in range(devices.bit_length())):
        if stages > 16:
            break
        degree = devices // stages
        parts = [part for part in dealt(lengths, replicas, lambda s: costs.time(s, degree))[0] if part]
        for pieces in (1, 4, 16) if stages > 1 else (1,):
            time = max(pipelined(costs, sorted(part, reverse=True), stages, degree, pieces) for part in parts)
            best = min(best, (time, f"{replicas} x {stages} stages x {degree} devices, {pieces} pieces"))
    return best


def holding(costs, context):
    """Degrees of groups that hold a whole context."""
    return [d for d in costs.degrees() if d * costs.capacity >= context]


def table(costs, batches, context):
    """(way, mean milliseconds, words) of each way."""
    fixed = {d: statistics.mean(packed(costs, lengths, context, d) for lengths in batches) for d in holding(costs, context)}
    single = {d: statistics.mean(grouped(costs, lengths, d) for lengths in batches) for d in holding(costs, context)}
    for name, found in (("packed", fixed), ("one degree", single)):
        degree = min(found, key=found.get)
        yield name, found[degree], f"degree {degree}"
    yield "FlexSP", statistics.mean(grouped(costs, lengths) for lengths in batches), ""
    alone = [best_pipelines(costs, lengths, 1) for lengths in batches]
    yield "InfiniPipe", statistics.mean(time for time, _ in alone), statistics.mode(words for _, words in alone)
    every = [min([one, *(best_pipelines(costs, lengths, r) for r in costs.degrees()[1:-2])]) for one, lengths in zip(alone, batches)]
    yield "replicas", statistics.mean(time for time, _ in every), statistics.mode(words for _, words in every)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="examples/clusters/a100-64.toml")
    parser.add_argument("--contexts", type=int, nargs="+", default=[131072, 524288])
    for name, value in {"scale": 1, "documents": 512, "batches": 10, "seed": 1, "layers": 32, "width": 4096, "heads": 32, "vocabulary": 32000}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    costs = Costs(options)
    print(f"a sequence of s tokens: {costs.fixed:.3g} + {costs.a2:.3e} s + {costs.a1:.3e} s^2 ms; {costs.token_bytes / 1e6:.2f} MB a token, "
          f"{costs.capacity:.0f} tokens a device; seed {options.seed}")  # fmt: skip
    for context in options.contexts:
        generator = random.Random(options.seed)
        batches = [draw(generator, options.documents, context, options.scale) for _ in range(options.batches)]
        tokens = statistics.mean(sum(lengths) for lengths in batches)
        print(f"\ncut at {context}, {tokens:.0f} tokens a batch, longest {max(lengths[0] for lengths in batches)}\n\n"
              "| way | step, ms | of packed | tokens/s | |\n|---|---|---|---|---|")  # fmt: skip
        base = None
        for name, time, words in table(costs, batches, context):
            base = base or time
            print(f"| {name} | {time:.0f} | {time / base:.3f} | {1e3 * tokens / time:.0f} | {words} |", flush=True)


if __name__ == "__main__":
    main()
