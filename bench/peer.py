#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Penstock beside torch.distributed.pipelining on the peer's reference work: ratios of step times, runs interleaved.

    .venv/bin/python bench/peer.py [PEER.py] --width 256 [--layers 8] [--dtype bf16] [--fair] [--rounds 5] [--ours 1f1b planned] [--peer-cuts even 5+3]

Both train the same model (embedding, 8 pre-norm layers, 4 heads, exact GELU, length 128, vocabulary 2048, AdamW, f32) with 16 micro-batches
of 2 sequences on 2 cores. Each round runs every contender once; the ratio is Penstock's best schedule over the peer's best, by the
medians of the rounds. --fair gives the peer the matrix products of this machine's best library (on AMD, MKL's own check of the vendor is
answered yes) and fused AdamW. In bf16 the peer runs with autocast and as a model of bf16, which keeps no f32 parameters; the faster one counts.
Our own step in f32 is timed then, too. Both have half of the layers on each core, except that ours in the row "planned" is cut where `penstock plan` says
(the head weighs as much as some layers), and the peer's is cut between layers as --peer-cuts says, of which the fastest counts. PEER.py is
bench/torch_peer.py, or takes the same arguments and prints the same lines.
"""
import argparse
import itertools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ["1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
PLANNED = "planned"
OURS = {"1f1b": [], "zb-h1": [], "gpipe": [], "interleaved-1f1b": ["--chunks", "2"], PLANNED: []}
BATCH, MICROBATCHES = 32, 16
STEPS, WARM = 9, 3  # as the peer's script


def reports_in(text):
    """The flat JSON objects in it; two ranks may print on one line."""
    return [json.loads(found) for found in re.findall(r"\{[^{}]*\}", text)]


def run(command, env):
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done


def model_of(dtype, options):
    """The reference work's keys; data are our own sources."""
    keys = {"width": options.width, "layers": options.layers, "dtype": dtype, "batch": BATCH, "clip": 0, "data.text": json.dumps([str(ROOT / "src")])}
    return [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]


def planned(dtype, options, folder):
    """The file of a plan for two threads, made once."""
    plan = folder / f"plan-{dtype}.json"
    if not plan.exists():
        run([str(ROOT / "build/penstock"), "plan", "reference", "--cluster", "local", *model_of(dtype, options), "--set", "actors=2",
             "--microbatch-sizes", str(BATCH // MICROBATCHES), "--no-replicas", "--out", str(plan)], {**os.environ, "OMP_NUM_THREADS": "1"})
    return plan


def penstock(schedule, dtype, options, folder):
    backend = options.backend
    out = folder / f"{schedule}-{backend}"
    command = [str(ROOT / "build/penstock")]
    table = ["--plan", str(planned(dtype, options, folder))] if schedule == PLANNED else \
            ["--schedule", schedule, *OURS[schedule], "--actors", "2", "--microbatches", str(MICROBATCHES)]
    train = ["train", *table, *model_of(dtype, options), "--set", "model.name=reference", "--steps", str(STEPS), "--backend", backend, "--out", str(out),
             "--set", "run.checkpoint_every=0"]
    if backend == "gloo":
        command += ["launch", "-n", "2", "--"]
    run(["rm", "-rf", str(out)], None)
    run(command + train, {**os.environ, "OMP_NUM_THREADS": "1"})
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    peaks = steps[-1]["peak_bytes"]
    return {"seconds": statistics.median(step["seconds"] for step in steps[WARM:]), "bytes": max(peaks) if isinstance(peaks, list) else peaks}


def peer(schedule, dtype, cut, options, script, env):
    command = [str(script), schedule, str(options.width), str(MICROBATCHES), str(BATCH // MICROBATCHES), dtype, str(options.layers), cut]
    ranks = [] if schedule == "sequential" else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *ranks, *command]
    reports = reports_in(run(command, env).stdout)
    return {"seconds": max(report["seconds"] for report in reports), "rss_mb": max(report["rss_mb"] for report in reports)}


def fair_environment(folder, env):
    """MKL asks mkl_serv_intel_cpu_true whether it may use its fast paths."""
    source = folder / "vendor.c"
    source.write_text("int mkl_serv_intel_cpu_true(void) { return 1; }\n")
    run(["cc", "-shared", "-fPIC", "-o", str(folder / "vendor.so"), str(source)], None)
    return {**env, "LD_PRELOAD": str(folder / "vendor.so")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=pathlib.Path, nargs="?", default=ROOT / "bench/torch_peer.py", metavar="PEER.py")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fair", action="store_true")
    parser.add_argument("--backend", choices=["threads", "gloo"], default="threads")
    parser.add_argument("--ours", nargs="*", default=["1f1b", "zb-h1"])
    parser.add_argument("--peer-cuts", nargs="*", default=["even"], help="layers of its stages: even, 5+3")
    parser.add_argument("--peers", nargs="*", default=["1F1B", "GPipe", "InterleavedZeroBubble"], help=f"of {PEERS} and sequential")
    options = parser.parse_args()
    times = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        env, script = {**os.environ, "OMP_NUM_THREADS": "1"}, options.peer
        if options.fair:
            env = fair_environment(folder, env)
            script = folder / "peer.py"
            script.write_text(options.peer.read_text().replace("foreach=False", "fused=True"))
        own, others = ([options.dtype], [options.dtype]) if options.dtype == "f32" else (["bf16", "f32"], ["autocast", "bf16"])
        for _ in range(options.rounds):
            for schedule, dtype in itertools.product(options.ours, own):
                who = "penstock" if dtype == options.dtype else "in f32"
                times.setdefault((who, schedule), []).append(penstock(schedule, dtype, options, folder))
            for schedule, dtype, cut in itertools.product(options.peers, others, options.peer_cuts):
                name = ", ".join([schedule, *([dtype] if dtype != "f32" else []), *([cut] if cut != "even" else [])])
                times.setdefault(("peer", name), []).append(peer(schedule, dtype, cut, options, script, env))
    medians = {key: statistics.median(run["seconds"] for run in runs) for key, runs in times.items()}
    for key, runs in times.items():
        spread = [run["seconds"] for run in runs]
        print(f"{key[0]:9}{key[1]:24}{medians[key]:8.4f} s  ({min(spread):.4f} to {max(spread):.4f})")
    best = {who: min((medians[key], key[1]) for key in medians if key[0] == who) for who in dict.fromkeys(key[0] for key in medians)}
    if "in f32" in best:
        print(f"bf16 / f32 = {best['penstock'][0] / best['in f32'][0]:.3f}")
    print(f"width {options.width}, {options.layers} layers, {options.dtype}, {options.backend}{', fair' if options.fair else ''}: {best['penstock'][1]} / {best['peer'][1]} = "
          f"{best['penstock'][0] / best['peer'][0]:.3f}")


if __name__ == "__main__":
    main()
