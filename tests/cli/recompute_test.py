# SPDX-License-Identifier: Apache-2.0
"""Steps whose backwards compute forwards again are equal to the sequential step, and take the memory that they say."""

import json
import unittest

from support import SMALL, ProgramTest, run, run_all

MODEL = ["--set", "model.dropout=0.1", "--set", "width=16", "--set", "context=128"]


class Recompute(ProgramTest):
    def trained(self, name, *more):
        """Losses, and the bytes that each device planned."""
        actors = self.train(name, 3, "--json", *more).json()["actors"]
        lines = [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if "loss" in line], [actor["planned_bytes"] for actor in actors]

    def verified(self, *more):
        program = self.folder / "program.txt"
        program.write_text(run("compile", *SMALL, *more, "--emit", "program").out)
        return run("verify", program, "--json").json()["devices"]

    def test_selective_keeps_less_than_all_and_more_than_inputs(self):
        kept, losses = {}, {}
        for value in ("none", "selective", "inputs"):
            losses[value], planned = self.trained(value, *MODEL, "--recompute", value)
            devices = self.verified(*MODEL, "--recompute", value)
            self.assertEqual([device["peak_bytes"] for device in devices], planned, value)
            kept[value] = [device["step_bytes"] for device in devices]
            if value == "selective":
                self.assertLess(max(planned), 0.6 * before)
            before = max(planned)
        self.assertEqual(losses["selective"], losses["none"])
        self.assertEqual(losses["inputs"], losses["none"])
        for none, selective, inputs in zip(kept["none"], kept["selective"], kept["inputs"], strict=True):
            self.assertGreater(none, 3 * selective)
            self.assertGreater(selective, inputs)

    def test_r_makes_what_selective_leaves(self):
        table = self.folder / "table.csv"
        table.write_text("0F0,0F1,0R0,0B0,0F2,0R1,0B1,0F3,0R2,0B2,0B3\n1F0,1B0,1F1,1R1,1B1,1F2,1B2,1F3,1B3\n")
        arguments = [*SMALL, "--text", self.text, "--schedule", table, "--dtype", "f64"]
        report = run("check", *arguments, "--recompute", "selective", "--json")
        self.assertEqual(report.code, 0, report.err)
        self.assertTrue(report.json()["equal"])
        self.assert_fails(run("check", *arguments, "--recompute", "inputs"), "0R0 has nothing to recompute")

    def test_a_plan_names_nodes(self):
        """DawnPiper's plan, within memory that its cuts alone do not keep, by threads and processes."""
        arguments = ["gpt", *SMALL[:-2], *MODEL, "--devices", 2, "--bandwidth", 1e10, "--planner", "dawnpiper", "--microbatch-sizes", 2]
        free = run("plan", *arguments, "--memory", 1e12, "--json").json()
        self.assertFalse(any("recompute" in stage for stage in free["stages"]))
        file, limit = self.folder / "p.json", 0.95 * max(free["peak_bytes"])
        planned = run("plan", *arguments, "--memory", limit, "--out", file, "--json")
        self.assertEqual(planned.code, 0, planned.err)
        plan = planned.json()
        again = [node for stage in plan["stages"] for node in stage.get("recompute", [])]
        self.assertTrue(again)
        self.assertLessEqual(max(plan["peak_bytes"]), limit)
        of_plan = [*SMALL[:-2], *MODEL, "--plan", file, "--text", self.text]
        check = ["check", *of_plan, "--dtype", "f64", "--json"]
        for results in ([run(*check)], run_all(2, *check, "--backend", "gloo")):
            for result in results:
                self.assertEqual(result.code, 0, result.err)
            self.assertTrue(results[0].json()["equal"])
        trained = run("train", *of_plan, "--steps", 2, "--out", self.folder / "run", "--json")
        self.assertEqual(trained.code, 0, trained.err)
        self.assertEqual([actor["planned_bytes"] for actor in trained.json()["actors"]], plan["peak_bytes"])
        self.assert_fails(run("train", *of_plan, "--steps", 2, "--out", self.folder / "late", "--set", "schedule=xpipe"), "the plan")
        wrong = self.folder / "wrong.json"
        wrong.write_text(file.read_text().replace(f'"recompute": [\n    "{again[0]}"', '"recompute": [\n    "h.9.attn"'))
        self.assert_fails(run("check", *of_plan[:-3], wrong), "a stage computes again nodes of its own")


if __name__ == "__main__":
    unittest.main()
