# SPDX-License-Identifier: Apache-2.0
"""Schedules as tables in Python: what the program prints of them, what they compute, and what is refused.

usage: schedules_test.py, with PENSTOCK the program's path
"""

import copy
import os
import pickle
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import kept_exports  # noqa: F401
import torch
from beside_program import EXAMPLES, message, printed, printed_json
from evaluate import drawn_seed  # finds the package
from small_modules import Case, Model, autograd, seeded, texts, token_loss

import penstock
from penstock import Action, Schedule

# A schedule's options, where it does not take all of actors=4, microbatches=8.
OPTIONS = {
    **dict.fromkeys(("interleaved-1f1b", "zb-v", "dualpipe-v", "hanayo", "bitpipe", "bidirectional"), {"chunks": 2}),
    **dict.fromkeys(("pipedream", "pipedream-2bw", "xpipe"), {"microbatches": 4, "window": 3}),
    "slimpipe": {"microbatches": 2, "slices": 8},
    "slimpipe-exchange": {"actors": 2, "microbatches": 2, "slices": 4},
    "helixpipe": {"actors": 2, "microbatches": 4, "chunks": 2},
    "kfkb": {"group": 2},
    "crosspipe": {"transfers": [0, 0, 2]},
    "1f1b": {"in_flight": 2, "split_backward": True, "frozen": [1, 0.5]},
}


