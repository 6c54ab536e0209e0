"""Generated tables against those of torch.distributed.pipelining.

usage: schedules_test.py PENSTOCK   (the program)

Looped breadth-first, interleaved 1F1B and interleaved zero bubble must order every rank's actions as torch does. Where torch's groups are
smaller than the number of ranks ours are laid out differently: no slower and no larger, as penstock simulate says of both tables.
"""

import csv
import json
import logging
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

from torch.distributed.pipelining import schedules as torch_schedules
from torch.nn import Identity

PENSTOCK = ""
# torch's class, our name, whether it goes in groups
PAIRS = [("LoopedBFS", "breadth-first", False), ("Interleaved1F1B", "interleaved-1f1b", True), ("InterleavedZeroBubble", "interleaved-zb", True)]


def penstock(*arguments, fails=False):
    done = subprocess.run([PENSTOCK, *map(str, arguments)], capture_output=True, text=True, timeout=60)
    if done.returncode != (1 if fails else 0):
        raise AssertionError(f"{arguments}: exit code {done.returncode}\n{done.stderr}")
    return done.stderr if fails else done.stdout


def torch_rows(name, actors, microbatches, chunks):
    """What each rank computes, in order; None where torch refuses these numbers."""
    stages = [
        SimpleNamespace(num_stages=actors * chunks, group_size=actors, group_rank=0, stage_index=chunk * actors, is_first=False, is_last=False,
                        submod=Identity())
        for chunk in range(chunks)
    ]  # fmt: skip
    try:
        schedule = torch_schedules.get_schedule_class(name)(stages, microbatches, loss_fn=lambda *_: None)
    except ValueError:
        return None
    return [[str(action) for action in schedule.pipeline_order[rank] if action is not None] for rank in range(actors)]


def our_rows(name, actors, microbatches, chunks, group):
    grouped = ["--group", group] if group else []
    table = penstock("schedule", name, "--actors", actors, "--microbatches", microbatches, "--chunks", chunks, *grouped)
    return [line.split(",") for line in table.splitlines()]


def simulated(rows):
    """Makespan and the largest peak of a table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        with open(path, "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
        found = json.loads(penstock("simulate", path, "--json"))
    return found["makespan"], max(found["peak_live"])


class AgainstTorch(unittest.TestCase):
    def sizes(self):
        for actors in (2, 3, 4, 8):
            for microbatches in sorted({1, actors - 1, actors, actors + 1, 2 * actors, 2 * actors + 2, 3 * actors, 4 * actors}):
                for chunks in (1, 2, 3):
                    yield actors, microbatches, chunks

    def test_same_actions(self):
        equal = {}
        for torch_name, name, grouped in PAIRS:
            for actors, microbatches, chunks in self.sizes():
                theirs = torch_rows(torch_name, actors, microbatches, chunks)
                if theirs is None:
                    continue
                with self.subTest(schedule=name, actors=actors, microbatches=microbatches, chunks=chunks):
                    group = microbatches // max(1, microbatches // actors) if grouped else 0
                    ours = our_rows(name, actors, microbatches, chunks, group)
                    if ours == theirs:
                        equal[name] = equal.get(name, 0) + 1
                        continue
                    self.assertLess(microbatches, actors, "only groups smaller than the number of ranks may differ")
                    (time, peak), (their_time, their_peak) = simulated(ours), simulated(theirs)
                    self.assertLessEqual(time, their_time + 1e-9)
                    self.assertLessEqual(peak, their_peak + 1e-9)
        for _, name, _ in PAIRS:
            self.assertGreaterEqual(equal.get(name, 0), 40)

    def test_1f1b_of_torch_is_no_valid_table(self):
        """torch numbers the last rank's forwards from 1, as that rank has no warm-up forward to count from."""
        for actors, microbatches in ((2, 4), (4, 8), (4, 16)):
            with self.subTest(actors=actors, microbatches=microbatches), tempfile.TemporaryDirectory() as folder:
                shape = SimpleNamespace(_num_stages=actors, _n_microbatches=microbatches)
                order = torch_schedules.Schedule1F1B._get_pipeline_order(shape)
                path = Path(folder) / "table.csv"
                with open(path, "w", newline="") as file:
                    csv.writer(file).writerows(order.values())
                message = penstock("schedule", path, fails=True)
                self.assertIn(f"{actors - 1}F{microbatches}", message)
                # Numbered from 0, and without its reductions of gradients, it is ours.
                rows = [[str(action) for action in row if action is not None and "REDUCE" not in str(action)] for row in order.values()]
                rows[-1] = [f"{actors - 1}F{int(cell.split('F')[1]) - 1}" if "F" in cell else cell for cell in rows[-1]]
                self.assertEqual(rows, our_rows("1f1b", actors, microbatches, 1, 0))


if __name__ == "__main__":
    PENSTOCK = sys.argv.pop(1)
    logging.disable(logging.WARNING)
    unittest.main()
