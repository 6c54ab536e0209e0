#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Growth of the resident set beside the planned bytes: runs of models of several sizes, each against the smallest.

    bench/resident.py
"""
import json
import os
import pathlib
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = [("1f1b", 64), ("1f1b", 256), ("1f1b", 512), ("gpipe", 64), ("gpipe", 256)]


def resident_bytes(process):
    for line in pathlib.Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024


def run(schedule, width, folder):
    """Resident set while training, after some steps, and tracked bytes of all actors (both in bytes), on threads."""
    out = folder / f"{schedule}-{width}"
    command = [str(ROOT / "build/penstock"), "train", "--schedule", schedule, "--steps", "1000", "--batch", "32", "--microbatches", "16",
               "--set", "model.layers=8", "--set", f"model.width={width}", "--set", "data.validation=0", "--set", "run.checkpoint_every=0",
               "--text", str(ROOT / "src"), "--out", str(out)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    metrics = []
    while len(metrics) < 3:
        assert child.poll() is None, command
        time.sleep(0.05)
        metrics = (out / "metrics.jsonl").read_text().splitlines() if (out / "metrics.jsonl").exists() else []
    resident = resident_bytes(child.pid)
    child.kill()
    child.wait()
    return resident, sum(json.loads(metrics[-1])["peak_bytes"])


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        base_resident, base_tracked = run("1f1b", 16, folder)
        for schedule, width in RUNS:
            resident, tracked = run(schedule, width, folder)
            grown, explained = resident - base_resident, tracked - base_tracked
            print(f"{schedule:6} width {width:4}: resident set {grown / 1e6:8.1f} MB larger, planned {explained / 1e6:8.1f} MB ({100 * (explained / grown - 1):+.1f} %)")


if __name__ == "__main__":
    main()
