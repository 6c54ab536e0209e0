# SPDX-License-Identifier: Apache-2.0
"""Actors of several devices: the same gradients, losses and checkpoints as one device, on threads and over Gloo."""

import json
import signal
import time
import unittest

from support import SMALL, ProgramTest, Result, run, run_all, sampled, start_all

TWO_BRANCH = ["--set", "model.name=two-branch", "--set", "model.layers=3"]


class Groups(ProgramTest):
    def losses(self, out):
        return [json.loads(line)["loss"] for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]

    def test_check_over_gloo(self):
        cases = [("pipe=1,data=2", 2, "--schedule", "sequential"), ("pipe=1,data=4", 4, "--schedule", "gpipe")]
        cases += [("pipe=2,data=2", 4, "--schedule", name) for name in ("gpipe", "1f1b", "zb-h1")]
        cases += [("pipe=2,data=2", 4, "--schedule", "interleaved-1f1b", "--chunks", 2, "--set", "model.layers=4")]
        cases += [("pipe=4,data=2", 8, "--schedule", "1f1b", *more) for more in ([], TWO_BRANCH)]
        cases += [("pipe=1,data=4", 4, "--schedule", "gpipe", "--set", f"zero={zero}") for zero in (1, 2, 3)]
        cases += [("pipe=2,data=4", 8, "--schedule", "1f1b", "--set", "zero=3", *more) for more in ([], TWO_BRANCH)]
        zeropp = ["--schedule", "zeropp", "--chunks", 2, "--microbatches", 4, "--set", "model.layers=4"]
        cases += [("pipe=2,data=2", 4, *zeropp, "--set", f"unit={unit}") for unit in (2, 4)]
        cases += [("pipe=2,data=2,local=2", 8, "--schedule", "zb-h1", "--set", "zero=3", *more) for more in ([], TWO_BRANCH)]
        cases += [("pipe=2,local=2,data=2", 8, "--schedule", "1f1b", "--set", "zero=3")]
        cases += [("pipe=2,data=2", 4, "--schedule", "slimpipe", "--slices", 4, "--set", f"zero={zero}") for zero in (2, 3)]
        for mesh, devices, *more in sampled(cases, 4):
            arguments = ["check", *SMALL, "--dtype", "f64", "--backend", "gloo", "--mesh", mesh, "--batch", 16, "--json", *more]
            results = run_all(devices, *arguments)
            for rank, result in enumerate(results):
                self.assertEqual(result.code, 0, f"{mesh} {more}, rank {rank}: {result.err}")
            self.assertTrue(results[0].json()["equal"], (mesh, more))

    def test_the_same_losses_and_resume_under_another_mesh(self):
        batch = ["--batch", 16, "--microbatches", 2, "--set", "checkpoint_every=10"]
        self.train("one", 20, *batch, "--mesh", "pipe=1,data=1", "--schedule", "sequential")
        self.train("groups", 20, *batch, "--mesh", "pipe=2,data=2")
        expected = self.losses("one")
        for found, loss in zip(self.losses("groups"), expected, strict=True):
            self.assertAlmostEqual(found, loss, delta=1e-3)
        for mesh in ("pipe=1,data=4", "pipe=4,data=1", "pipe=2,data=4"):
            out = mesh.replace("=", "").replace(",", "-")
            resumed = run("train", "--resume", self.folder / "groups" / "checkpoint-10", "--out", self.folder / out, "--mesh", mesh)
            self.assertEqual(resumed.code, 0, resumed.err)
            self.assertAlmostEqual(self.losses(out)[-1], expected[-1], delta=1e-3)

    def test_shares_of_state_are_written_and_read_under_any_mesh(self):
        batch = ["--batch", 16, "--microbatches", 2, "--set", "model.layers=4", "--set", "checkpoint_every=10"]
        self.train("whole", 20, *batch, "--mesh", "pipe=1,data=1", "--schedule", "sequential")
        expected = self.losses("whole")
        shared = ["--mesh", "pipe=2,data=2", "--schedule", "zeropp", "--chunks", 2]
        self.train("shares", 20, *batch, *shared)
        for found, loss in zip(self.losses("shares"), expected, strict=True):
            self.assertAlmostEqual(found, loss, delta=1e-3)
        files = json.loads((self.folder / "shares" / "checkpoint-10" / "manifest.json").read_text())["tensors"]
        self.assertTrue(any(name.endswith("]") for name in files))
        meshes = [["--mesh", "pipe=1,data=4", "--set", "zero=2", "--schedule", "gpipe", "--chunks", 1],
                  ["--mesh", "pipe=4,data=1", "--schedule", "1f1b", "--chunks", 1],
                  ["--mesh", "pipe=2,data=2,local=2", "--set", "zero=3", "--schedule", "zb-h1", "--chunks", 1],
                  ["--mesh", "pipe=1,local=2,data=2", "--set", "zero=3", "--schedule", "gpipe", "--chunks", 1],
                  ["--mesh", "pipe=1,data=2", "--set", "zero=3", "--schedule", "breadth-first", "--chunks", 4]]
        for number, mesh in sampled(enumerate(meshes), 1):
            out = f"again-{number}"
            resumed = run("train", "--resume", self.folder / "shares" / "checkpoint-10", "--out", self.folder / out, *mesh)
            self.assertEqual(resumed.code, 0, resumed.err)
            self.assertAlmostEqual(self.losses(out)[-1], expected[-1], delta=1e-3)
        back = run("train", "--resume", self.folder / "whole" / "checkpoint-10", "--out", self.folder / "back", *shared)
        self.assertEqual(back.code, 0, back.err)
        self.assertAlmostEqual(self.losses("back")[-1], expected[-1], delta=1e-3)
        text = run("generate", self.folder / "shares", "--prompt", "int ", "--tokens", 4)
        self.assertEqual(text.code, 0, text.err)
        over_gloo = run_all(2, "train", "--resume", self.folder / "shares" / "checkpoint-10", "--out", self.folder / "gloo", "--backend",
                            "gloo", *meshes[-1])
        self.assertEqual([result.code for result in over_gloo], [0, 0], over_gloo[0].err)
        self.assertAlmostEqual(self.losses("gloo")[-1], expected[-1], delta=1e-3)

    def test_devices_hold_what_is_planned(self):
        """What a limit is held against is what a run takes, however state is held."""
        meshes = ("pipe=1,data=2", "pipe=2,data=2", "pipe=1,data=3", "pipe=2,data=1")
        for mesh, zero in sampled([(mesh, zero) for mesh in meshes for zero in range(4)], 4):
            made = ["--mesh", mesh, "--set", f"zero={zero}", "--set", "width=64", "--batch", 12, "--microbatches", 2]
            actors = self.train(f"{mesh[-1]}{mesh[5]}{zero}", 2, *made, "--json").json()["actors"]
            self.assertEqual([actor["measured_bytes"] for actor in actors], [actor["planned_bytes"] for actor in actors], (mesh, zero))

    def test_a_lost_member_is_named(self):
        mesh = ["--mesh", "pipe=1,data=2", "--schedule", "sequential", "--batch", 16]
        arguments = self.train_arguments("lost", 5000, "--backend", "gloo", *mesh, "--set", "checkpoint_every=0", "--set", "deadline=10")
        processes = start_all(2, *arguments)
        metrics = self.folder / "lost" / "metrics.jsonl"
        while processes[0].poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 3):
            time.sleep(0.01)
        processes[1].send_signal(signal.SIGKILL)
        first = Result(processes[0])
        processes[1].communicate()
        self.assert_fails(first, "device 1")

    def test_bad_meshes(self):
        def fails(mesh, *parts, more=()):
            self.assert_fails(run("check", *SMALL, "--mesh", mesh, *more), *parts)

        fails("pipe=2,dtaa=2", 'there is no axis "dtaa"', "did you mean data?")
        fails("pipe=2,tensr=2", 'there is no axis "tensr"', "did you mean tensor?")
        fails("tensor=2,data=2", "data stands behind tensor", "write data before tensor")
        fails("pipe=2,data", '"data" has no size')
        fails("data=3", "times pipeline.data = 3")
        fails("local=3", "times pipeline.data = 1 times pipeline.local = 3")
        fails("pipe=2,data=2", "backend gloo needs one process per device", "penstock launch -n 4", more=["--backend", "gloo"])
        fails("pipe=2,data=2", "pipeline.zero is 4", "at most 3", more=["--batch", 16, "--set", "zero=4"])
        fails("pipe=2,data=2", "pipeline.backend is nccl, and run.device cpu", "--backend gloo", more=["--batch", 16, "--backend", "nccl"])
        for result in run_all(3, "check", *SMALL, "--backend", "gloo", "--mesh", "pipe=2,data=2", "--batch", 16):
            self.assert_fails(result, "3 processes were started for 4 devices (2 actors of 2)")


if __name__ == "__main__":
    unittest.main()
