# SPDX-License-Identifier: Apache-2.0
"""Schedules as rules: a file of them goes wherever a schedule's name does."""

import json
import pathlib
import unittest

from support import SMALL, ProgramTest, run

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "schedules"


class RulesTest(ProgramTest):
    def rules(self, text):
        file = self.folder / "my.rules"
        file.write_text("penstock rules 1\n" + text)
        return file

    def test_the_examples_are_tables(self):
        for name in ("gpipe", "1f1b", "zb-h1"):
            shape = ["--actors", 4, "--microbatches", 6]
            rules, named = (run("schedule", what, *shape, "--show") for what in (EXAMPLES / f"{name}.rules", name))
            self.assertEqual(rules.code, 0, rules.err)
            self.assertEqual(rules.out, named.out)

    def test_simulate(self):
        result = run("simulate", EXAMPLES / "bidirectional.rules", "--actors", 4, "--microbatches", 4, "--json").json()
        self.assertEqual((result["makespan"], result["peak_live"]), (16, [3, 4, 4, 3]))
        branches = self.rules("placement stages 0 1 2\nedges 0>2 1>2\n")
        result = run("simulate", branches, "--actors", 3, "--microbatches", 1, "--json").json()
        self.assertEqual(result["makespan"], 6)

    def test_a_profile_changes_the_table(self):
        """Where stage 0 is slow, backwards are there before more than one forward is ahead of them."""
        rules = self.rules("prefer B F\n")
        shape = ["--actors", 2, "--microbatches", 4, "--json"]
        unit = run("simulate", rules, *shape).json()
        self.assertEqual(unit["peak_live"], [4, 1])
        profile = run("profile", *SMALL, "--text", self.text, "--rounds", 2, "--schedule", rules, "--out", self.folder / "costs.json")
        self.assertEqual(profile.code, 0, profile.err)
        costs = json.loads((self.folder / "costs.json").read_text())
        for entry in costs["tasks"]:
            seconds = 10 if entry.get("stage") == 0 and entry.get("kind") == "F" else 1
            for sample in (entry["alone"], entry["busy"], *entry["beside"].values()):
                if "median" in sample:
                    sample["median"] = sample["mean"] = seconds
        (self.folder / "costs.json").write_text(json.dumps(costs))
        slow = run("simulate", rules, *shape, "--costs", self.folder / "costs.json", "--latency", 0)
        self.assertEqual(slow.code, 0, slow.err)
        self.assertEqual(slow.json()["peak_live"], [2, 1])

    def test_check(self):
        for name, chunks in (("zb-v", 1), ("bidirectional", 1), ("breadth-first", 2)):
            result = run("check", *SMALL, "--text", self.text, "--dtype", "f64", "--schedule", EXAMPLES / f"{name}.rules",
                         "--actors", 2, "--chunks", chunks)  # fmt: skip
            self.assertEqual(result.code, 0, result.out + result.err)

    def test_a_window(self):
        window = ("--actors", 2, "--window", 3, "--set", "clip=0", "--set", "tied=0", "--dtype", "f64", "--json")
        result = run("check", *SMALL, "--text", self.text, "--schedule", EXAMPLES / "zb-h1.rules", *window)
        self.assertEqual(result.code, 0, result.out + result.err)
        self.assertEqual(result.json()["parameter_difference"], 0)  # a window's check compares parameters

    def test_what_follows_from_the_order(self):
        """Recomputation, offloading, gathers, updates and slices by rules give the sequential step; and a window that is never drained its window."""
        rules = self.rules("warm-up F\ndrain B\nrecompute beyond 4\noffload beyond 2\ngather turns\nupdate\nslices\n")
        table = run("schedule", rules, "--actors", 2, "--microbatches", 4, "--slices", 2)
        for kind in ("R", "OFFLOAD", "RELOAD", "UNSHARD", "RESHARD", "REDUCE_GRAD", "U"):
            self.assertRegex(table.out, rf"[0-9]{kind}[0-9,\n]")
        shapes = (("--actors", 2), ("--mesh", "pipe=2,data=2", "--set", "pipeline.zero=3"))
        for shape in shapes:
            result = run("check", *SMALL, "--text", self.text, "--dtype", "f64", "--schedule", rules, "--slices", 2, *shape)
            self.assertEqual(result.code, 0, result.out + result.err)
        window = ("--actors", 2, "--window", 3, "--set", "clip=0", "--set", "tied=0", "--dtype", "f64", "--json")
        rules = self.rules("prefer B F\nlimit p-r\nrecompute\nwindow undrained\n")
        result = run("check", *SMALL, "--text", self.text, "--schedule", rules, *window)
        self.assertEqual(result.code, 0, result.out + result.err)
        self.assertEqual(result.json()["parameter_difference"], 0)

    def test_errors(self):
        def fails(what, *parts):
            self.assert_fails(run("schedule", what, "--actors", 2), *parts)

        fails(self.rules("limit p-q\n"), "my.rules:2:9: expected a number", "p, m, v, n, r, s")
        fails(self.rules("recomput\n"), 'my.rules:2:1: unknown rule "recomput"', "did you mean recompute?")
        fails(self.rules("prefer B F U\n"), "my.rules:2:12: U follows from the order of F and its backward", "write `update`")
        fails(self.rules("recompute\noffload\n"), "my.rules:3:1: nothing is left to offload", "recompute beyond N")
        fails(self.rules("prefer F\n"), "my.rules: nothing may run any more", "actor 1: 1B0 waits: drain does not let B run")
        fails(self.rules("placement wave 2\nlimit 1\n"), 'actor 0: 0F1 waits: 1 in flight, and "limit 1" allows 1')
        fails(self.folder / "none.rules", "none.rules: No such file or directory")
        self.assert_fails(run("schedule", self.rules("prefer B F\n"), "--actors", 2, "--head-shards", 2), "my.rules says by its placement", "leave out --head-shards")
        self.assert_fails(run("train", *SMALL, "--text", self.text, "--schedule", self.rules("limit 0"), "--out", self.folder / "out"),
                          "my.rules: nothing may run any more", "actor 0: 0F0 waits")  # fmt: skip
        self.assertFalse((self.folder / "out").exists())


if __name__ == "__main__":
    unittest.main()
