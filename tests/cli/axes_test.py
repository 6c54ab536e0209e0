# SPDX-License-Identifier: Apache-2.0
"""Actors whose tensors are split over axes: the same gradients over Gloo, and checkpoints that move between meshes."""

import json
import unittest

from support import SMALL, ProgramTest, run, run_all, sampled

# Neither the axes nor 64 bytes divide all of it.
MODEL = ["--dtype", "f64", "--set", "model.layers=4", "--set", "heads=4", "--set", "vocabulary=257"]
MESH = "pipe=2,data=2,tensor=2"


class Axes(ProgramTest):
    def losses(self, out):
        return [json.loads(line)["loss"] for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]

    def assert_losses(self, out, expected):
        for found, loss in zip(self.losses(out), expected, strict=True):
            self.assertAlmostEqual(found, loss, delta=1e-9 * abs(loss), msg=out)

    def test_what_is_made_of_shared_parameters_alone(self):
        """A bias that is looked up in a table which members share needs them all: it is made in the loop."""
        for mesh in ("pipe=1,tensor=2", "pipe=2,tensor=2"):
            result = run("check", "--set", "name=t5", "--dtype", "f64", "--mesh", mesh, "--set", "layout.buckets=tensor", "--set", "layout.heads=")
            self.assertEqual(result.code, 0, result.err)

    def test_check_over_gloo(self):
        cases = [("pipe=2,tensor=2", "--schedule", name) for name in ("1f1b", "zb-h1")]
        cases += [("pipe=2,tensor=2", "--schedule", "1f1b", "--set", "layout.sequence=tensor", "--set", "dropout=0.1")]
        cases += [("pipe=2,tensor=2", "--schedule", "1f1b", "--set", "layout.links=tensor")]
        cases += [("pipe=2,context=2", "--schedule", "1f1b", "--set", f"attention={way}") for way in ("heads", "parts")]
        for mesh, *more in sampled(cases, 2):
            arguments = ["check", *SMALL, *MODEL, "--backend", "gloo", "--mesh", mesh, "--json", *more]
            results = run_all(4, *arguments)
            for rank, result in enumerate(results):
                self.assertEqual(result.code, 0, f"{mesh} {more}, rank {rank}: {result.err}")
            self.assertTrue(results[0].json()["equal"], (mesh, more))

    def test_stages_with_layouts_of_their_own(self):
        """Parameters, activations and losses split in one stage and not in the other; where a table is read by both, in both."""
        cases = [["--set", "tied=0", "--set", "layout.0.vocab="], ["--set", "tied=0", "--set", "layout.1.vocab=", "--set", "layout.0.heads="],
                 ["--set", "layout.1.mlp=", "--set", "layout.0.sequence=tensor"], ["--set", "layout.0.heads=", "--set", "layout.0.mlp=",
                  "--set", "layout.0.vocab=", "--set", "tied=0"]]  # fmt: skip
        for case, mesh in sampled([(case, mesh) for case in cases for mesh in ("pipe=2,tensor=2", MESH)], 2):
            result = run("check", *SMALL, *MODEL, "--mesh", mesh, "--json", *case)
            self.assertEqual(result.code, 0, f"{mesh} {case}: {result.err}")
            self.assertTrue(result.json()["equal"], (mesh, case))
        self.assert_fails(run("check", *SMALL, *MODEL, "--mesh", "pipe=2,tensor=2", "--set", "layout.0.vocab="),
                          '"wte.weight" would lie in two ways along axis "tensor": stage "0" reads it whole, stage "1" split 0',
                          'say the same of its dims for stages "0" and "1" in [layout]')  # fmt: skip
        self.assert_fails(run("check", *SMALL, *MODEL, "--mesh", "pipe=2,tensor=2", "--set", "layout.11.vocab="),
                          'layout.11: there is no stage "11"', 'did you mean "1"?')  # fmt: skip

    def test_chosen_layouts(self):
        """Gradients are those of the sequential step; and what a choice says is what the layouts then send."""
        chosen = ["--set", "layout.choose=tensor"]
        for mesh in ("pipe=2,tensor=2", MESH, "pipe=1,context=2,tensor=2"):
            result = run("check", *SMALL, *MODEL, "--mesh", mesh, "--json", *chosen)
            self.assertEqual(result.code, 0, f"{mesh}: {result.err}")
            self.assertTrue(result.json()["equal"], mesh)
        explained = run("compile", *SMALL, *MODEL, "--mesh", "pipe=2,tensor=2", "--explain", "--json", *chosen).json()
        axis, choice = explained["axes"][0], explained["chosen"][0]
        self.assertEqual(choice["step_bytes"], 4 * axis["microbatch_bytes"] + axis["once"]["bytes"])
        self.assertEqual(choice["axis"], "tensor")
        text = run("compile", *SMALL, *MODEL, "--mesh", "pipe=2,tensor=2", "--explain", *chosen).out
        self.assertRegex(text, r"chosen along tensor: heads, .*; each sends .* in a step, the best found of \d+\n")

    def test_layouts_chosen_of_a_small_step(self):
        model = ["--set", "name=mlp", "--set", "layers=1", "--set", "width=8", "--set", "batch=8", "--microbatches", 2, "--dtype", "f64",
                 "--schedule", "sequential", "--set", "validation_every=0"]  # fmt: skip
        train = ["train", *model, "--set", "steps=5"]
        alone = run(*train, "--mesh", "pipe=1", "--out", self.folder / "alone-mlp")
        self.assertEqual(alone.code, 0, alone.err)
        for members in (2, 3):
            trained = run(*train, "--mesh", f"pipe=1,tensor={members}", "--set", "layout.choose=tensor", "--out", self.folder / f"mlp-{members}")
            self.assertEqual(trained.code, 0, trained.err)
            self.assert_losses(f"mlp-{members}", self.losses("alone-mlp"))

    def test_checkpoints_move_between_meshes(self):
        sizes = [*MODEL, "--batch", 16, "--microbatches", 2]
        self.train("whole", 6, *sizes, "--set", "checkpoint_every=3", "--mesh", MESH)
        expected = self.losses("whole")
        self.train("alone", 6, *sizes, "--set", "checkpoint_every=3", "--mesh", "pipe=1", "--schedule", "sequential")
        self.assert_losses("alone", expected)
        shares = ["pipe=2,data=2,tensor=2", "--set", "zero=3"]
        meshes = [["pipe=2,tensor=1"], ["pipe=2,tensor=4"], ["pipe=4,tensor=2"], ["pipe=1,tensor=3"],
                  ["pipe=2,tensor=2", "--set", "layout.choose=tensor"], ["pipe=2,tensor=2", "--set", "layout.sequence=tensor"]]  # fmt: skip
        for number, (mesh, *more) in enumerate([shares, *sampled(meshes, 1)]):
            out = f"resumed-{number}"
            resumed = run("train", "--resume", self.folder / "whole" / "checkpoint-3", "--out", self.folder / out, "--mesh", mesh, *more)
            self.assertEqual(resumed.code, 0, f"{mesh}: {resumed.err}")
            self.assert_losses(out, expected[3:])
        # And back, from shares of parts.
        back = run("train", "--resume", self.folder / "resumed-0" / "checkpoint-6", "--out", self.folder / "back", "--mesh", MESH,
                   "--set", "steps=7")
        self.assertEqual(back.code, 0, back.err)
        self.train("long", 7, *sizes, "--mesh", MESH)
        self.assert_losses("back", self.losses("long")[6:])


if __name__ == "__main__":
    unittest.main()
