# SPDX-License-Identifier: Apache-2.0
"""Our looped tables are torch.distributed.pipelining's: the same actions per rank. (Its 1F1B is no valid table: schedule_csv_test.py.)

usage: schedules_test.py PENSTOCK   (the program)
"""

import csv
import logging
import subprocess
import sys
import unittest

from schedule_csv_test import torch_table

PENSTOCK = ""


def torch_rows(name, actors, microbatches, chunks):
    order = torch_table(name, actors, microbatches, chunks).pipeline_order
    return [[str(action) for action in order[rank] if action is not None] for rank in range(actors)]


def our_rows(name, actors, microbatches, chunks, *options):
    sizes = ("--actors", actors, "--microbatches", microbatches, "--chunks", chunks)
    command = [PENSTOCK, "schedule", name, *sizes, *options]
    printed = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=True).stdout
    return list(csv.reader(printed.splitlines()))


class SameActionsPerRank(unittest.TestCase):
    # Actors, micro-batches, chunks; torch forms as many groups of micro-batches as fit actors, all equal.
    SIZES = [(2, 1, 2), (2, 5, 3), (3, 2, 3), (3, 8, 2), (4, 3, 2), (4, 8, 1), (4, 8, 2), (4, 10, 2), (4, 12, 3), (8, 7, 3), (8, 16, 2)]

    def check(self, ours, torchs, grouped):
        for actors, microbatches, chunks in self.SIZES:
            rounds = max(1, microbatches // actors)
            if grouped and microbatches % rounds != 0:
                self.assertRaises(ValueError, torch_table, torchs, actors, microbatches, chunks)
                continue
            options = ("--group", microbatches // rounds) if grouped else ()
            with self.subTest(schedule=ours, actors=actors, microbatches=microbatches, chunks=chunks):
                expected = torch_rows(torchs, actors, microbatches, chunks)
                self.assertEqual(our_rows(ours, actors, microbatches, chunks, *options), expected)

    def test_breadth_first(self):
        self.check("breadth-first", "LoopedBFS", False)

    def test_interleaved_1f1b(self):
        self.check("interleaved-1f1b", "Interleaved1F1B", True)

    def test_interleaved_zero_bubble(self):
        self.check("interleaved-zb", "InterleavedZeroBubble", True)


if __name__ == "__main__":
    PENSTOCK = sys.argv.pop(1)
    logging.disable(logging.WARNING)
    unittest.main()
