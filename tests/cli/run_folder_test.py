"""A run's folder: one process at a time, nothing lost, damage found, one command that starts or resumes."""

import json
import os
import resource
import signal
import time
import unittest

from support import ProgramTest, Result, read_metrics, read_state, read_tensors, run, start

STEPS = 40


def small_files():
    """Files may not grow beyond 40 KB: writing more fails, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))


class RunFolder(ProgramTest):
    def wait_for_steps(self, process, out, steps):
        metrics = self.folder / out / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= steps):
            time.sleep(0.001)

    def checkpoints(self, out):
        return sorted(path.name for path in (self.folder / out).glob("checkpoint-*"))

    def test_the_second_in_a_folder_is_refused(self):
        first = start(*self.train_arguments("run", 100000, "--set", "checkpoint_every=0"))
        self.wait_for_steps(first, "run", 3)
        config = (self.folder / "run" / "config.toml").read_bytes()
        second = run(*self.train_arguments("run", 7))
        self.assert_fails(second, f"run is in use: process {first.pid} on ", "--out names another folder")
        over_gloo = run("launch", "-n", 2, "--", *self.train_arguments("run", 7, "--backend", "gloo", "--set", "deadline=20"))
        self.assertNotEqual(over_gloo.code, 0)
        self.assertIn(f"run is in use: process {first.pid} on ", over_gloo.err)
        self.assertEqual((self.folder / "run" / "config.toml").read_bytes(), config)
        first.send_signal(signal.SIGKILL)
        first.communicate()
        done = len(read_metrics(self.folder / "run"))
        again = run(*self.train_arguments("run", 2))
        self.assertEqual(again.code, 0, again.err)
        self.assertGreaterEqual(len(read_metrics(self.folder / "run")), done)

    def test_of_two_that_start_together_one_wins(self):
        for pair in range(6):
            out = f"pair-{pair}"
            seeds = (1, 2)
            processes = [start(*self.train_arguments(out, STEPS, "--seed", seed, "--set", "checkpoint_every=20")) for seed in seeds]
            results = [Result(process) for process in processes]
            self.assertEqual(sorted(result.code for result in results), [0, 1], results[0].err + results[1].err)
            (loser,) = (result for result in results if result.code)
            self.assertRegex(loser.err, "is in use: |already has checkpoint-")
            lines = [json.loads(line)["step"] for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]
            self.assertEqual(lines, list(range(1, STEPS + 1)))
            won = seeds[[result.code for result in results].index(0)]
            self.assertIn(f"\nseed = {won}\n", (self.folder / out / "config.toml").read_text())
            self.assertEqual(run("verify", self.folder / out).code, 0)

    def test_no_line_of_the_metrics_is_lost(self):
        self.train("run", 6, "--set", "checkpoint_every=4")
        metrics = self.folder / "run" / "metrics.jsonl"
        before = metrics.read_text()
        for file in (self.folder / "run" / "checkpoint-6").iterdir():
            file.unlink()
        (self.folder / "run" / "checkpoint-6").rmdir()
        result = run("train", "--resume", self.folder / "run")
        self.assertEqual(result.code, 0, result.err)
        self.assertTrue(metrics.read_text().startswith(before))
        steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
        self.assertEqual(steps, [1, 2, 3, 4, 5, 6, 5, 6])

    def test_a_damaged_checkpoint_is_passed_over(self):
        self.train("whole", 6, "--set", "checkpoint_every=2")
        self.train("run", 6, "--set", "checkpoint_every=2")
        folder = self.folder / "run"
        intact = run("verify", folder, "--json")
        self.assertEqual((intact.code, intact.json()["intact"], len(intact.json()["checkpoints"])), (0, True, 3))
        (folder / "checkpoint-6" / "manifest.json").write_text("{")
        with open(folder / "checkpoint-4" / "device-1.safetensors", "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"?")
        found = run("verify", folder)
        self.assertEqual(found.code, 1)
        self.assertIn("checkpoint-2: intact, step 2, ", found.out)
        self.assertIn("checkpoint-4: DAMAGED\n  ", found.out)
        self.assertIn("device-1.safetensors: its content is not what its manifest says", found.out)
        found = run("verify", folder, "--json").json()
        self.assertEqual([each["intact"] for each in found["checkpoints"]], [True, False, False])
        self.assertIn("not the manifest of a Penstock checkpoint", found["checkpoints"][2]["damage"])
        self.assertEqual(run("verify", folder / "checkpoint-2").code, 0)
        self.assertEqual(run("verify", folder / "checkpoint-4").code, 1)

        text = run("generate", folder, "--prompt", "line", "--tokens", 2)
        self.assertEqual(text.code, 0, text.err)
        self.assertIn("checkpoint-2 is the newest intact one", text.err)
        resumed = run("train", "--resume", folder)
        self.assertEqual(resumed.code, 0, resumed.err)
        for part in ["checkpoint-6 is damaged (", "checkpoint-4 is damaged (", "resumed from ", "checkpoint-6.damaged from now on"]:
            self.assertIn(part, resumed.err)
        self.assertEqual(self.checkpoints("run"),
                         ["checkpoint-2", "checkpoint-4", "checkpoint-4.damaged", "checkpoint-6", "checkpoint-6.damaged"])
        self.assertEqual(read_state(folder / "checkpoint-6"), read_state(self.folder / "whole" / "checkpoint-6"))
        for name in self.checkpoints("run"):
            (folder / name / "manifest.json").write_text("{")
        self.assert_fails(run("train", "--resume", folder, "--steps", 9), "run is intact", "checkpoint-2/manifest.json: not the manifest")
        self.assert_fails(run("verify", self.folder), "no checkpoint in")

    def test_resume_or_start(self):
        self.train("reference", STEPS)
        command = self.train_arguments("run", STEPS, "--set", "checkpoint_every=10", "--resume-or-start")
        for steps in (3, 17, 30):  # before the first checkpoint, and behind others
            process = start(*command)
            have = len(read_metrics(self.folder / "run")) if (self.folder / "run" / "metrics.jsonl").exists() else 0
            metrics = self.folder / "run" / "metrics.jsonl"
            while process.poll() is None and (not metrics.exists() or len(metrics.read_text().splitlines()) < max(steps, have)):
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        finished = run(*command)
        self.assertEqual(finished.code, 0, finished.err)
        expected = read_state(self.folder / "reference" / f"checkpoint-{STEPS}")
        self.assertEqual(read_state(self.folder / "run" / f"checkpoint-{STEPS}"), expected)
        again = run(*command, "--json")
        self.assertEqual(again.code, 0, again.err)
        self.assertIn(f"has done all {STEPS} steps", again.err)
        self.assertEqual(again.json()["step"], STEPS)
        self.assertEqual(run(*command, "--resume", self.folder / "run").code, 2)

    def test_resume_or_start_over_gloo(self):
        self.train("reference", STEPS)
        command = ["launch", "-n", 2, "--", *self.train_arguments("run", STEPS, "--set", "checkpoint_every=10", "--resume-or-start"),
                   "--backend", "gloo", "--set", "deadline=20"]  # fmt: skip
        process = start(*command)
        self.wait_for_steps(process, "run", 15)
        process.send_signal(signal.SIGTERM)
        process.communicate()
        for _ in range(2):
            finished = run(*command)
            self.assertEqual(finished.code, 0, finished.err)
        self.assertIn(f"has done all {STEPS} steps", finished.err)
        expected = read_state(self.folder / "reference" / f"checkpoint-{STEPS}")
        self.assertEqual(read_state(self.folder / "run" / f"checkpoint-{STEPS}"), expected)

    def test_a_checkpoint_that_cannot_be_written(self):
        self.train("run", 4)
        result = run("train", "--resume", self.folder / "run", "--steps", 8, preexec_fn=small_files)
        self.assert_fails(result, "step 8: the checkpoint could not be written", "device-0.safetensors: File too large",
                          "the last checkpoint is ", "run/checkpoint-4")  # fmt: skip
        self.assertEqual(self.checkpoints("run"), ["checkpoint-4"])
        self.assertEqual(run("verify", self.folder / "run").code, 0)

    def test_a_loss_that_is_not_finite_names_the_checkpoint_before_it(self):
        self.train("run", 4)
        result = run("train", "--resume", self.folder / "run", "--steps", 40, "--lr", 1e30, "--set", "clip=0", "--set", "warmup=0",
                     "--set", "checkpoint_every=0")  # fmt: skip
        self.assert_fails(result, "the loss is ", "the last checkpoint is ", "run/checkpoint-4")

    def test_parameters_that_are_not_finite(self):
        dump = self.folder / "dump"
        arguments = self.train_arguments("run", 2)[1:]
        self.assertEqual(run("check", *arguments, "--dump", dump).code, 0)
        file = dump / "parameters.safetensors"
        content = bytearray(file.read_bytes())
        value = read_tensors(file)["wte.weight"]
        place = content.index(value) + 4 * 5
        content[place : place + 4] = b"\x00\x00\xc0\x7f"
        file.write_bytes(content)
        result = run("train", *arguments, "--init", file)
        self.assert_fails(result, '"wte.weight" has 1 value that is not finite, the first (element 5) is nan')
        self.assertNotIn("learning_rate", result.err)

    def test_a_pipe_is_no_file(self):
        pipe = self.folder / "pipe.csv"
        os.mkfifo(pipe)
        self.train("run", 2)
        train = self.train_arguments("other", 2)
        for arguments in [["train", pipe], [*train, "--text", pipe], [*train, "--init", pipe], [*train, "--schedule", pipe],
                          [*train, "--plan", pipe], ["verify", pipe], ["simulate", pipe], ["simulate", "1f1b", "--costs", pipe]]:
            self.assert_fails(run(*arguments), "pipe.csv: it is a pipe, not a file")
        for name in ("manifest.json", "device-0.safetensors"):
            place = self.folder / "run" / "checkpoint-2" / name
            content = place.read_bytes()
            place.unlink()
            os.mkfifo(place)
            self.assert_fails(run("train", "--resume", self.folder / "run"), f"{name}: it is a pipe, not a file")
            place.unlink()
            place.write_bytes(content)


if __name__ == "__main__":
    unittest.main()
