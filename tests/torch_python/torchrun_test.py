"""torchrun starts the program's processes.

usage: torchrun_test.py PENSTOCK   (the program)
"""

import json
import subprocess
import sys
import unittest

PENSTOCK = ""


class Torchrun(unittest.TestCase):
    def test_check(self):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone", "--nproc-per-node", "2"]
        command = [PENSTOCK, "check", "--backend", "gloo", "--set", "width=32", "--set", "context=16", "--dtype", "f64", "--json"]
        done = subprocess.run(launcher + command, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(json.loads(done.stdout)["equal"])


if __name__ == "__main__":
    PENSTOCK = sys.argv.pop(1)
    unittest.main()
