# SPDX-License-Identifier: Apache-2.0
"""penstock profile, end to end."""

import json
import unittest

from support import SMALL, ProgramTest, run


class Profile(ProgramTest):
    def profile(self, *more, out="costs.json", launcher=()):
        return run(*launcher, "profile", *SMALL, "--text", self.text, "--rounds", 2, "--out", self.folder / out, *more)

    def costs(self, out="costs.json"):
        return json.loads((self.folder / out).read_text())

    def profile_ok(self, *more, **options):
        result = self.profile(*more, **options)
        self.assertEqual(result.code, 0, result.err)
        return result

    def test_threads_then_gloo(self):
        result = self.profile_ok("--schedule", "1f1b")
        self.assertIn("F of stage 1/2", result.out)
        self.assertIn("profile: program 2 of 2: tasks\nprofile: links\n", result.err)
        first = self.costs()
        self.assertEqual(list(first)[0], "penstock")
        self.assertEqual({task.get("kind") for task in first["tasks"]}, {"F", "B", "I", "W", None})
        for task in first["tasks"]:
            self.assertGreater(task["alone"]["median"], 0)
            self.assertGreater(task["busy"]["median"], 0)
            self.assertEqual(list(task["beside"]), ["threads"])
        self.assertEqual(list(first["links"]), ["threads"])

        added = self.profile_ok("--schedule", "zb-h1", "--backend", "gloo", "--json", launcher=("launch", "-n", 2, "--"))
        both = self.costs()
        printed = added.json()
        for unsteady in printed["unsteady"]:
            self.assertGreater(unsteady["spread"], 0.25 * unsteady["median"])
            self.assertIn("warning: ", added.err)
        self.assertEqual(printed, {"format": 1, **both, "unsteady": printed["unsteady"]})
        self.assertEqual(sorted(both["links"]), ["gloo", "threads"])
        self.assertEqual({task["hash"] for task in both["tasks"]}, {task["hash"] for task in first["tasks"]})
        for old, new in zip(first["tasks"], both["tasks"]):
            self.assertEqual(old["alone"], new["alone"])
            self.assertEqual(old["beside"]["threads"], new["beside"]["threads"])
            self.assertEqual(sorted(new["beside"]), ["gloo", "threads"])

        # Other stages of the same model are added, another model is not.
        self.profile_ok("--schedule", "interleaved-1f1b", "--chunks", 2)
        more = self.costs()
        self.assertEqual({task["stages"] for task in more["tasks"] if "stage" in task}, {2, 4})
        self.assert_fails(self.profile("--set", "width=64"), "costs.json was measured on another machine or for another model", "width 32, ")

    def test_collectives_of_groups(self):
        shares = ["--set", "data=2", "--set", "zero=3", "--schedule", "1f1b", "--actors", 1, "--set", "batch=16"]
        self.profile_ok(*shares, "--backend", "gloo", launcher=("launch", "-n", 2, "--"))
        kinds = self.costs()["collectives"]["gloo"]
        self.assertTrue(set(kinds) <= {"all_reduce", "all_gather", "reduce_scatter"} and kinds, kinds)
        for link in kinds.values():
            self.assertGreater(link["latency"] + link["start_seconds"], 0)
        self.assertNotIn("threads", self.costs()["collectives"])

    def test_a_table_that_recomputes(self):
        table = self.folder / "again.csv"
        table.write_text("0F0,0F1,0R0,0B0,0F2,0R1,0B1,0F3,0R2,0B2,0R3,0B3\n1F0,1R0,1B0,1F1,1R1,1B1,1F2,1R2,1B2,1F3,1R3,1B3\n")
        result = self.profile_ok("--schedule", table, "--actors", 2)
        self.assertIn("R of stage 0/2", result.out)
        forwards = [task for task in self.costs()["tasks"] if task.get("kind") == "F"]
        self.assertEqual(sorted((task["stage"], task.get("light", False)) for task in forwards), [(0, False), (0, True), (1, False), (1, True)])
        for what in [[table], ["1f1b", "--actors", 2]]:
            result = run("simulate", *what, "--costs", self.folder / "costs.json")
            self.assertEqual(result.code, 0, result.err)

    def test_bad_input(self):
        self.assertEqual(run("profile").code, 2)
        self.assertEqual(self.profile("--rounds", 0).code, 1)
        self.assert_fails(self.profile(out="nowhere/costs.json"), "there is no folder", "nowhere")
        (self.folder / "costs.json").write_text("{")
        self.assert_fails(self.profile(), "costs.json:1:2: this is not JSON")
        other = {"processor": "Another", "cores": 1, "memory_bytes": 1, "build": "x"}
        costs = {"penstock": "costs 1", "machine": other, "model": "m", "tasks": [], "links": {}, "step_overhead": {}, "input_seconds": {}, "copy_bandwidth": 0}
        (self.folder / "costs.json").write_text(json.dumps(costs))
        self.assert_fails(self.profile(), "measured on another machine", "processor: Another, here ", "--out")
        self.assert_fails(self.profile("--backend", "gloo", out="new.json"), "backend gloo needs one process per actor", "penstock launch -n 2")
        self.assertFalse((self.folder / "new.json").exists())
        result = run("launch", "-n", 2, "--", "profile", *SMALL, "--text", self.text, "--out", self.folder / "new.json")
        self.assertEqual(result.code, 1)
        self.assertIn("2 processes were started, but pipeline.backend is threads", result.err)


if __name__ == "__main__":
    unittest.main()
