#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM's published table (Narayanan et al., 2104.04473, table 1) beside what Penstock predicts, and would choose.

    bench/megatron.py [--rows 1.7,3.6] [--seconds 60] [--no-choice]

Ten GPT models on 32 to 3072 A100 of 80 GB. First each with Megatron's own degrees: interleaved 1F1B (1F1B without a pipeline), every layer
computed again, states of 2 + 2 + 12 bytes a parameter, all replicas alike. The table does not give micro-batches and chunks: of 1, 2, 4 and 8
sequences and of 1, 2, 4, 8 and 16 chunks the fastest predicted are taken, as the paper's section 3 advises. Throughput is by the paper's formula (section
5.1), whatever was really computed. Then Penstock's choice of all degrees within 80 GB, as Penstock trains (2 + 4 + 12 bytes).
"""
import argparse
import json
import pathlib
import tempfile

from common import ROOT, penstock

SEQUENCE, VOCABULARY = 2048, 51200
CLUSTER = ROOT / "examples/clusters/selene-64.toml"
DEVICE = "a100-80-2021"
GIB = 2**30
# Billion parameters: heads, hidden size, layers, tensor, pipe, GPUs, sequences of a step, achieved teraFLOP/s of a GPU.
TABLE = {
    "1.7": (24, 2304, 24, 1, 1, 32, 512, 137),
    "3.6": (32, 3072, 30, 2, 1, 64, 512, 138),
    "7.5": (32, 4096, 36, 4, 1, 128, 512, 142),
    "18.4": (48, 6144, 40, 8, 1, 256, 1024, 135),
    "39.1": (64, 8192, 48, 8, 2, 512, 1536, 138),
    "76.1": (80, 10240, 60, 8, 4, 1024, 1792, 140),
    "145.6": (96, 12288, 80, 8, 8, 1536, 2304, 148),
    "310.1": (128, 16384, 96, 8, 16, 1920, 2160, 155),
    "529.6": (128, 20480, 105, 8, 35, 2520, 2520, 163),
    "1008.0": (160, 25600, 128, 8, 64, 3072, 3072, 163),
}


def cluster_of(devices, folder):
    """The example's nodes, as many as there are devices for."""
    file = pathlib.Path(folder) / f"{devices}.toml"
    inner, outer = CLUSTER.read_text().replace("64 A100, 8 nodes", f"{devices} A100, {devices // 8} nodes").replace(
        "count = 64", f"count = {devices}").rsplit("size = 8", 1)  # fmt: skip
    file.write_text(f"{inner}size = {devices // 8}{outer}")
    return file


def plan(row, cluster, *more):
    heads, width, layers, _, _, _, batch, _ = row
    settings = {"layers": layers, "width": width, "heads": heads, "context": SEQUENCE, "vocabulary": VOCABULARY, "dropout": 0.1}
    sets = [word for key, value in settings.items() for word in ("--set", f"model.{key}={value}")]
    return json.loads(penstock("plan", "gpt", *sets, "--set", "train.dtype=bf16", "--batch", batch, "--cluster", cluster, "--device", DEVICE,
                               "--planner", "degrees", "--json", *more))  # fmt: skip


def megatrons(row, cluster):
    _, _, _, tensor, pipe, devices, _, _ = row
    schedule = "interleaved-1f1b" if pipe > 1 else "1f1b"
    only = f"tensor={tensor},pipe={pipe},data={devices // tensor // pipe},context=1,sequence=0,zero=0,recompute=1,schedule={schedule},order=pipe/data"
    return plan(row, cluster, "--memory", 1e15, "--states", "2+2+12", "--microbatch-sizes", "1,2,4,8", "--only", only)


def teraflops(row, seconds):
    """The teraflops of a device, by the paper's equation 3: with all activations computed again."""
    _, width, layers, _, _, devices, batch, _ = row
    flops = 96 * batch * SEQUENCE * layers * width**2 * (1 + SEQUENCE / (6 * width) + VOCABULARY / (16 * layers * width))
    return flops / seconds / devices / 1e12


def text(found):
    sequence = " and sequence" if found["sequence"] else ""
    return (f"{found['schedule']}, pipe {found['pipe']} x {found['chunks']}, data {found['data']}, tensor {found['tensor']}{sequence}, "
            f"ZeRO-{found['zero']}{', recompute' if found['recompute'] else ''}, {found['microbatches']} x {found['micro_batch']}")  # fmt: skip


def why(theirs, ours):
    """Where the step gains most, and what of Megatron's degrees differs."""
    gains = {part: theirs[part] - ours[part] for part in ("compute", "bubble", "exposed")}
    most = max(gains, key=gains.get)
    return f"{most} {-gains[most]:+.1f} s of {theirs['predicted_time']:.1f} s"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(TABLE))
    parser.add_argument("--seconds", type=float, default=60, help="of each search")
    parser.add_argument("--no-choice", action="store_true", help="Megatron's own degrees only")
    options = parser.parse_args()
    own, chosen = [], []
    for name in options.rows.split(","):
        row = TABLE[name]
        with tempfile.TemporaryDirectory() as folder:
            cluster = cluster_of(row[5], folder)
            theirs = megatrons(row, cluster)
            ours = None if options.no_choice else plan(row, cluster, "--seconds", options.seconds)
        predicted = teraflops(row, theirs["predicted_time"])
        shares = " | ".join(f"{100 * theirs[part] / theirs['predicted_time']:.1f} %" for part in ("bubble", "exposed"))
        own.append(f"| {name} | {row[5]} | {row[3]}, {row[4]} | {theirs['chunks']}, {theirs['micro_batch']} | {theirs['predicted_time']:.2f} s "
                   f"| {shares} | {predicted:.0f} | {row[7]} | {predicted / row[7]:.2f} |")  # fmt: skip
        if ours:
            chosen.append(f"| {name} | {text(ours)} | {ours['predicted_time']:.2f} s | {teraflops(row, ours['predicted_time']):.0f} "
                          f"| {ours['memory'] / GIB:.0f} GiB | {theirs['predicted_time'] / ours['predicted_time']:.2f} | {why(theirs, ours)} |")
        print(own[-1], *chosen[-1:], sep="\n", flush=True)
    print("\n| parameters, billion | GPUs | tensor, pipe | chunks, micro-batch | step | bubble | exposed | TFLOP/s | published | ratio |\n"
          "|---|---|---|---|---|---|---|---|---|---|")
    print("\n".join(own))
    if chosen:
        print("\n| parameters, billion | Penstock's choice | step | TFLOP/s | memory | faster | gains most |\n|---|---|---|---|---|---|---|")
        print("\n".join(chosen))


if __name__ == "__main__":
    main()
