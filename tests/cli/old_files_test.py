# SPDX-License-Identifier: Apache-2.0
"""Files that the program wrote before tables became one structure (tests/fixtures/before_one_table/README.md) are read by the program of today."""

import json
import pathlib
import shutil
import unittest

from support import ProgramTest, read_metrics, run

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures/before_one_table"
# Tables in whose files the old program left out what stages are not trained, run twice or belong to which backbone: they may be refused.
UNSAID = {"backbones", "frozen", "twice"}


class OldFiles(ProgramTest):
    def setUp(self):
        super().setUp()
        shutil.copytree(FIXTURES, self.folder / "old")

    def succeed(self, *arguments):
        """Runs a command among the files, whose paths are given from there."""
        result = run(*arguments, cwd=self.folder / "old")
        self.assertEqual(result.code, 0, f"{arguments}\n{result.err}")
        return result

    def files(self, pattern, least):
        """As paths from the folder of the files; at least so many, so that no test passes for want of them."""
        found = sorted(path.relative_to(FIXTURES) for path in FIXTURES.glob(pattern))
        self.assertGreaterEqual(len(found), least)
        return found

    def test_runs_go_on(self):
        """Steps 3 and 4 have the losses that the old program found. Kernels of other processors round otherwise."""
        for folder in self.files("runs/*", 4):
            with self.subTest(folder):
                self.succeed("verify", folder)
                text = ["--text", "text.txt"] if folder.name in ("plain", "lora") else []
                self.succeed("train", "--resume", folder, "--steps", 4, *text)
                then, now = (read_metrics(place / folder) for place in (FIXTURES, self.folder / "old"))
                for step in (3, 4):
                    for key in ("loss", "gradient_norm"):
                        self.assertAlmostEqual(now[step][key] / then[step][key], 1, delta=1e-4)

    def test_a_checkpoint_by_itself(self):
        """Under another plan, as a start for another run, and to continue a text."""
        plain = "runs/plain/checkpoint-2"
        self.succeed("train", "--resume", plain, "--steps", 3, "--text", "text.txt", "--schedule", "zb-h1", "--mesh", "pipe=1,data=2", "--out", "other")
        self.assertAlmostEqual(read_metrics(self.folder / "old/other")[3]["loss"], read_metrics(FIXTURES / "runs/plain")[3]["loss"], delta=1e-4)
        self.succeed("train", "runs/lora/config.toml", "--init", plain, "--text", "text.txt", "--steps", 1, "--out", "adapted")
        self.succeed("generate", plain, "--tokens", 3)
        self.succeed("train", "uno.toml", "--init", "parameters.safetensors", "--steps", 1, "--out", "uno")

    def test_configurations(self):
        for file in ("every_key.toml", "uno.toml", "documents.toml", "varied.toml", *self.files("runs/*/config.toml", 4)):
            with self.subTest(file):
                text = ["--text", "text.txt"] if str(file) in ("every_key.toml", "runs/plain/config.toml", "runs/lora/config.toml") else []
                self.succeed("train", file, *text, "--steps", 2, "--out", f"by-{str(file).replace('/', '-')}")
        every = (FIXTURES / "every_key.toml").read_text()
        self.assertIn('schedule = "1f1b"', every)
        (self.folder / "old/misspelt.toml").write_text(every.replace("schedule = ", "shedule = "))
        self.assert_fails(run("train", "misspelt.toml", cwd=self.folder / "old"), "did you mean")

    def test_tables(self):
        for table in self.files("tables/*.csv", 18):
            with self.subTest(table):
                if table.stem in UNSAID and (refused := run("verify", table, cwd=self.folder / "old")).code != 0:
                    self.assert_fails(refused, f"{table}:", "\n  hint: ")
                    continue
                self.succeed("verify", table)
                found = self.succeed("simulate", table, "--json").json()
                self.assertGreaterEqual(found["makespan"], found["lower_bound"])

    def test_tables_are_run(self):
        """One table of each kind computes what the sequential step does. The gathers are of parameters in shares."""
        model = ["--set", "layers=6", "--set", "width=8", "--set", "model.heads=2", "--set", "context=16", "--batch", 8, "--dtype", "f64", "--text", "text.txt"]
        shares = ["--mesh", "pipe=2,data=2", "--set", "zero=3"]
        window = ["--set", "clip=0", "--set", "tied=0", "--microbatches", 2]
        cases = {"fused": [], "gathers": shares, "slices": [], "blocks": ["--set", "layers=2", "--slices", 4], "attention": [], "split": [], "copies": [], "recomputed": [],
                 "offloaded": [], "cyclic": [], "window": window, "versions": window, "predicted": window, "balanced": window,
                 "drained": window}  # fmt: skip
        for name, more in cases.items():
            with self.subTest(name):
                found = self.succeed("check", *model, *more, "--schedule", f"tables/{name}.csv", "--json").json()
                self.assertTrue(found["equal"])

    def test_programs(self):
        for program in ("zero.txt", "window.txt"):
            with self.subTest(program):
                self.succeed("verify", program)
                self.assertGreater(self.succeed("simulate", program, "--figures", "v100", "--network", "nvlink3", "--json").json()["makespan"], 0)

    def test_plans(self):
        for plan in self.files("plans/*.json", 7):
            with self.subTest(plan):
                self.assertIn("stage", self.succeed("show", plan).out)
                self.succeed("show", plan, "--out", "plan.html")
                if plan.stem == "graph":  # is of no model
                    continue
                self.succeed("simulate", "uno.toml", "--plan", plan, "--figures", "v100", "--network", "nvlink3")
                self.assertTrue(self.succeed("check", "uno.toml", "--plan", plan, "--dtype", "f64", "--json").json()["equal"])
                self.succeed("train", "uno.toml", "--plan", plan, "--steps", 1, "--out", f"by-{plan.stem}")
        self.succeed("plan", "graph.json", "--devices", 2, "--bandwidth", 1e9)

    def test_costs(self):
        self.assertGreater(self.succeed("simulate", "uno.toml", "--costs", "costs.json", "--json").json()["makespan"], 0)
        self.succeed("simulate", "1f1b", "--microbatches", 2, "--costs", "costs.json")
        # What is measured adds to what is there, if that is of this machine.
        self.succeed("profile", "uno.toml", "--rounds", 1, "--out", "here.json")
        old, here = (json.loads((self.folder / "old" / name).read_text()) for name in ("costs.json", "here.json"))
        (self.folder / "old/costs.json").write_text(json.dumps({**old, "machine": here["machine"]}))
        self.succeed("profile", "uno.toml", "--rounds", 1, "--out", "costs.json")

    def test_timelines(self):
        for timeline in ("measured.json", "predicted.json", "filled.json"):
            with self.subTest(timeline):
                self.succeed("show", timeline)
                self.succeed("show", timeline, "--out", "timeline.svg")
        self.succeed("show", "predicted.json", "filled.json", "--out", "both.html")

    def test_tokens(self):
        self.succeed("data", "show", "tokens.bin")
        self.succeed("train", "documents.toml", "--set", "data.documents=tokens.bin", "--steps", 1, "--out", "tokens")

    def test_a_module_that_python_exported(self):
        inputs = ["--set", "inputs=input=normal,target=classes", "--set", "vocabulary=3", "--batch", 8, "--microbatches", 2]
        self.succeed("train", "exported.safetensors", *inputs, "--steps", 1, "--out", "exported")
        self.assertTrue(self.succeed("check", "exported.safetensors", *inputs, "--dtype", "f64", "--json").json()["equal"])


if __name__ == "__main__":
    unittest.main()
