# SPDX-License-Identifier: Apache-2.0
"""Sizing: the lemmas' values, what is simulated beside them, figures of runs and profiles, and figures that say nothing."""

import json
import unittest

from support import ProgramTest, read_state, run

CONFIG = """[model]
name = "candle-uno"
branches = 2
layers = 2
width = 16
[train]
batch = 8
[pipeline]
actors = 2
microbatches = 2
"""
ASKED = ("--gpus", 4, "--alpha", 0.5, "--workers", 8, "--bandwidth", 1e9)


class Size(ProgramTest):
    def test_gpus(self):
        for overhead, gpus, efficiency in ((0.1, 4, 0.7857), (0.05, 8, 0.75), (0.02, 16, 0.7727)):
            found = run("size", "--overhead", overhead, "--gpus", gpus, "--json").json()
            self.assertAlmostEqual(found["efficiency"], efficiency, delta=5e-5)
            self.assertAlmostEqual(found["simulated_efficiency"], efficiency, delta=0.02 * efficiency)
        for overhead, most in ((0.1, 3), (0.05, 6)):
            self.assertEqual(run("size", "--overhead", overhead, "--alpha", 0.8, "--json").json(), {"format": 1, "most_gpus": most})
        self.assertIn("(1 + R) / (1 + G R)", run("size", "--overhead", 0.1, "--gpus", 4).out)

    def test_servers(self):
        for parameters, workers, bandwidth, compute, servers in ((0.1, 8, 1.25, 0.5, 3), (0.5, 4, 1.25, 1, 4), (1, 16, 10, 0.8, 4), (0.25, 2, 1, 1, 1)):
            found = run("size", "--parameters", parameters, "--workers", workers, "--bandwidth", bandwidth, "--compute", compute, "--json").json()
            self.assertEqual((found["servers"], found["exposed_seconds"]), (servers, 0))
            self.assertEqual("exposed_with_one_fewer" in found, servers > 1)
            self.assertGreater(found.get("exposed_with_one_fewer", 1), 0)

    def expect_lemmas_of(self, *source):
        """The answer is that of the same figures given by hand. Gives these."""
        found = run("size", *source, *ASKED, "--json").json()
        figures = {name: found.pop(name) for name in ("compute", "overhead", "parameters")}
        self.assertEqual(found, run("size", *ASKED, *(part for name, value in figures.items() for part in (f"--{name}", repr(value))), "--json").json())
        self.assertEqual(run("size", *source, "--json").json(), {"format": 1, **figures})
        given = run("size", *source, *ASKED, "--overhead", 0.25, "--compute", 0.5, "--json").json()
        self.assertEqual(given["efficiency"], 0.625)
        return figures

    def test_a_run_says_its_figures(self):
        config = self.folder / "model.toml"
        config.write_text(CONFIG)
        for mesh, more in (("pipe=2,data=2", ()), ("pipe=2", ("--schedule", "pipedream", "--window", 3, "--set", "clip=0"))):
            out = self.folder / mesh
            done = run("train", config, "--mesh", mesh, "--steps", 9, "--out", out, *more)
            self.assertEqual(done.code, 0, done.err)
            figures = self.expect_lemmas_of("--run", out)
            timeline = json.loads((out / "timeline.json").read_text())["penstock"]
            columns, devices = timeline["activities"], len(timeline["devices"])
            compute = timeline["lanes"].index("compute")
            computing = sum(end - begin for begin, end, lane in zip(columns["begin"], columns["end"], columns["lane"]) if lane == compute)
            self.assertAlmostEqual(figures["compute"], computing / devices / (3 if more else 1), delta=1e-12)
            self.assertAlmostEqual((1 + devices * figures["overhead"]) * computing / devices, timeline["makespan"], delta=1e-9)
            state = read_state(out / "checkpoint-9")
            self.assertEqual(figures["parameters"], sum(len(value) for name, value in state.items() if ":" not in name and name != "step"))

    def test_a_profile_says_its_figures(self):
        config, costs = self.folder / "model.toml", self.folder / "costs.json"
        config.write_text(CONFIG)
        measured = run("profile", config, "--rounds", 2, "--out", costs)
        self.assertEqual(measured.code, 0, measured.err)
        figures = self.expect_lemmas_of(config, "--costs", costs)
        predicted = run("simulate", config, "--costs", costs, "--json").json()
        self.assertAlmostEqual((1 + 2 * figures["overhead"]) * figures["compute"], predicted["step_seconds"], delta=1e-9)
        other = run("size", config, "--costs", costs, "--set", "width=24")
        self.assertEqual(other.code, 1)
        self.assertIn("penstock profile", other.err)

    def test_refused(self):
        servers = ("--parameters", 1, "--workers", 4, "--bandwidth", 1)
        for arguments, why in (((), "nothing is given"), (("--overhead", 0.1), "--overhead alone says nothing"), (("--gpus", 4), "need --overhead"),
                               (servers, "servers follow from four figures, and 3 are given"), (("--overhead", -1, "--gpus", 4), "the overhead is -1"),
                               ((*servers[:-1], 0, "--compute", 1), "a server's bandwidth is 0"), (("--overhead", 0.1, "--gpus", 0), "the number of GPUs is 0"),
                               (("--overhead", 0.1, "--alpha", 2), "the efficiency is 2"), ((*servers, "--compute", 0), "the computing time is 0"),
                               (("--run", "r", "--costs", "c"), "--run has a run's own configuration and times"),
                               (("model.toml",), "how long do the configuration's tasks take?"),
                               (("--run", self.folder), "cannot read")):  # fmt: skip
            result = run("size", *arguments)
            self.assertEqual(result.code, 1, result.out)
            self.assertIn(why, result.err)


if __name__ == "__main__":
    unittest.main()
