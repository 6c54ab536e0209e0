# SPDX-License-Identifier: Apache-2.0
"""Tables pass between Penstock and torch.distributed.pipelining in both directions.

usage: schedule_csv_test.py PENSTOCK   (the program)

Torch's schedules, dumped with or without communication, must be read, found valid and printed as the same actions; Penstock's tables must be read
by torch's loader, which checks them and adds its own communication.
"""

import csv
import json
import logging
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

from torch.nn import Identity
from torch.distributed.pipelining import schedules as torch_schedules

PENSTOCK = ""
TRANSFERS = ("SEND_F", "RECV_F", "SEND_B", "RECV_B")


def penstock(*arguments, fails=False):
    done = subprocess.run([PENSTOCK, "schedule", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    if done.returncode != (1 if fails else 0):
        raise AssertionError(f"{arguments}: exit code {done.returncode}\n{done.stderr}")
    return done.stderr if fails else done.stdout


def stages_of(rank, actors, stages_per_actor):
    """Stages as a schedule's constructor asks for them."""
    total = actors * stages_per_actor
    return [
        SimpleNamespace(
            num_stages=total, group_size=actors, group_rank=rank, stage_index=rank + chunk * actors, is_first=False, is_last=False, submod=Identity()
        )
        for chunk in range(stages_per_actor)
    ]


def torch_table(name, actors, microbatches, stages_per_actor):
    make = torch_schedules.get_schedule_class(name)
    schedule = make(stages_of(0, actors, stages_per_actor), microbatches, loss_fn=lambda *_: None)
    return schedule


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


def without(rows, kinds):
    """The cells that stay when idle steps and these kinds are left out."""
    return [[cell for cell in row if cell and not any(kind in cell for kind in kinds)] for row in rows]


class TorchToPenstock(unittest.TestCase):
    def check(self, path):
        printed = [line.split(",") if line else [] for line in penstock(path).splitlines()]
        self.assertEqual(printed, without(rows_of(path), ()), path)

    def test_multi_stage_schedules(self):
        cases = [
            ("Interleaved1F1B", 2), ("Interleaved1F1B", 3), ("LoopedBFS", 2), ("InterleavedZeroBubble", 2), ("ZBVZeroBubble", 2), ("DualPipeV", 2),
        ]
        for name, chunks in cases:
            with self.subTest(schedule=name), tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "table.csv"
                torch_table(name, 4, 8, chunks)._dump_csv(path, format="compute_only")
                self.check(path)
                torch_table(name, 4, 8, chunks)._dump_csv(path, format="compute_comms")
                self.assertTrue(any(kind in cell for row in rows_of(path) for cell in row for kind in TRANSFERS))
                self.check(path)

    def single(self, name, actors, microbatches, folder):
        """GPipe and 1F1B cannot dump themselves; their order is written as torch writes the others'."""
        order = torch_schedules.get_schedule_class(name)._get_pipeline_order(SimpleNamespace(_num_stages=actors, _n_microbatches=microbatches))
        path = Path(folder) / "table.csv"
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows(order.values())
        return path

    def test_gpipe(self):
        for actors, microbatches in ((1, 4), (4, 7)):
            with self.subTest(actors=actors, microbatches=microbatches), tempfile.TemporaryDirectory() as folder:
                self.check(self.single("GPipe", actors, microbatches, folder))

    def test_1f1b_numbers_the_last_rank_from_one(self):
        """The order that torch shows for 1F1B (its runtime does not use it) counts the last rank's forwards from 1, because the rank
        has no warm-up forward to count from. As a table it lacks a forward, and is refused saying which."""
        with tempfile.TemporaryDirectory() as folder:
            path = self.single("1F1B", 4, 8, folder)
            self.assertIn("3F8", rows_of(path)[3])
            self.assertIn("3F8", penstock(path, fails=True))
            # Numbered from 0 it is our 1f1b.
            rows = rows_of(path)
            rows[3] = [f"3F{int(cell[2:]) - 1}" if cell.startswith("3F") else cell for cell in rows[3]]
            with open(path, "w", newline="") as file:
                csv.writer(file).writerows(rows)
            compute = without([line.split(",") for line in penstock(path).splitlines()], ("REDUCE_GRAD",))
            ours = [line.split(",") for line in penstock("1f1b", "--actors", 4, "--microbatches", 8).splitlines()]
            self.assertEqual(compute, ours)


class PenstockToTorch(unittest.TestCase):
    def load(self, name, actors, microbatches, chunks):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "table.csv"
            path.write_text(penstock(name, "--actors", actors, "--microbatches", microbatches, "--chunks", chunks))
            runtime = torch_schedules._PipelineScheduleRuntime(stages_of(0, actors, chunks), microbatches, loss_fn=lambda *_: None)
            gathers = "UNSHARD" in path.read_text()  # torch writes these with the communication
            runtime._load_csv(path, format="compute_comms" if gathers else "compute_only")
            order = runtime.pipeline_order_with_comms if gathers else runtime.pipeline_order
            loaded = [[str(action) for action in order[rank]] for rank in range(actors)]
            self.assertEqual(loaded, rows_of(path))

    def loops(self, name, actors, microbatches, chunks):
        """Whether the schedule takes these sizes and places stages as the stages here stand: chunk c of rank r is stage c * actors + r.
        Torch knows no replicas; its own V tables are compared in folded_test.py."""
        sizes = ("--actors", actors, "--microbatches", microbatches, "--chunks", chunks)
        done = subprocess.run([PENSTOCK, "schedule", name, *map(str, sizes), "--json"], capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            return False
        stages = [{int(re.match(r"\d+", action).group()) for action in actor["actions"]} for actor in json.loads(done.stdout)["actors"]]
        return stages == [set(range(rank, actors * chunks, actors)) for rank in range(actors)]

    def test_every_schedule_loads(self):
        listed = json.loads(penstock("list", "--json"))["schedules"]
        self.assertGreaterEqual(len(listed), 6)
        for info in listed:
            for actors, microbatches in ((2, 7), (4, 8)):
                for chunks in (1, 2) if info["chunked"] else (1,):
                    with self.subTest(schedule=info["name"], actors=actors, microbatches=microbatches, chunks=chunks):
                        if "--window" in info["takes"]:  # torch knows no updates within a table, nor versions
                            self.assertRaises(RuntimeError, self.load, info["name"], actors, microbatches, chunks)
                        elif self.loops(info["name"], actors, microbatches, chunks):
                            self.load(info["name"], actors, microbatches, chunks)

    def test_extensions_are_refused_rather_than_misread(self):
        for cell in ("3.2F5", "2x4F0", "3@1F5", "3@1+2F5"):
            with self.assertRaises(RuntimeError):
                torch_schedules._Action.from_str(cell)


class Mistakes(unittest.TestCase):
    def test_table_with_a_cycle(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.csv"
            path.write_text("0F0,0B0\n1B0,1F0\n")
            self.assertIn("plan.csv:2:1: 1B0 can never run (actor 1)", penstock(path, fails=True))

    def test_a_file_takes_no_sizes(self):
        self.assertEqual(
            penstock("plan.csv", "--actors", 2, fails=True),
            "error: plan.csv says itself how many actors, stages and micro-batches it has\n"
            "  hint: leave out --actors\n",
        )

    def test_unreadable_file(self):
        self.assertEqual(penstock("nowhere.csv", fails=True), "error: cannot read nowhere.csv: No such file or directory\n  hint: name a file that is in this folder, or another folder\n")


if __name__ == "__main__":
    PENSTOCK = sys.argv.pop(1)
    logging.disable(logging.WARNING)
    unittest.main()
