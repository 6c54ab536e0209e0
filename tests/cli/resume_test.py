"""Runs that are killed, stopped and resumed end with the parameters of a run that was left alone."""

import json
import os
import pathlib
import random
import signal
import time
import unittest

from support import ProgramTest, Result, read_state, run, start

STEPS = 60


class Resume(ProgramTest):
    def finish(self, out, *more):
        """Resumes until the end; a run without any checkpoint begins anew."""
        folder = self.folder / out
        if any(folder.glob("checkpoint-*/manifest.json")):
            result = run("train", "--resume", folder, "--json", *more)
        else:
            result = run(*self.train_arguments(out, STEPS, "--set", "checkpoint_every=5", "--json", *more))
        self.assertEqual(result.code, 0, result.err)
        return result.json()

    def reference(self, *more):
        self.train("reference", STEPS, *more)
        return read_state(self.folder / "reference" / f"checkpoint-{STEPS}")

    def assert_finished_like(self, out, reference):
        state = read_state(self.folder / out / f"checkpoint-{STEPS}")
        self.assertEqual(state.keys(), reference.keys())
        for name in reference:
            self.assertEqual(state[name], reference[name], name)
        steps = [json.loads(line)["step"] for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(steps, list(range(1, STEPS + 1)))

    def start_run(self, out):
        return start(*self.train_arguments(out, STEPS, "--set", "checkpoint_every=5"))

    def wait_for(self, process, condition):
        while process.poll() is None and not condition():
            time.sleep(0.0002)

    def test_killed_at_random_times(self):
        reference = self.reference()
        seed = random.randrange(1 << 32)
        draws = random.Random(seed)
        for round in range(4):
            out = f"killed-{round}"
            process = self.start_run(out)
            metrics = self.folder / out / "metrics.jsonl"
            steps = draws.randrange(1, STEPS - 5)
            self.wait_for(process, lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= steps)
            time.sleep(draws.random() * 0.01)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            with self.subTest(seed=seed, round=round, steps=steps):
                self.finish(out)
                self.assert_finished_like(out, reference)

    def test_killed_while_a_checkpoint_is_written(self):
        reference = self.reference()
        hits = 0
        for round in range(12):
            out = f"writing-{round}"
            process = self.start_run(out)
            part = self.folder / out / f"checkpoint-{5 * (1 + round % 6)}.part"
            # The folder is there for milliseconds: it may be gone before the signal is.
            while process.poll() is None and not os.path.exists(part):
                pass
            process.send_signal(signal.SIGKILL)
            process.communicate()
            if not part.exists():
                continue
            hits += 1
            self.finish(out)
            self.assertFalse(part.exists())
            self.assert_finished_like(out, reference)
            if hits == 2:
                return
        self.assertGreater(hits, 0, "no run was caught while writing")

    def test_sigterm_writes_a_checkpoint(self):
        reference = self.reference()
        process = start(*self.train_arguments("stopped", STEPS, "--json"))
        metrics = self.folder / "stopped" / "metrics.jsonl"
        self.wait_for(process, lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 3)
        process.send_signal(signal.SIGTERM)
        result = Result(process)
        self.assertEqual(result.code, 0, result.err)
        stopped = result.json()
        self.assertTrue(stopped["stopped"])
        self.assertLess(stopped["step"], STEPS)
        self.assertEqual(pathlib.Path(stopped["checkpoint"]).name, f"checkpoint-{stopped['step']}")
        self.finish("stopped")
        self.assert_finished_like("stopped", reference)

    def test_under_another_plan(self):
        """The same losses to rounding, whatever schedule, partition or number of actors goes on."""
        self.train("reference", STEPS)
        last = self.last_loss("reference")
        for i, plan in enumerate([["--schedule", "zb-h1", "--actors", 3], ["--actors", 1, "--schedule", "sequential", "--microbatches", 1],
                                  ["--schedule", "interleaved-1f1b", "--chunks", 2], ["--microbatches", 8, "--recompute", "inputs"]]):
            out = f"other-{i}"
            self.train(out, STEPS, "--set", "checkpoint_every=20", "--set", "keep=9")
            for step in (40, 60):
                checkpoint = self.folder / out / f"checkpoint-{step}"
                for file in checkpoint.iterdir():
                    file.unlink()
                checkpoint.rmdir()
            self.finish(out, *plan)
            self.assertAlmostEqual(self.last_loss(out), last, delta=1e-3, msg=plan)

    def last_loss(self, out):
        return json.loads((self.folder / out / "metrics.jsonl").read_text().splitlines()[-1])["loss"]

    def test_retention(self):
        self.train("run", 10, "--set", "checkpoint_every=2", "--set", "keep=2")
        names = sorted(path.name for path in (self.folder / "run").glob("checkpoint-*"))
        self.assertEqual(names, ["checkpoint-10", "checkpoint-8"])


if __name__ == "__main__":
    unittest.main()