def flags_of(options):
    out = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        out += [flag] if value is True else [flag, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return out


def options_of(name):
    return {"actors": 4, "microbatches": 8} | OPTIONS.get(name, {})


def tables():
    return {name: Schedule(name, **options_of(name)) for name in OPTIONS}


class Tables(unittest.TestCase):
    def test_names_with_options_are_the_programs_tables(self):
        for name, schedule in tables().items():
            with self.subTest(name):
                self.assertEqual(schedule.csv, printed("schedule", name, *flags_of(options_of(name))))
                said = printed_json("schedule", name, *flags_of(options_of(name)))
                self.assertEqual([schedule.name, schedule.stages, schedule.slices, schedule.microbatches, schedule.steps],
                                 [said[key] for key in ("name", "stages", "slices", "microbatches", "steps")])
                self.assertEqual([[str(action) for action in row] for row in schedule.actions], [row["actions"] for row in said["actors"]])

    def test_every_form_gives_the_same_table(self):
        for name, schedule in tables().items():
            with self.subTest(name):
                edges = [line.split(",")[1:] for line in schedule.csv.splitlines() if line.startswith("#feeds")]
                feeds = [tuple(map(int, edge.split(">"))) for edge in edges[0]] if edges else None
                self.assertEqual(Schedule.parse(str(schedule), "x"), schedule)
                self.assertEqual(pickle.loads(pickle.dumps(schedule)), schedule)
                self.assertEqual(copy.deepcopy(schedule).name, name)
                if not schedule.csv.startswith("#forward"):
                    self.assertEqual(Schedule(schedule.rows, feeds=feeds), schedule)
                    self.assertEqual(Schedule(schedule.actions, feeds=feeds), schedule)
                self.assertEqual(len({schedule, Schedule.parse(str(schedule))}), 1)

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "mine.csv"
            Schedule("1f1b", actors=3).save(path)
            self.assertEqual(Schedule.read(path), Schedule("1f1b", actors=3))
            self.assertEqual(Schedule.read(path).name, str(path))
        rules = EXAMPLES / "schedules/zb-h1.rules"
        self.assertEqual(Schedule.read(rules, actors=3, microbatches=6).csv, printed("schedule", rules, "--actors", 3, "--microbatches", 6))
        self.assertEqual(Schedule.parse(rules.read_text(), actors=3), Schedule.read(rules, actors=3))
        slow = Schedule.read(rules, actors=3, microbatches=6, costs={"latency": 2.0})
        self.assertNotEqual(slow, Schedule.read(rules, actors=3, microbatches=6))
        self.assertEqual(slow.validate().stages, 3)

    def test_tuples_and_what_one_knows_of_rows(self):
        schedule = Schedule([[(0, "F", 0), (0, "B", 0)], [Action(1, "F", 0), "1B0"], []], name="mine")
        self.assertEqual(schedule.rows, [["0F0", "0B0"], ["1F0", "1B0"], []])
        self.assertEqual([schedule.name, schedule.actors, schedule.stages, schedule.microbatches], ["mine", 3, 2, 1])
        self.assertEqual(schedule.actions[1][1], Action(1, "B", 0))
        self.assertIs(schedule.validate(), schedule)
        self.assertNotEqual(schedule, Schedule("gpipe"))
        self.assertIn("mine: 3 actors, 2 stages, 1 micro-batches", repr(schedule))
        self.assertIn("time 6", schedule.draw())
        self.assertIsNone(Schedule([["0F0", "0B0"], ["1B0", "1F0"]])._repr_svg_())  # it can never run
        pair = Action(0, "F", 1, fused=True), Action(0, "B", 0)
        self.assertEqual(Schedule([[(0, "F", 0), *pair, (0, "B", 1)]]).rows, [["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]])

    def test_in_a_fresh_process(self):
        """The engine is loaded behind PyTorch, whose libraries it needs, by whichever name and module it is asked for first."""
        for first in ("penstock.Schedule", "penstock.simulate", "__import__('penstock.tables')"):
            script = f"import sys, penstock; {first}; names = list(sys.modules); assert names.index('torch') < names.index('penstock._core')"
            folder = Path(penstock.__file__).parents[1]
            done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""), first)

    def test_infos_name_arguments(self):
        infos = {info["name"]: info for info in penstock.schedule_infos()}
        self.assertEqual(list(infos), penstock.schedules())
        self.assertIn("in_flight", infos["1f1b"]["takes"])
        self.assertIn("in_flight", Schedule.options())

    def test_errors_name_the_nearest_and_the_way_out(self):
        wrong = [
            (lambda: Schedule("zb_h1"), 'did you mean "zb-h1"?'),
            (lambda: Schedule("1f1b", actor=3), 'did you mean "actors"?'),
            (lambda: Schedule("1f1b", qqq=3), "there are actors, "),
            (lambda: Schedule("1f1b", group=3), "1f1b takes no group"),
            (lambda: Schedule("gpipe", actors=0), "at least 1"),
            (lambda: Schedule("gpipe", actors=2.5), "needs a whole number"),
            (lambda: Schedule("mine.csv"), "Schedule.read(path)"),
            (lambda: Schedule("gpipe", feeds=[(0, 1)]), "feeds= is of rows"),
            (lambda: Schedule([["0F0"]], actors=2), "rows say themselves"),
            (lambda: Schedule([["0F0", "0Z0"]]), 'there is no kind "Z"'),
            (lambda: Schedule(["0F0,0B0"]), "a row is a list of actions"),
            (lambda: Schedule([[7]]), "7 is no action"),
            (lambda: Schedule([[(0,)]]), "(0,) is no action"),
            (lambda: Schedule([[Action(0, "F", 0, fused=True)]]), "fused with none behind it"),
            (lambda: Schedule.parse("0F0\n", actors=2), "leave out actors"),
            (lambda: Schedule.parse("0F0\n", costs={"forward": 2}), "which no costs change"),
            (lambda: Schedule.read("no/such.csv"), "cannot be read"),
            (lambda: Schedule([["0F0", "0B0"], ["1B0", "1F0"]]).validate(), "move 1F0"),
            (lambda: Schedule([["0F0", "0F1", "0B0"]]).validate(), "0B1"),
            (lambda: Schedule("gpipe").save("x.csv", width=3), "is of pictures"),
            (lambda: Schedule("gpipe").save("x.pfd"), 'did you mean "pdf"?'),
        ]
        for number, (call, words) in enumerate(wrong):
            with self.subTest(number):
                self.assertIn(words, message(call))


class Trained(Case):
    """Tables that are made in Python compute what autograd does."""

    def test_rows_made_by_hand(self):
        module, batch = seeded(Model), texts()
        loss, theirs = autograd(module, batch)
        rows = Schedule("zb-h1", actors=2, microbatches=4).rows
        drawn = random.Random(drawn_seed())
        for _ in range(2):  # another valid order: two neighbours change places where that leaves a table that can run
            row = drawn.choice(rows)
            at = drawn.randrange(len(row) - 1)
            row[at], row[at + 1] = row[at + 1], row[at]
            try:
                Schedule(rows).validate()
            except penstock.PenstockError:
                row[at], row[at + 1] = row[at + 1], row[at]
        table = Schedule(rows, name="mine")
        for more in ({}, {"data": 2}):
            with self.subTest(**more):
                step = penstock.trainer(module, batch, loss=token_loss, schedule=table, **more)
                self.assertEqual(step.plan.microbatches, 4 * more.get("data", 1))
                found, gradients = step.gradients(batch)
                torch.testing.assert_close(found.item(), loss, rtol=1e-12, atol=1e-12)
                self.assert_alike(gradients, theirs)
                self.assertIn("schedule mine", repr(step))

    def test_check_predict_and_slices_take_tables(self):
        module, batch = seeded(Model), texts()
        table = Schedule("interleaved-1f1b", actors=2, microbatches=2, chunks=2)
        self.assertLess(penstock.check(module, batch, loss=token_loss, schedule=table).gradients, 1e-11)
        step = penstock.trainer(module, batch, loss=token_loss, schedule="gpipe", microbatches=4)
        other = Schedule("1f1b", microbatches=4)
        self.assertEqual(step.predict(schedule=other).seconds, step.predict(schedule="1f1b").seconds)

    def test_a_window_of_steps(self):
        batches = [texts(batch=4) for _ in range(2)]
        module, twin = seeded(Model), seeded(Model)
        losses = []
        for each, schedule in ((module, Schedule("1f1b", microbatches=2, window=2)), (twin, "1f1b")):
            sizes = {} if isinstance(schedule, Schedule) else {"window": 2, "microbatches": 2}
            step = penstock.trainer(each, batches[0], loss=token_loss, schedule=schedule, optimizer=torch.optim.AdamW(each.parameters(), lr=1e-2), **sizes)
            losses.append(step(penstock.Window(batches)))
        torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0)

    def test_sizes_that_differ_are_refused(self):
        module, batch = seeded(Model), texts()
        table = Schedule("1f1b", actors=4, microbatches=4)
        self.assertIn("microbatches=0 is not", message(lambda: penstock.check(module, batch, loss=token_loss, microbatches=0)))
        # Values that are the defaults too, and as a mesh says them.
        for call in (penstock.trainer, penstock.check):
            for sizes, words in (({"actors": 2}, "actors is 2, and 1f1b is a table of 4"), ({"microbatches": 8}, "leave out microbatches"),
                                 ({"mesh": {"pipe": 2}}, "actors is 2, and 1f1b is a table of 4"), ({"mesh": {"pipe": 4}, "actors": 2}, "leave out actors")):
                with self.subTest(call.__name__, **sizes):
                    self.assertIn(words, message(lambda call=call, sizes=sizes: call(module, batch, loss=token_loss, schedule=table, **sizes)))
        several = Schedule("1f1b", microbatches=4, window=2), Schedule("slimpipe", actors=2, microbatches=2, slices=4)
        for schedule, sizes in zip(several, ({"window": 1}, {"slices": 1})):
            self.assertIn(next(iter(sizes)), message(lambda schedule=schedule, sizes=sizes: penstock.trainer(module, batch, loss=token_loss, schedule=schedule, **sizes)))
        self.assertEqual(penstock.trainer(module, batch, loss=token_loss, schedule=Schedule("1f1b", microbatches=4), actors=2, microbatches=4, window=1).plan.actors, 2)
        for sizes, words in (({"actors": 3}, "leave out actors"), ({"microbatches": 2}, "leave out microbatches"), ({"window": 2}, "leave out window"),
                             ({"options": {"in_flight": 2}}, "it takes no in_flight"), ({"slices": 2}, "is a table for 1 slices")):
            with self.subTest(**sizes):
                self.assertIn(words, message(lambda sizes=sizes: penstock.trainer(module, batch, loss=token_loss, schedule=table, **sizes)))
        for path in ("no/such.csv", "no/such.rules"):
            self.assertIn(f"{path} cannot be read: No such file", message(lambda path=path: penstock.trainer(module, batch, loss=token_loss, schedule=path)))
        forwards = Schedule("gpipe", microbatches=4, forward_only=True)
        with tempfile.TemporaryDirectory() as folder:
            forwards.save(Path(folder) / "forwards.csv")
            for how in ({"schedule": forwards}, {"schedule": "gpipe", "options": {"forward_only": True}}, {"schedule": f"{folder}/forwards.csv", "microbatches": 4}):
                self.assertIn("is a table for validation: it has forwards alone", message(lambda how=how: penstock.trainer(module, batch, loss=token_loss, **how)))
        step = penstock.trainer(module, batch, loss=token_loss, microbatches=4)
        self.assertIn("is a table for validation", message(lambda: step.predict(schedule=forwards)))
        broken = Schedule([["0F0", "0B0"], ["1B0", "1F0"]])
        self.assertIn("can never run", message(lambda: penstock.trainer(module, batch, loss=token_loss, schedule=broken)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
