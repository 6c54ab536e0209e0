# SPDX-License-Identifier: Apache-2.0
"""Frozen layers in idle time: published values, the pictures, and what is refused."""

import json
import unittest

from support import ProgramTest, run

FOUR = ("1f1b", "--actors", 4, "--microbatches", 4)


class Fill(ProgramTest):
    def filled(self, *arguments):
        result = run("schedule", *arguments, "--json")
        self.assertEqual(result.code, 0, result.err)
        return result.json()

    def test_published(self):
        for chains, more, placed, makespan in (("10x2", (), 1, 21), ("10x2.88", (), 1, 21), ("4x3;8x1.5", (), 1, 21), ("28.8", (), 0.375, 25.5),
                                               ("28.8", ("--quantum", "1/64"), 1, 21)):  # fmt: skip
            found = self.filled(*FOUR, "--fill", chains, *more)
            self.assertAlmostEqual(found["placed_share"], placed, delta=1e-12)
            self.assertAlmostEqual(found["makespan"], makespan, delta=1e-9)
            self.assertEqual((found["makespan_without"], found["idle"]), (21, 36))
        self.assertEqual(self.filled(*FOUR, "--fill", "10x2")["makespan_behind"], 26)
        two = self.filled("1f1b", "--actors", 2, "--microbatches", 4, "--fill", "1,.5,2")
        self.assertEqual((two["makespan"], two["idle"]), (15, 6))
        self.assertAlmostEqual(two["filled_share"], 7 / 12, delta=1e-12)

    def test_steps(self):
        for steps in (1, 3, 10):
            found = self.filled(*FOUR, "--fill", "10x2.88", "--steps", steps)
            self.assertAlmostEqual(found["steps"]["makespan"], 28.8 / 4 + steps * 21, delta=1e-9)

    def test_nothing_is_idle(self):
        found = self.filled("1f1b", "--actors", 1, "--microbatches", 4, "--fill", "2")
        self.assertEqual((found["placed"], found["inside"], found["makespan"], found["filled_share"]), (0, [], 14, 0))

    def test_pictures(self):
        timeline = self.folder / "filled.json"
        shown = run("schedule", *FOUR, "--fill", "28.8", "--timeline", timeline)
        self.assertIn("37.5 % of them, in 30 % of the idle time of 36", shown.out)
        self.assertIn("z0.0*1/8", shown.out)
        self.assertIn("z frozen layers", shown.out)
        self.assertEqual(sum(line.startswith("actor") and "z" in line for line in shown.out.splitlines()), 4)
        for extension in ("svg", "html", "txt"):
            picture = self.folder / f"filled.{extension}"
            self.assertEqual(run("show", timeline, "--out", picture).code, 0)
            self.assertIn("frozen", picture.read_text())
        self.assertIn("z0.0*1/8", (self.folder / "filled.svg").read_text())
        again = self.folder / "again.json"
        self.assertEqual(run("show", timeline, "--out", again).code, 0)
        self.assertEqual(json.loads(again.read_text())["penstock"], json.loads(timeline.read_text())["penstock"])

    def test_simulated_times(self):
        plain = run("simulate", *FOUR, "--latency", 0.5, "--json").json()
        found = run("simulate", *FOUR, "--latency", 0.5, "--fill", "10x3", "--json").json()
        self.assertEqual(found["makespan"], plain["makespan"])
        self.assertEqual(found["fill"]["makespan_without"], plain["makespan"])
        self.assertAlmostEqual(found["fill"]["idle"], sum(actor["idle"] for actor in plain["actors"]))
        self.assertIn("frozen layers", run("simulate", *FOUR, "--fill", "10x3", "--show").out)

    def test_self_conditioning(self):
        for microbatches, makespan in ((4, 25), (8, 41)):
            shape = ("1f1b", "--actors", 4, "--microbatches", microbatches, "--self-conditioning")
            self.assertEqual(run("simulate", *shape, "--json").json()["makespan"], makespan)
            self.assertIn(f"time {makespan},", run("schedule", *shape, "--show").out)
        # Its cost beside frozen stages that are ahead of each step, and that fill the step before.
        times = {}
        for own in ((), ("--self-conditioning",)):
            for window in (1, 8):
                shape = ("1f1b", "--actors", 4, "--microbatches", 4, "--frozen", "2,2", "--window", window, *own)
                times[len(own), window] = run("simulate", *shape, "--json").json()["makespan"] / window
        self.assertEqual(times, {(0, 1): 25, (0, 8): 21.5, (1, 1): 29, (1, 8): 25.5})
        self.assert_fails(run("schedule", "zb-h1", "--self-conditioning"), "zb-h1 takes no --self-conditioning", "schedules that do: 1f1b")

    def test_refused(self):
        for arguments, parts in (
            (("--fill", "10x0"), ('--fill "10x0": a layer of "10x0" takes 0.0', "a layer's time is a finite number above 0")),
            (("--fill", "1,-2"), ('a layer of "-2" takes -2.0',)),
            (("--fill", "inf"), ('a layer of "inf" takes inf',)),
            (("--fill", "0x3"), ('"0x3" has 0 layers', "at least one")),
            (("--fill", "3y4"), ('cannot read "3y4"', "COUNTxTIME or TIME")),
            (("--fill", "4x3;;2"), ("chain 1 is empty", "4x3;8x1.5")),
            (("--fill", "1000000x3"), ("more than 100000 layers in a chain",)),
            (("--fill", "2", "--quantum", "0.3"), ('--quantum "0.3": a batch has 3.33333 of them', "a quantum is 1/n of a batch")),
            (("--fill", "2", "--quantum", "0"), ("is 0.0, not above 0 and at most 1",)),
            (("--fill", "2", "--quantum", "3/2"), ("is 1.5, not above 0 and at most 1",)),
            (("--fill", "2", "--quantum", "-1/8"), ("is -0.125, not above 0",)),
            (("--fill", "2", "--quantum", "1/0"), ("is inf, not above 0",)),
            (("--fill", "2", "--quantum", "1/9999"), ("a batch has 9999 of them, no whole number up to 4096",)),
            (("--fill", "2", "--quantum", "eighth"), ("this is no part of a batch", "1/8")),
            (("--fill", "2", "--steps", "0"), ("0 steps are no steps",)),
            (("--quantum", "1/8"), ("--quantum is for frozen layers in idle time", "add --fill")),
            (("--steps", "2"), ("--steps is for frozen layers",)),
            (("--timeline", "out.json"), ("--timeline out.json: a schedule alone has no times", "penstock simulate NAME")),
        ):
            self.assert_fails(run("schedule", *FOUR, *arguments), *parts)


if __name__ == "__main__":
    unittest.main()
