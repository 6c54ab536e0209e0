# SPDX-License-Identifier: Apache-2.0
"""Tables with OFFLOAD and RELOAD, and plans that swap: checked, compiled, simulated, trained."""

import json
import unittest

from support import SMALL, ProgramTest, run, run_all

TABLE = "0F0,0OFFLOAD0,0F1,0OFFLOAD1,0F2,0F3,0B3,0B2,0RELOAD1,0B1,0RELOAD0,0B0\n1F0,1F1,1F2,1F3,1B3,1B2,1B1,1B0\n"


class Offload(ProgramTest):
    def setUp(self):
        super().setUp()
        self.table, self.plain = self.folder / "offload.csv", self.folder / "plain.csv"
        self.table.write_text(TABLE)
        self.plain.write_text(",".join(cell for cell in TABLE.split(",") if "LOAD" not in cell))
        self.config = self.folder / "run.toml"
        self.config.write_text(
            "[model]\nlayers = 4\nwidth = 32\nheads = 2\ncontext = 16\n[train]\nbatch = 8\n[pipeline]\nmicrobatches = 4\n"
        )

    def simulate(self, table, *more):
        flags = ["--schedule", table, "--device", "a100-80", "--network", "nvlink3"]
        result = run("simulate", self.config, *flags, *more)
        self.assertEqual(result.code, 0, result.err)
        return result

    def test_check_and_train(self):
        report = run("check", *SMALL, "--dtype", "f64", "--schedule", self.table, "--json").json()
        self.assertTrue(report["equal"], report)
        plans = [self.train(table.stem, 4, "--schedule", table, "--json").json() for table in (self.table, self.plain)]
        planned = [plan["actors"][0]["planned_bytes"] for plan in plans]
        self.assertLess(planned[0], planned[1])
        losses = [(self.folder / table.stem / "metrics.jsonl").read_text().splitlines() for table in (self.table, self.plain)]
        self.assertEqual(*([json.loads(line)["loss"] for line in lines] for lines in losses))

    def test_a_plan_swaps_nodes(self):
        """DawnPiper's, within memory that its cuts alone do not keep: by threads, processes and a device with memory of its own."""
        model = [*SMALL[:-2], "--set", "layers=8", "--set", "width=16", "--set", "context=64"]
        arguments = ["plan", "gpt", *model, "--devices", 4, "--bandwidth", 1e10, "--planner", "dawnpiper", "--microbatch-sizes", 1, "--json"]
        free = run(*arguments, "--memory", 1e12).json()
        self.assertFalse(any("swap" in stage for stage in free["stages"]))
        file, limit = self.folder / "p.json", 0.85 * max(free["peak_bytes"])
        planned = run(*arguments, "--memory", limit, "--out", file)
        self.assertEqual(planned.code, 0, planned.err)
        plan = planned.json()
        self.assertTrue(any("swap" in stage for stage in plan["stages"]), plan)
        self.assertIn("OFFLOAD", file.read_text())
        self.assertLessEqual(max(plan["peak_bytes"]), limit)
        of_plan = [*model, "--plan", file, "--text", self.text]
        check = ["check", *of_plan, "--dtype", "f64", "--json"]
        for results in ([run(*check)], [run(*check, "--device", "standin")], run_all(4, *check, "--backend", "gloo")):
            for result in results:
                self.assertEqual(result.code, 0, result.err)
            self.assertTrue(results[0].json()["equal"])
        trained = run("train", *of_plan, "--steps", 2, "--out", self.folder / "run", "--json")
        self.assertEqual(trained.code, 0, trained.err)
        self.assertEqual([actor["planned_bytes"] for actor in trained.json()["actors"]], plan["peak_bytes"])

    def test_plans_of_other_models_swap(self):
        """One of T5's stages swaps and another computes again."""
        for model, flags, share, ways in (
            ("t5", ["--set", "width=32", "--set", "heads=2", "--set", "context=64", "--set", "layers=6", "--batch", 8], 0.92, {"swap", "recompute"}),
            ("resnet", ["--batch", 16], 0.65, {"swap"}),
        ):
            with self.subTest(model):
                arguments = ["plan", model, *flags, "--devices", 4, "--bandwidth", 1e10, "--planner", "dawnpiper", "--microbatch-sizes", 1, "--json"]
                file, limit = self.folder / f"{model}.json", share * max(run(*arguments, "--memory", 1e13).json()["peak_bytes"])
                planned = run(*arguments, "--memory", limit, "--out", file)
                self.assertEqual(planned.code, 0, planned.err)
                plan = planned.json()
                self.assertEqual({way for stage in plan["stages"] for way in ("swap", "recompute") if way in stage}, ways)
                self.assertLessEqual(max(plan["peak_bytes"]), limit)
                report = run("check", "--set", f"model.name={model}", *flags, "--plan", file, "--dtype", "f64", "--json")
                self.assertEqual(report.code, 0, report.err)
                self.assertTrue(report.json()["equal"])

    def test_verify_tells_the_hosts_bytes(self):
        program = self.folder / "program.txt"
        program.write_text(run("compile", *SMALL, "--schedule", self.table, "--emit", "program").out)
        devices = run("verify", program, "--json").json()["devices"]
        self.assertGreater(devices[0]["host_bytes"], 0)
        self.assertEqual(devices[1]["host_bytes"], 0)
        self.assertIn("host", run("verify", program).out)

    def test_simulate_shows_the_copies(self):
        timeline = self.folder / "timeline.json"
        with_copies = self.simulate(self.table, "--json", "--timeline", timeline).json()
        without = self.simulate(self.plain, "--json").json()
        self.assertLess(with_copies["peak_bytes"][0], without["peak_bytes"][0])
        events = json.loads(timeline.read_text())["traceEvents"]
        names = {event["name"] for event in events if event["ph"] == "X" and event["cat"] == "transfer"}
        self.assertLessEqual({"OFFLOAD0", "OFFLOAD1", "RELOAD0", "RELOAD1"}, names)
        page = self.folder / "page.html"
        self.assertEqual(run("show", timeline, "--out", page).code, 0)
        self.assertIn("OFFLOAD", page.read_text())


if __name__ == "__main__":
    unittest.main()
