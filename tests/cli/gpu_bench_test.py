# SPDX-License-Identifier: Apache-2.0
"""bench/gpu.sh on the stand-in: every step that is drawn ends well, and its results are written as they come."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from support import sampled

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["PENSTOCK"]).resolve().parent


class GpuBench(unittest.TestCase):
    def run_script(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "results.jsonl"
            done = subprocess.run([ROOT / "bench/gpu.sh", "--device", "standin", "--build", BUILD, "--out", out, "--seconds", "900", *arguments],
                                  capture_output=True, text=True)  # fmt: skip
            return done, [json.loads(line) for line in out.read_text().splitlines()]

    def test_steps_of_a_dry_run(self):
        drawn = sampled(range(2, 12), 3)
        done, results = self.run_script("--steps", ",".join(map(str, drawn)))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        figures = {result["step"]: result["figures"] for result in results}
        self.assertEqual(list(figures), [0, 1, *drawn])
        self.assertTrue(figures[1]["f32"]["equal"] and figures[1]["bf16"]["equal"])
        for step, holds in {2: lambda found: found["tests"] > 0, 5: lambda found: len(found) == 12,
                            11: lambda found: "left out" in found or found["difference"] < 1e-2}.items():  # fmt: skip
            self.assertTrue(step not in figures or holds(figures[step]), figures.get(step))

    def test_nothing_follows_a_first_step_that_fails(self):
        done, results = self.run_script("--build", "/nowhere")
        self.assertEqual(done.returncode, 1)
        self.assertEqual([result["step"] for result in results], [0])
        self.assertIn("failed", results[0])


if __name__ == "__main__":
    unittest.main()
