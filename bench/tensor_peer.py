#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two tensor-parallel processes over Gloo beside torch's parallelize_module: ratios of step times, collectives, bytes; runs interleaved.

    .venv/bin/python bench/tensor_peer.py --widths 64 256 [--fair] [--rounds 5]

Both train the same model (bench/peer.py's) from the same parameters on the same 32 sequences: AdamW, fused in the peer, f32, one thread per process, as
Megatron splits it: embedding and head over the vocabulary, attention over heads, the perceptron over its hidden channels; and with the residual stream
split over the sequence, too (layout.sequence; SequenceParallel). The losses of all steps must agree within 1e-6 in f64. Each round runs every contender
once. --fair gives the peer the matrix products of this machine's best library, as bench/peer.py does.

It shows what dispatch and messages cost on one machine: neither NVLink, nor that splitting tensors is faster than splitting the batch.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile

from common import ROOT, WARM_UP, penstock, train
from peer import fair_environment, reports_in, run
from torch_peer import CONTEXT, STEPS

BATCH = 32
WAYS = {"tp": [], "sp": ["--set", "layout.sequence=tensor"]}
BOUND = 1e-6  # of a loss's relative difference in f64
COLLECTIVES = r"all_reduce|all_gather|reduce_scatter|all_to_all|broadcast"


def write_text(file):
    """A text of one batch: its sequences come in another order in each step, which only the order of sums can see."""
    letters = "".join(path.read_text() for path in sorted((ROOT / "src/step/ops").glob("*.cpp"))).encode("ascii", "ignore")
    file.write_bytes(letters[: BATCH * CONTEXT + 1])


def ours(way, width, count, folder):
    return ["--batch", BATCH, "--text", folder / "text.txt", "--set", "data.validation=0", "--set", "model.name=reference", "--set",
            f"model.width={width}", "--schedule", "sequential", "--microbatches", count, "--mesh", "pipe=1,tensor=2", *WAYS[way]]


def our_run(way, width, count, folder, dtype="f32"):
    more = ["--backend", "gloo", "--steps", STEPS, "--dtype", dtype, "--set", "run.checkpoint_every=0", "--set", "train.clip=0"]
    steady = ["--lr", "1e-3", "--set", "train.warmup=0", "--set", "train.decay=constant"]
    lines = train(folder, *ours(way, width, count, folder), *more, *steady, processes=2, skipped=0)
    return {"seconds": statistics.median(line["seconds"] for line in lines[WARM_UP:]), "losses": [line["loss"] for line in lines],
            "bytes": max(lines[-1]["peak_bytes"])}


def our_collectives(way, width, count, folder):
    """The number of one process's collectives, by kind."""
    program = penstock("compile", "--emit", "program", *ours(way, width, count, folder))
    first = re.split(r"^device \d", program, flags=re.MULTILINE)[1]
    return collections.Counter(re.findall(rf"^ +({COLLECTIVES}) ", first, re.MULTILINE))


def their_run(way, width, count, folder, env, wanted, dtype="f32"):
    script = [str(ROOT / "bench/torch_tensor_peer.py"), way, str(width), str(count), str(folder / f"dump-{dtype}"), str(folder / "text.txt"), wanted]
    return reports_in(run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *script], env).stdout)


def loss_difference(way, width, count, folder, env, dtype):
    """The largest of a step, relative: the same work from the same parameters."""
    mine, theirs = our_run(way, width, count, folder, dtype)["losses"], their_run(way, width, count, folder, env, "time", dtype)
    return max(abs(a - b) / abs(b) for report in theirs for a, b in zip(mine, report["losses"], strict=True))


def measure(width, options, folder, env):
    """Seconds of each contender by round, after the check that both do the same work."""
    for dtype in {"f32", *options.dtypes}:
        penstock("check", "--dtype", dtype, *ours("tp", width, options.microbatches, folder), "--dump", folder / f"dump-{dtype}")
    for dtype in options.dtypes:
        worst = {way: loss_difference(way, width, options.microbatches, folder, env, dtype) for way in options.ways}
        print(f"width {width}, {dtype}: losses of {STEPS} steps differ by " + ", ".join(f"{way} {worst[way]:.1e}" for way in worst), flush=True)
        if dtype == "f64" and max(worst.values()) > BOUND:
            sys.exit("not the same work")
    times, peer_kinds, bytes_of = collections.defaultdict(list), {}, {}
    for _ in range(options.rounds):
        for way in options.ways:
            mine = our_run(way, width, options.microbatches, folder)
            theirs = their_run(way, width, options.microbatches, folder, env, "time")
            times["penstock", way].append(mine["seconds"])
            times["peer", way].append(max(report["seconds"] for report in theirs))
            bytes_of["penstock", way], peer_kinds[way] = mine["bytes"], theirs[0]["kinds"]
    for way in options.ways:
        found = their_run(way, width, options.microbatches, folder, env, "memory")
        bytes_of["peer", way] = max(report["tensor_bytes"] for report in found)
    return times, peer_kinds, bytes_of


def report(width, options, folder, measured):
    times, peer_kinds, bytes_of = measured
    settings = f"{options.microbatches} micro-batches{', fair' if options.fair else ''}, {options.rounds} rounds"
    print(f"width {width}, {settings}, load {os.getloadavg()[0]:.1f}")
    for way in options.ways:
        counts = our_collectives(way, width, options.microbatches, folder)
        kinds = {"penstock": " ".join(f"{kind} {count}" for kind, count in sorted(counts.items())), "peer": peer_kinds[way]}
        for who in ("penstock", "peer"):
            seconds = times[who, way]
            number = sum(int(count) for count in kinds[who].split()[1::2])
            print(f"  {way:3}{who:9}{statistics.median(seconds):8.4f} s  ({min(seconds):.4f} to {max(seconds):.4f})  {bytes_of[who, way] / 1e6:7.1f} MB"
                  f"  {number:4} collectives: {kinds[who]}")
        paired = [a / b for a, b in zip(times["penstock", way], times["peer", way])]
        print(f"  {way:3}ratio    {statistics.median(times['penstock', way]) / statistics.median(times['peer', way]):.3f}, "
              f"paired {statistics.median(paired):.3f} ({min(paired):.3f} to {max(paired):.3f}), "
              f"bytes {bytes_of['penstock', way] / bytes_of['peer', way]:.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtypes", nargs="+", choices=["f64", "f32"], default=["f64", "f32"], help="whose losses are compared; timed is f32")
    parser.add_argument("--fair", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        if options.fair:
            env = fair_environment(folder, env)
        write_text(folder / "text.txt")
        for width in options.widths:
            report(width, options, folder, measure(width, options, folder, env))


if __name__ == "__main__":
    main()
