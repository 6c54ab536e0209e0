# SPDX-License-Identifier: Apache-2.0
"""Runs that are killed, stopped and resumed end with the parameters of a run that was left alone."""

import json
import os
import pathlib
import random
import signal
import time
import unittest

from support import SOAK, ProgramTest, Result, drawn_seed, read_metrics, read_pieces, read_state, run, sampled, start

STEPS = 60


class Resume(ProgramTest):
    def finish(self, out, *more):
        """Resumes until the end; a run without any checkpoint begins anew, and one that was done before it was killed is left as it is."""
        folder = self.folder / out
        if (folder / f"checkpoint-{STEPS}" / "manifest.json").exists():
            return None
        if any(folder.glob("checkpoint-*[0-9]/manifest.json")):  # and not checkpoint-5.part
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
        metrics = self.folder / out / "metrics.jsonl"
        self.assertEqual(sorted(read_metrics(self.folder / out)), list(range(1, STEPS + 1)))
        # Steps that were repeated are there twice, and alike.
        losses = {}
        for line in map(json.loads, metrics.read_text().splitlines()):
            self.assertEqual(losses.setdefault(line["step"], line["loss"]), line["loss"])

    def start_run(self, out):
        return start(*self.train_arguments(out, STEPS, "--set", "checkpoint_every=5"))

    def wait_for(self, process, condition):
        while process.poll() is None and not condition():
            time.sleep(0.0002)

    def test_killed_at_random_times(self):
        reference = self.reference()
        seed = drawn_seed()
        draws = random.Random(seed)
        for round in range(4 if SOAK else 2):
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
        for round in range(200):  # on a busy machine most are missed
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
        for round in range(20):  # a run takes a tenth of a second: it may be done before this process runs again
            out = f"stopped-{round}"
            process = start(*self.train_arguments(out, STEPS, "--json"))
            metrics = self.folder / out / "metrics.jsonl"
            self.wait_for(process, lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 3)
            process.send_signal(signal.SIGTERM)
            result = Result(process)
            if result.code != 0:
                break
        self.assertEqual(result.code, 128 + signal.SIGTERM, result.err)
        stopped = result.json()
        self.assertTrue(stopped["stopped"])
        self.assertLess(stopped["step"], STEPS)
        self.assertEqual(pathlib.Path(stopped["checkpoint"]).name, f"checkpoint-{stopped['step']}")
        self.finish(out)
        self.assert_finished_like(out, reference)

    def test_under_another_plan(self):
        """The same losses to rounding, whatever schedule, partition or number of actors goes on."""
        self.train("reference", STEPS)
        last = self.last_loss("reference")
        plans = [["--schedule", "zb-h1", "--actors", 3], ["--actors", 1, "--schedule", "sequential", "--microbatches", 1],
                 ["--schedule", "interleaved-1f1b", "--chunks", 2], ["--microbatches", 8, "--recompute", "inputs"]]
        for i, plan in sampled(enumerate(plans), 1):
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
        return read_metrics(self.folder / out)[STEPS]["loss"]

    def program(self, *arguments):
        result = run("compile", "--emit", "program", *arguments)
        self.assertEqual(result.code, 0, result.err)
        return result.out

    def assert_same_pieces(self, found, expected, case):
        self.assertEqual(found.keys(), expected.keys(), case)
        different = {key: [at for at, (a, b) in enumerate(zip(found[key], expected[key])) if a != b] for key in found if found[key] != expected[key]}
        shown = {key: f"{len(places)} of {len(found[key])} bytes from {places[0]} on" for key, places in different.items()}
        self.assertFalse(different, f"{case}: {shown}")

    def test_shares_stay_what_they_were(self):
        """Resumed, a sharded run has the program, the pieces and the bits that it would have had."""
        table = self.folder / "zeropp.csv"
        table.write_text(run("schedule", "zeropp", "--actors", 2, "--microbatches", 4, "--chunks", 2).out)
        cases = [["--schedule", "zeropp", "--set", "chunks=2", "--set", "data=2"], ["--schedule", table, "--set", "data=2"],
                 ["--schedule", "zb-h1", "--mesh", "pipe=2,data=2,local=2", "--batch", 16, "--set", "zero=3"]]
        cases += [["--schedule", "1f1b", "--mesh", "pipe=2,data=2", "--set", f"zero={zero}"] for zero in (0, 1, 2, 3)]
        for i, case in sampled(enumerate(cases), 2):
            whole, resumed = self.folder / f"whole-{i}", self.folder / f"resumed-{i}"
            self.train(whole.name, 6, *case, "--set", "checkpoint_every=3")
            result = run("train", "--resume", whole / "checkpoint-3", "--out", resumed)
            self.assertEqual(result.code, 0, result.err)
            expected = read_pieces(whole / "checkpoint-6")
            self.assertEqual(any("[" in name for _, name in expected), case[-1] != "zero=0", case)
            self.assert_same_pieces(read_pieces(resumed / "checkpoint-6"), expected, case)
            self.assertEqual(*([read_metrics(run)[step]["loss"] for step in (4, 5, 6)] for run in (whole, resumed)), case)
            self.assertEqual(self.program("--resume", whole / "checkpoint-3"), self.program(*self.train_arguments("any", 6, *case)[1:]), case)

    def test_a_plain_run_goes_on_sharded_where_its_new_schedule_shards(self):
        new = ["--schedule", "zeropp", "--chunks", 2, "--mesh", "pipe=2,data=2"]
        self.train("plain", 3)
        self.train("sharded", 3, *new)
        result = run("train", "--resume", self.folder / "plain", *new, "--steps", 4)
        self.assertEqual(result.code, 0, result.err)
        pieces = [read_pieces(self.folder / name).keys() for name in ("plain/checkpoint-4", "sharded/checkpoint-3")]
        self.assertEqual(*pieces)
        self.assertTrue(any(name.endswith("]") for _, name in pieces[0]))

    def rates(self, out, *more):
        self.train(out, 20, "--lr", 0.01, "--set", "warmup=4", *more)
        return [read_metrics(self.folder / out)[step]["learning_rate"] for step in range(1, 21)]

    def assert_rates(self, found, expected):
        self.assertEqual(len(found), len(expected))
        for rate, value in zip(found, expected):
            self.assertAlmostEqual(rate, value, delta=1e-7)

    def test_learning_rates(self):
        rise = [0.0025, 0.005, 0.0075, 0.01]
        self.assert_rates(self.rates("constant", "--set", "decay=constant"), rise + [0.01] * 16)
        self.assert_rates(self.rates("linear", "--set", "decay=linear", "--set", "final_fraction=0"),
                          rise + [0.01 * (20 - step) / 16 for step in range(5, 21)])
        self.assert_rates(self.rates("wsd", "--set", "decay=wsd", "--set", "decay_steps=5", "--set", "final_fraction=0.5"),
                          rise + [0.01] * 11 + [0.009, 0.008, 0.007, 0.006, 0.005])
        self.assert_rates(self.rates("early", "--set", "decay=linear", "--set", "decay_end=8", "--set", "final_fraction=0"),
                          rise + [0.0075, 0.005, 0.0025] + [0] * 13)
        self.assert_fails(run(*self.train_arguments("none", 2, "--set", "decay=cosin")), 'unknown decay "cosin"', 'did you mean "cosine"?')

    def test_a_longer_run_keeps_its_learning_rate(self):
        whole = self.rates("run", "--set", "checkpoint_every=10", "--set", "keep=9")
        run_folder, again, stretched = self.folder / "run", self.folder / "again", self.folder / "stretched"
        result = run("train", "--resume", run_folder / "checkpoint-10", "--out", again, "--steps", 24)
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("learning rate 0.01 from step 4, cosine to 0.001 at step 20, as before; --set decay_end=24 lets it fall until the last step",
                      result.err)
        self.assertNotIn("seed", result.err)
        found = read_metrics(again)
        self.assertEqual([found[step]["learning_rate"] for step in range(11, 21)], whole[10:])
        self.assert_rates([found[step]["learning_rate"] for step in range(21, 25)], [0.001] * 4)
        result = run("train", "--resume", run_folder, "--out", stretched, "--steps", 24, "--set", "decay_end=0", "--lr", 0.02, "--seed", 9)
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("seed 9; before: 0, so the data come in another order from here on\n", result.err)
        self.assertIn("learning rate 0.02 from step 4, cosine to 0.002 at step 24; before: 0.01 from step 4, cosine to 0.001 at step 20\n",
                      result.err)
        self.assertGreater(read_metrics(stretched)[21]["learning_rate"], 0.0021)
        # A file that does not speak of it changes nothing either.
        config = self.folder / "other.toml"
        config.write_text("[train]\nsteps = 24\n")
        result = run(*self.train_arguments("file", 24, config, "--resume", run_folder))
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("at step 20, as before", result.err)

    def test_from_another_folder(self):
        """What a run stores means the same wherever it is read."""
        (self.folder / "one").mkdir()
        other = self.folder / "other"
        other.mkdir()
        (self.folder / "one" / "table.csv").write_text(run("schedule", "gpipe", "--actors", 2, "--microbatches", 4).out)
        arguments = self.train_arguments("run", 4)
        arguments[arguments.index("--text") + 1] = "../text.txt"
        self.assertEqual(run(*arguments, "--schedule", "table.csv", cwd=self.folder / "one").code, 0)
        resumed = run("train", "--resume", "../run", "--steps", 6, cwd=other)
        self.assertEqual(resumed.code, 0, resumed.err)
        again = run("train", self.folder / "run" / "config.toml", "--out", "again", cwd=other)
        self.assertEqual(again.code, 0, again.err)
        self.assertEqual(read_state(other / "again" / "checkpoint-6").keys(), read_state(self.folder / "run" / "checkpoint-6").keys())

    def test_a_changed_text(self):
        """As many bytes under the same name, but others."""
        self.train("run", 4)
        self.text.write_bytes(self.text.read_bytes()[::-1])
        resume = ["train", "--resume", self.folder / "run", "--steps", 6]
        self.assert_fails(run(*resume), "checkpoint-4 was trained on other data", "contents or tokenizers differ", "--changed-text")
        resumed = run(*resume, "--changed-text")
        self.assertEqual(resumed.code, 0, resumed.err)
        self.assertEqual(sorted(read_metrics(self.folder / "run")), list(range(1, 7)))

    def test_the_configuration_of_a_run_repeats_it(self):
        self.train("first", 5, "--schedule", "zeropp", "--chunks", 2, "--set", "data=2", "--lr", 0.002)
        again = run("train", self.folder / "first" / "config.toml", "--out", self.folder / "second")
        self.assertEqual(again.code, 0, again.err)
        first, second = (read_pieces(self.folder / name / "checkpoint-5") for name in ("first", "second"))
        self.assertTrue(first == second)

    def test_retention(self):
        self.train("run", 10, "--set", "checkpoint_every=2", "--set", "keep=2")
        names = sorted(path.name for path in (self.folder / "run").glob("checkpoint-*"))
        self.assertEqual(names, ["checkpoint-10", "checkpoint-8"])


if __name__ == "__main__":
    unittest.main()
