# SPDX-License-Identifier: Apache-2.0
"""The demonstration runs, finds what it claims to hold, and leaves its page.

usage: demo_test.py PENSTOCK   (the program)
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

PENSTOCK = ""
DEMO = pathlib.Path(__file__).resolve().parents[2] / "examples" / "demo" / "demo.py"


class Demo(unittest.TestCase):
    def run_demo(self, out, penstock):
        command = [sys.executable, DEMO, "--quick", "--out", out, "--penstock", penstock]
        return subprocess.run(command, capture_output=True, text=True, timeout=600)

    def test_every_part(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "demo"
            done = self.run_demo(out, PENSTOCK)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("  cycle: 6F1 needs 5F1", done.stdout)
            self.assertTrue(done.stdout.endswith(f"drawn in {out / 'demo.html'}\n"), done.stdout)
            page = (out / "demo.html").read_text()
            self.assertEqual((page.count("<figure>"), page.count("<svg class=\"chart\""), page.count("<details>")), (4, 4, 6))
            self.assertIn('class="headline">A step was predicted to take ', page)
            self.assertIn(f"gpt, {out / 'zbv-2.csv'}, predicted", page)
            self.assertIn("whichever way, the loss of the batch is the same", page)

    def test_what_does_not_hold_is_said(self):
        """A program that never ends with exit code 1 accepts the table with the misplaced action."""
        with tempfile.TemporaryDirectory() as folder:
            lenient = pathlib.Path(folder) / "penstock"
            lenient.write_text(f'#!/bin/sh\n"{PENSTOCK}" "$@" || true\n')
            lenient.chmod(0o755)
            done = self.run_demo(pathlib.Path(folder) / "demo", lenient)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("NOT AS CLAIMED: exit code 0, not 1", done.stderr)

    def test_without_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_demo(pathlib.Path(folder) / "demo", pathlib.Path(folder) / "none")
            self.assertEqual(done.returncode, 1)
            self.assertIn("none is not there: make build", done.stderr)


if __name__ == "__main__":
    PENSTOCK = sys.argv.pop(1)
    unittest.main()
