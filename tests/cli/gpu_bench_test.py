"""bench/gpu.sh on the stand-in: every step ends well, and its results are written as they come."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["PENSTOCK"]).resolve().parent


class GpuBench(unittest.TestCase):
    def run_script(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "results.jsonl"
            done = subprocess.run([ROOT / "bench/gpu.sh", "--device", "standin", "--build", BUILD, "--out", out, "--seconds", "900", *arguments],
                                  capture_output=True, text=True)  # fmt: skip
            return done, [json.loads(line) for line in out.read_text().splitlines()]

    def test_every_step_of_a_dry_run(self):
        done, results = self.run_script()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([result["step"] for result in results], list(range(12)))
        figures = [result["figures"] for result in results]
        self.assertTrue(figures[1]["f32"]["equal"] and figures[1]["bf16"]["equal"])
        self.assertGreater(figures[2]["tests"], 0)
        self.assertEqual(len(figures[5]), 12)
        self.assertTrue("left out" in figures[11] or figures[11]["difference"] < 1e-2)

    def test_nothing_follows_a_first_step_that_fails(self):
        done, results = self.run_script("--build", "/nowhere")
        self.assertEqual(done.returncode, 1)
        self.assertEqual([result["step"] for result in results], [0])
        self.assertIn("failed", results[0])


if __name__ == "__main__":
    unittest.main()
