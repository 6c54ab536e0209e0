# SPDX-License-Identifier: Apache-2.0
"""Our folded tables are torch.distributed.pipelining's: the same actions per rank.

usage: folded_test.py PENSTOCK   (the program)

ScheduleZBVZeroBubble and ScheduleDualPipeV write each rank's actions when they are made; nothing runs. JaxPP's order of DualPipe-V is
another, so it is held against torch's by simulation.
"""

import csv
import json
import logging
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from schedule_csv_test import rows_of, torch_table

PENSTOCK = ""


def penstock(*arguments):
    return subprocess.run([PENSTOCK, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=True).stdout


def our_rows(name, actors, microbatches):
    sizes = ("--actors", actors, "--microbatches", microbatches, "--chunks", 2)
    return list(csv.reader(penstock("schedule", name, *sizes).splitlines()))


def torch_rows(name, actors, microbatches):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        torch_table(name, actors, microbatches, 2)._dump_csv(path, format="compute_only")
        return [[cell for cell in row if cell] for row in rows_of(path)]  # without idle steps


class SameActionsPerRank(unittest.TestCase):
    def check(self, ours, torchs, shapes):
        for actors, microbatches in shapes:
            with self.subTest(schedule=ours, actors=actors, microbatches=microbatches):
                self.assertEqual(our_rows(ours, actors, microbatches), torch_rows(torchs, actors, microbatches))

    def test_zb_v(self):
        self.check("zb-v", "ZBVZeroBubble", [(p, m) for p in (1, 2, 3, 4, 8) for m in (1, p, 2 * p - 1, 2 * p, 4 * p)])

    def test_dualpipe_v(self):
        self.check("dualpipe-v", "DualPipeV", [(p, m) for p in (1, 2, 3, 4, 8) for m in (2 * p, 2 * p + 1, 4 * p)])


class SimulatedAlike(unittest.TestCase):
    def test_torchs_file_takes_as_long_and_holds_as_much(self):
        for ours, torchs in (("zb-v", "ZBVZeroBubble"), ("dualpipe-v", "DualPipeV")):
            with self.subTest(schedule=ours), tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "table.csv"
                torch_table(torchs, 4, 8, 2)._dump_csv(path, format="compute_only")
                theirs = json.loads(penstock("simulate", path, "--json"))
                mine = json.loads(penstock("simulate", ours, "--actors", 4, "--microbatches", 8, "--chunks", 2, "--json"))
                for key in ("makespan", "bubble", "peak_live"):
                    self.assertEqual(mine[key], theirs[key], key)


if __name__ == "__main__":
    PENSTOCK = sys.argv.pop(1)
    logging.disable(logging.WARNING)
    unittest.main()
