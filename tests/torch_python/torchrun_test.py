# SPDX-License-Identifier: Apache-2.0
"""torchrun starts the program's processes.

usage: torchrun_test.py PENSTOCK   (the program)
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PENSTOCK = ""
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone", "--nproc-per-node", "2"]


class Torchrun(unittest.TestCase):
    def test_a_killed_run_is_started_again_and_goes_on(self):
        with tempfile.TemporaryDirectory(prefix="penstock-test-") as folder:
            out = pathlib.Path(folder) / "run"
            small = ["width=32", "heads=2", "context=16", "validation_every=0", "validation_batches=1", "checkpoint_every=20", "deadline=20"]
            steps = 600  # so many that the run is not done before it is killed
            command = [PENSTOCK, "train", "--backend", "gloo", "--out", str(out), "--steps", str(steps), "--resume-or-start", "--set", *small]
            process = subprocess.Popen([*LAUNCHER, "--max-restarts", "2", *command], stderr=subprocess.PIPE, text=True)
            metrics = out / "metrics.jsonl"
            while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 25):
                time.sleep(0.01)
            os.kill(int((out / "lock").read_text().split()[0]), signal.SIGKILL)
            error = process.communicate(timeout=300)[1]
            self.assertEqual(process.returncode, 0, error)
            self.assertIn(f"resumed from {out}/checkpoint-", error)
            self.assertEqual({json.loads(line)["step"] for line in metrics.read_text().splitlines()}, set(range(1, steps + 1)))
            self.assertTrue((out / f"checkpoint-{steps}" / "manifest.json").exists())

    def test_check(self):
        command = [PENSTOCK, "check", "--backend", "gloo", "--set", "width=32", "--set", "context=16", "--dtype", "f64", "--json"]
        done = subprocess.run(LAUNCHER + command, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(json.loads(done.stdout)["equal"])


if __name__ == "__main__":
    PENSTOCK = sys.argv.pop(1)
    unittest.main()
