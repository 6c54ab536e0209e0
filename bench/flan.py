#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DynaPipe's plans beside padding and packing on a simulated cluster of 32 A100: GPT-6.7B and T5-11B on lengths like FLAN's.

    bench/flan.py [--tokens 65536] [--batches 3] [--contexts 512 1024 2048 4096 8192] [--seed 1]

No GPU takes part. What a stage takes for n samples of s tokens is the roofline of published figures (src/predict/simulate/devices.toml, with
attention's scores in memory as the kernels of 2021 to 2023 had them): launches, products at the efficiency that Megatron-LM's runs had, passes
over scores, and the sums of tensor parallelism over NVLink. Lengths are drawn (docs/batches.md); a batch has so many real tokens. Each way to
form micro-batches takes the tensor x pipe x data split of the 32 devices that is best for it among those whose states fit. Padding and packing
run 1F1B; DynaPipe's plans come from `penstock batch plan`, ours from `penstock batch search` (padded rows, and ragged ones), whose tables'
times are simulated; ours take DynaPipe's split. The optimiser and the sums of gradients over replicas are the same for all and left out. Published: up to 3.25 times
packing for GPT, 4.39 for T5.
"""
import argparse
import json
import math
import random
import tomllib

from common import ROOT, penstock

DEVICE = tomllib.loads((ROOT / "src/predict/simulate/devices.toml").read_text())["devices"]["a100-80-2021"]
PEAK = DEVICE["bf16"] * 1e12 * DEVICE["efficiency"]
MEMORY, BANDWIDTH, NVLINK, LAUNCH = 40e9, 1555e9, 300e9, 4e-6
DEVICES, BYTES, STATE_BYTES = 32, 2, 16  # of an activation; of a parameter with its gradient and AdamW's moments
SCORE_PASSES = 8  # over attention's scores, forward: written and read by product, mask, softmax, dropout and product
FLAN = [(0.45, 75, 0.45, 3, 0.5), (0.25, 230, 0.5, 6, 0.9), (0.18, 45, 0.6, 35, 0.6), (0.12, 700, 0.6, 60, 0.5)]

# Layers, width, width of attention (heads times channels), heads, width of the MLP, whether there is a decoder of as many layers.
MODELS = {"GPT-6.7B": (32, 4096, 4096, 32, 16384, False), "T5-11B": (24, 1024, 16384, 128, 65536, True)}


def lengths(generator, tokens, context):
    """Pairs of input and target until they hold so many tokens, each cut at the context."""
    pairs = []
    while tokens > 0:
        _, inputs, spread, targets, target_spread = generator.choices(FLAN, [kind[0] for kind in FLAN])[0]
        pair = [min(context, max(1, round(median * math.exp(generator.gauss(0, sigma))))) for median, sigma in ((inputs, spread), (targets, target_spread))]
        pairs.append(pair)
        tokens -= sum(pair)
    return pairs


def parameters(model):
    layers, width, attention, _, mlp, decoder = MODELS[model]
    return layers * (4 * width * attention + 2 * width * mlp) + (layers * (8 * width * attention + 2 * width * mlp) if decoder else 0)


def costs(model, tensor, pipe):
    """F and B of a stage as fixed + n (s/linear + s^2/quadratic) milliseconds; bytes that a token stores there."""
    layers, width, attention, heads, mlp, decoder = MODELS[model]
    here = layers * (2 if decoder else 1) / pipe
    products = (8 * width * attention + 4 * width * mlp) / tensor
    sums = 2 * 2 * (tensor - 1) / tensor * width * BYTES / NVLINK  # two rings a layer, of each token's activations
    linear = products / PEAK + sums + 20 * width * BYTES / BANDWIDTH  # norms, residuals, dropout, the MLP's function
    scores = (4 * attention / PEAK + SCORE_PASSES * heads * BYTES / BANDWIDTH) / tensor
    scale = 3 * here * 1e3  # backwards take twice the forwards; milliseconds
    stored = here * (34 * width if not decoder else 10 * width + 2 * BYTES * (4 * attention + 2 * mlp)) / tensor
    return {"fixed": scale * 25 * LAUNCH, "linear": 1 / (scale * linear), "quadratic": 1 / (scale * scores)}, stored


def time_of(cost, samples, length):
    return cost["fixed"] + samples * (length / cost["linear"] + length * length / cost["quadratic"])


def splits(model):
    for tensor in (1, 2, 4, 8):
        for pipe in (1, 2, 4, 8, 16):
            data = DEVICES // (tensor * pipe)
            if tensor * pipe * data == DEVICES and data <= 8 and not (MODELS[model][5] and pipe == 1):
                room = 0.9 * MEMORY - STATE_BYTES * parameters(model) / (tensor * pipe)
                if room > 0:
                    yield tensor, pipe, data, room


def solve(kind, instance):
    return json.loads(penstock("batch", kind, json.dumps(instance), "--json"))


def rows_time(cost, rows, context, pipe, data):
    """1F1B of so many rows, each a micro-batch: with equal ones, what its rows and a filled pipeline take."""
    return (math.ceil(rows / data) + pipe - 1) * time_of(cost, 1, context)


def packed_rows(pairs, context, targets):
    """First fit, the longest first; a row has room for `context` inputs and `targets` targets."""
    rows = []
    for input_, target in sorted(pairs, reverse=True):
        for row in rows:
            if row[0] + input_ <= context and row[1] + target <= targets:
                row[0] += input_
                row[1] += target
                break
        else:
            rows.append([input_, target])
    return len(rows)


def instance_of(model, pairs, cost, stored, pipe, room):
    lengths_ = {"pairs": pairs} if MODELS[model][5] else {"lengths": [a + b for a, b in pairs]}
    return {**lengths_, **cost, "actors": pipe, "stored": stored, "memory": room}


def dynapipe(model, pairs, cost, stored, pipe, data, room):
    longest = max(a + (0 if MODELS[model][5] else b) for a, b in pairs)
    return solve("plan", {**instance_of(model, pairs, cost, stored, pipe, room), "replicas": data, "interval": time_of(cost, 1, longest) / 100})


def searched_time(model, pairs, cost, stored, pipe, data, room, more):
    """The slowest replica's, where each has the samples that DynaPipe's plan gives it, or samples dealt to and fro, the longest first."""
    plan = dynapipe(model, pairs, cost, stored, pipe, data, room)
    ends = plan["begins"][1:] + [len(pairs)]
    given = [[i for m in of_replica for i in plan["order"][plan["begins"][m]:ends[m]]] for of_replica in plan["micro_batches"]]
    dealt = [[] for _ in range(data)]
    for place, i in enumerate(sorted(range(len(pairs)), key=lambda i: -sum(pairs[i]))):
        turn = place % (2 * data)
        dealt[turn if turn < data else 2 * data - 1 - turn].append(i)
    return min(max(solve("search", {**instance_of(model, [pairs[i] for i in part], cost, stored, pipe, room), **more})["time"]
                   for part in parts if part) for parts in (given, dealt))


def ways(model, pairs, context):
    """The best time of each way, and the split that has it."""
    decoder = MODELS[model][5]
    whole = [(a + b, 0) for a, b in pairs] if not decoder else pairs
    best = {}
    for tensor, pipe, data, room in splits(model):
        cost, stored = costs(model, tensor, pipe)
        if stored * context > room:
            continue
        found = {"padding": rows_time(cost, len(pairs), context, pipe, data),
                 "packing": rows_time(cost, packed_rows(whole, context, context if decoder else 1), context, pipe, data),
                 "dynapipe": dynapipe(model, pairs, cost, stored, pipe, data, room)["time"]}
        for way, time in found.items():
            if way not in best or time < best[way][0]:
                best[way] = (time, f"{tensor}x{pipe}x{data}")
    for way, more in {"ours": {}, "ours, ragged": {"ragged": True}}.items():
        tensor, pipe, data = map(int, best["dynapipe"][1].split("x"))
        cost, stored = costs(model, tensor, pipe)
        room = next(room for *split, room in splits(model) if split == [tensor, pipe, data])
        best[way] = (searched_time(model, pairs, cost, stored, pipe, data, room, {"candidates": 60, **more}), best["dynapipe"][1])
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for model in options.models:
        print(f"{model}: thousand real tokens/s, tensor x pipe x data; then times packing")
        for context in options.contexts:
            generator = random.Random(options.seed)
            totals, chosen, tokens = {}, {}, 0
            for _ in range(options.batches):
                pairs = lengths(generator, options.tokens, context)
                if not MODELS[model][5]:
                    pairs = [(min(a, context - 1), min(b, context - min(a, context - 1))) for a, b in pairs]
                tokens += sum(map(sum, pairs))
                for way, (time, split) in ways(model, pairs, context).items():
                    totals[way] = totals.get(way, 0) + time
                    chosen[way] = split
            row = "  ".join(f"{way} {tokens / total:.1f} ({chosen[way]}) {totals['packing'] / total:.2f}" for way, total in totals.items())
            print(f"  context {context}: {row}", flush=True)


if __name__ == "__main__":
    main()
