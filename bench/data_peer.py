#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two data-parallel processes over Gloo beside torch's DistributedDataParallel and FSDP2: ratios of step times, runs interleaved.

    .venv/bin/python bench/data_peer.py --width 256 [--dtype bf16] [--fair] [--rounds 5]

Both train the same model (bench/peer.py's) from the same parameters on 32 sequences a step: AdamW, fused in the peer, clipped by the global norm, one
thread per process; in bf16 the peer runs with autocast and as a model of bf16, which keeps no f32 parameters. That loss and gradients agree on one batch is checked first. Each contender runs with several numbers of micro-batches, once a
round; the ratio is Penstock's best over the peer's best, by medians of the rounds, with the rounds' paired ratios behind it. --fair gives the peer
the matrix products of this machine's best library, as bench/peer.py does.
"""
import argparse
import itertools
import os
import pathlib
import statistics
import sys
import tempfile

from common import ROOT, median_of, penstock, train
from peer import fair_environment, reports_in, run

BATCH, STEPS = 32, 9
STAGES = {"0": 1, "1": 1, "0 in 4 stages": 4, "3": 8}  # by way: a stage's gradients are summed while the ones before it compute
# Penstock's levels are compared with the ways of bench/torch_data_peer.py.
EQUAL = {"f32": 1e-4, "autocast": 0.1, "bf16": 0.1}  # of the peer: its bf16 is coarser than ours
FAMILIES = {"replicated": (["0", "1", "0 in 4 stages"], ["ddp", "ddp-1mb"]), "sharded": (["3"], ["fsdp", "fsdp-once", "fsdp-kept"])}


def work(width):
    return ["--batch", BATCH, "--text", ROOT / "src", "--set", "model.name=reference", "--set", f"model.width={width}"]


def ours(way, count, width):
    """The arguments of `penstock train` or `check`: fully sharded, a block is gathered once for all micro-batches in each direction."""
    table = ["--schedule", "breadth-first", "--chunks", STAGES[way]] if STAGES[way] > 1 else ["--schedule", "sequential"]
    return [*work(width), *table, "--mesh", "pipe=1,data=2", "--microbatches", count, "--set", f"zero={way[0]}"]


def our_seconds(way, count, options, folder):
    more = ["--dtype", options.dtype, "--backend", "gloo", "--steps", STEPS, "--set", "run.checkpoint_every=0"]
    return median_of(train(folder, *ours(way, count, options.width), *more, processes=2), "seconds")


def peer_seconds(way, dtype, count, width, folder, env):
    script = [str(ROOT / "bench/torch_data_peer.py"), way, str(width), str(count), str(BATCH // 2 // count), str(folder / "dump"), dtype]
    done = run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *script], env)
    reports = reports_in(done.stdout)
    if max(max(report["loss_difference"], report["gradient_difference"]) for report in reports) > EQUAL[dtype]:
        sys.exit(f"{way} is not the same step: {reports}")
    return max(report["seconds"] for report in reports)


def report(family, times):
    """`times`: of each contender, seconds by round."""
    medians = {key: statistics.median(seconds) for key, seconds in times.items()}
    for (who, way, count), seconds in times.items():
        print(f"{who:9}{way:20}{count:3} micro-batches {medians[who, way, count]:8.4f} s  ({min(seconds):.4f} to {max(seconds):.4f})")
    mine, other = (min((key for key in times if key[0] == who), key=medians.get) for who in ("penstock", "peer"))
    paired = [a / b for a, b in zip(times[mine], times[other])]
    print(f"{family}: {mine[1:]} / {other[1:]} = {medians[mine] / medians[other]:.3f}, "
          f"paired {statistics.median(paired):.3f} ({min(paired):.3f} to {max(paired):.3f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fair", action="store_true")
    parser.add_argument("--microbatches", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--families", nargs="*", choices=FAMILIES, default=[*FAMILIES])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        if options.fair:
            env = fair_environment(folder, env)
        penstock("check", *ours("0", 1, options.width), "--dump", folder / "dump")
        for family in options.families:
            levels, ways = FAMILIES[family]
            for level in levels:
                penstock("check", *ours(level, 1, options.width))
            times = {}
            for _ in range(options.rounds):
                for count in options.microbatches:
                    for level in levels:
                        times.setdefault(("penstock", "zero " + level, count), []).append(our_seconds(level, count, options, folder))
                    for way, dtype in itertools.product(ways, ["f32"] if options.dtype == "f32" else ["autocast", "bf16"]):
                        seconds = peer_seconds(way, dtype, count, options.width, folder, env)
                        times.setdefault(("peer", way if dtype == "f32" else f"{way}, {dtype}", count), []).append(seconds)
            print(f"width {options.width}, {options.dtype}{', fair' if options.fair else ''}, {options.rounds} rounds")
            report(family, times)


if __name__ == "__main__":
    main()
