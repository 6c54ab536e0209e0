# SPDX-License-Identifier: Apache-2.0
"""A run's folder: one process at a time, nothing lost, damage found, one command that starts or resumes."""

import json
import os
import pathlib
import re
import resource
import signal
import struct
import subprocess
import time
import unittest

from support import PROGRAM, ProgramTest, Result, read_metrics, read_state, read_tensors, run, start

STEPS = 40


def small_files():
    """Files may not grow beyond 40 KB: writing more fails, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, shells do not
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
            metrics = self.folder / "run" / "metrics.jsonl"
            have = len(read_metrics(self.folder / "run")) if metrics.exists() else 0
            process = start(*command)
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
        self.assertEqual(run(*command, "--resume", self.folder / "run").code, 1)

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

    def test_a_signal_of_the_terminal_writes_a_checkpoint(self):
        """Even where it comes twice: the system says that a terminal is closed, and the shell says it again."""
        for launcher in ([], ["launch", "-n", 2, "--"]):
            out = f"closed-{len(launcher)}"
            backend = ["--backend", "gloo"] if launcher else []
            process = start(*launcher, *self.train_arguments(out, 100000, "--set", "checkpoint_every=0", *backend))
            self.wait_for_steps(process, out, 3)
            process.send_signal(signal.SIGHUP)
            time.sleep(0.01)
            process.send_signal(signal.SIGHUP)
            result = Result(process)
            self.assertEqual(result.code, 128 + signal.SIGHUP, result.err)
            self.assertEqual(len(self.checkpoints(out)), 1)
            self.assertEqual(run("verify", self.folder / out).code, 0)

    def test_output_that_nobody_reads_writes_a_checkpoint(self):
        """As behind `| head -1`: the run's files matter more than what it prints."""
        for launcher in ([], ["launch", "-n", 2, "--"]):
            out = f"unread-{len(launcher)}"
            backend = ["--backend", "gloo"] if launcher else []
            process = start(*launcher, *self.train_arguments(out, 100000, "--set", "checkpoint_every=0", "--set", "validation_every=3", *backend))
            self.wait_for_steps(process, out, 3)
            process.stderr.close()
            self.assertIn(Result(process).code, {128 + signal.SIGPIPE} | ({128 + signal.SIGTERM} if launcher else set()))
            self.assertEqual(len(self.checkpoints(out)), 1)
            self.assertEqual(run("verify", self.folder / out).code, 0)

    def test_links_in_the_folder_are_not_followed(self):
        """Whatever a run writes, a link in its place leads nowhere, and what is behind it stays."""
        arguments = lambda out: self.train_arguments(out, 12, "--set", "checkpoint_every=0", "--set", f"kernels={self.folder / out / 'kernels.txt'}")
        whole = run(*arguments("whole"))
        self.assertEqual(whole.code, 0, whole.err)
        written = {path.name for path in (self.folder / "whole").iterdir()}
        self.assertEqual(written, {"config.toml", "metrics.jsonl", "timeline.json", "timeline.html", "kernels.txt", "checkpoint-12"})
        files, in_place = written - {"checkpoint-12"}, {"metrics.jsonl", "lock"}
        target = self.folder / "target"

        def planted(number, names, plant):
            out = f"planted-{number}"
            (self.folder / out).mkdir()
            for name in names:
                target.write_text("mine")
                plant(self.folder / out / name)
            return run(*arguments(out))

        def absent(place):
            place.symlink_to(self.folder / "absent")

        beside = {f"{name}.part" for name in files - in_place} | files - in_place - {"kernels.txt"}  # which is read first
        kinds = (lambda place: place.symlink_to(target), lambda place: place.hardlink_to(target), absent)
        for kind, plant in enumerate(kinds):
            result = planted(f"{kind}-beside", beside, plant)
            self.assertEqual(result.code, 0, result.err)
            for name in sorted(in_place):
                self.assert_fails(planted(f"{kind}-{name}", [name], plant), f"{name}: ", "hard link" if kind == 1 else "it is a link", "remove it")
            self.assertEqual(target.read_text(), "mine")
            self.assertFalse((self.folder / "absent").exists())
        outside = self.folder / "outside"
        outside.mkdir()
        (outside / "file").write_text("mine")
        result = planted("folder", ["checkpoint-12.part"], lambda place: place.symlink_to(outside))
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual([path.name for path in outside.iterdir()], ["file"])

    def test_a_resumed_run_writes_only_in_its_folder(self):
        elsewhere = self.folder / "elsewhere" / "kernels.txt"
        self.train("run", 2, "--set", f"kernels={elsewhere}")
        elsewhere.unlink()
        resume = ["train", "--resume", self.folder / "run", "--steps", 4]
        self.assert_fails(run(*resume), f"manifest.json: run.kernels is {elsewhere}, outside of the run's folder ", f"--set run.kernels={elsewhere}")
        self.assertFalse(elsewhere.exists())
        anew = run(*resume, "--set", f"run.kernels={elsewhere}")
        self.assertEqual(anew.code, 0, anew.err)
        self.assertTrue(elsewhere.exists())

    def test_a_step_that_leaves_no_finite_state(self):
        """Its loss and its gradient are those before the update, so only the state tells. It is not what a later run goes on from."""
        wild = ["--lr", 3e38, "--set", "clip=0", "--set", "warmup=0", "--set", "decay=constant", "--set", "validation=0"]
        result = run(*self.train_arguments("wild", 1, *wild))
        self.assert_fails(result, "step 1: the checkpoint could not be written", 'state "', " not finite, the first (element ")
        self.assertEqual(self.checkpoints("wild"), [])
        self.train("run", 4, "--set", "validation=0")
        for steps in (5, 9):
            result = run("train", "--resume", self.folder / "run", "--steps", steps, *wild, "--set", "checkpoint_every=1")
            self.assert_fails(result, "step 5: the checkpoint could not be written", "the last checkpoint is ", "run/checkpoint-4")
            self.assertEqual(self.checkpoints("run"), ["checkpoint-4"])

    def test_going_on_from_before_the_last_checkpoint(self):
        self.train("whole", 7)
        self.train("run", 6, "--set", "checkpoint_every=2")
        folder = self.folder / "run"
        kept = read_state(folder / "checkpoint-6")
        result = run("train", "--resume", folder / "checkpoint-2", "--steps", 7, "--set", "decay_end=0", "--set", "checkpoint_every=0")
        self.assertEqual(result.code, 0, result.err)
        for step in (4, 6):
            self.assertRegex(result.err, f"note: the run goes on from step 2: .*checkpoint-{step} is .*checkpoint-{step}.later from now on")
        self.assertEqual(self.checkpoints("run"), ["checkpoint-2", "checkpoint-4.later", "checkpoint-6.later", "checkpoint-7"])
        self.assertEqual(read_state(folder / "checkpoint-6.later"), kept)
        self.assertEqual(read_state(folder / "checkpoint-7"), read_state(self.folder / "whole" / "checkpoint-7"))
        # Where it cannot begin, nothing is renamed.
        refused = run("train", "--resume", folder / "checkpoint-2", "--steps", 9, "--text", __file__)
        self.assert_fails(refused, "was trained on other data")
        self.assertIn("checkpoint-7", self.checkpoints("run"))

    def test_going_on_from_a_checkpoint_that_is_a_link(self):
        self.train("elsewhere", 3)
        folder = self.folder / "linked"
        folder.mkdir()
        (folder / "checkpoint-3").symlink_to(self.folder / "elsewhere" / "checkpoint-3")
        result = run("train", "--resume", folder, "--steps", 4, "--set", "keep=1")
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual((self.checkpoints("linked"), self.checkpoints("elsewhere")), (["checkpoint-4"], ["checkpoint-3"]))
        link = self.folder / "link"
        link.symlink_to(folder / "checkpoint-4")
        result = run("train", "--resume", link, "--steps", 5, "--out", folder)
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("checkpoint-5", self.checkpoints("linked"))

    def test_a_checkpoint_without_permission_is_not_damaged(self):
        self.train("run", 4, "--set", "checkpoint_every=2")
        folder = self.folder / "run"
        nobody = {"user": 65534, "group": 65534} if os.geteuid() == 0 else {}  # root may read everything
        for path in (self.folder, folder, folder / "checkpoint-2"):
            path.chmod(0o777)
        before = self.checkpoints("run")
        for shut in (folder / "checkpoint-4", folder / "checkpoint-4" / "device-1.safetensors"):
            shut.chmod(0)
            result = run("train", "--resume", folder, "--steps", 6, **nobody)
            self.assert_fails(result, "cannot read ", "checkpoint-4", "Permission denied", "let this user read it")
            shut.chmod(0o777)
            self.assertEqual(self.checkpoints("run"), before)

    def test_what_cannot_be_written_after_training_is_named(self):
        """The timeline's page alone is longer than the limit."""
        limited = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (55_000, 55_000))
        result = run(*self.train_arguments("run", 12, "--set", "model.layers=2", "--set", "width=8"), preexec_fn=limited)
        self.assert_fails(result, "the timeline of ", "timeline.", "File too large", "training has ended, the last checkpoint is ", "run/checkpoint-12")
        self.assertEqual(run("verify", self.folder / "run").code, 0)
        metrics = run(*self.train_arguments("lines", 100), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000)))
        self.assert_fails(metrics, "lines/metrics.jsonl: File too large")

    def without_memory_for_its_timeline(self, out):
        """A run of 1,000 micro-batches that has no more memory than when some of its steps had run."""
        arguments = self.train_arguments(out, 10, "--actors", 2, "--microbatches", 1000, "--batch", 1000)
        process = start(*arguments, environment={"MALLOC_MMAP_THRESHOLD_": "65536"})  # what is larger never lies where other things were freed
        self.wait_for_steps(process, out, 3)
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        limit = 1024 * int(re.search(r"VmSize:\s+(\d+)", status)[1]) + (1 << 20)
        resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))
        return Result(process)

    def test_a_timeline_for_which_there_is_no_memory_is_named(self):
        for attempt in range(4):  # devices that have ended may leave enough
            result = self.without_memory_for_its_timeline(f"run-{attempt}")
            if result.code != 0:
                break
        self.assert_fails(result, "the timeline of ", "this machine has no memory left for it", "the last checkpoint is ", f"run-{attempt}/checkpoint-10")
        self.assertEqual(run("verify", self.folder / f"run-{attempt}").code, 0)

    def test_output_that_is_not_taken_is_an_error(self):
        table, helps = ["schedule", "1f1b", "--actors", "2", "--microbatches", "4"], [["--version"], ["--help"], ["train", "--help"]]
        for arguments in [table, *helps]:
            reason = "No space left on device" if arguments == table else ""  # help is written before it is asked how that went
            with open("/dev/full", "w") as full:
                process = subprocess.run([PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
            self.assertEqual(process.returncode, 1, arguments)
            self.assertIn(f"error: cannot write to standard output: {reason}", process.stderr)

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
        place = content.index(read_tensors(file)["wte.weight"]) + 4 * 5
        content[place : place + 4] = b"\x00\x00\xc0\x7f"
        file.write_bytes(content)
        self.assert_fails(run("train", *arguments, "--init", file), 'tensor "wte.weight": it is not what its checksum says')
        end = 8 + struct.unpack_from("<Q", content)[0]
        header = json.loads(content[8:end])
        del header["__metadata__"]  # as a program writes it that has no checksums
        text = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + content[end:])
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
