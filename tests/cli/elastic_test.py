# SPDX-License-Identifier: Apache-2.0
"""Runs whose processes die, stand still and come back go on by themselves, and end as a run that was left alone."""

import contextlib
import os
import pathlib
import random
import resource
import signal
import time
import unittest

from support import SOAK, ProgramTest, Result, drawn_seed, free_port, read_metrics, read_pieces, read_state, start

STEPS = 40
MANY = 400 if SOAK else STEPS  # steps of random faults
LAYOUT = ["--schedule", "1f1b", "--mesh", "pipe=2,data=2", "--dtype", "f64"]


def processes_of(launcher):
    """The launcher's living processes by their ranks; rank 0 leads and has no device."""
    out = {}
    for child in pathlib.Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
        try:
            variables = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            trains = b"penstock\0train" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        rank = next((variable[5:] for variable in variables if variable.startswith(b"RANK=")), None)
        if rank is not None and trains:
            out[int(rank)] = int(child)
    return out


class Elastic(ProgramTest):
    def start(self, out, *more, steps=STEPS, launch=(), backend="gloo", **variables):
        arguments = self.train_arguments(out, steps, *LAYOUT, "--backend", backend, "--set", "checkpoint_every=5", "--verbose", *more)
        self.metrics = self.folder / out / "metrics.jsonl"
        return start("launch", "--elastic", *([] if "-n" in launch else ["-n", 4]), *launch, "--", *arguments, environment={"OMP_NUM_THREADS": "1", **variables})

    def wait_for_lines(self, launcher, lines):
        """Until so many steps were done, repeated ones counted again."""
        while launcher.poll() is None and not (self.metrics.exists() and self.metrics.read_bytes().count(b"\n") >= lines):
            time.sleep(0.005)

    def reference(self, steps=STEPS):
        self.train("reference", steps, *LAYOUT, "--set", "checkpoint_every=5")
        return read_metrics(self.folder / "reference")

    def assert_like(self, out, reference, result):
        self.assertEqual(result.code, 0, result.err)
        losses = {step: line["loss"] for step, line in read_metrics(self.folder / out).items()}
        self.assertEqual(sorted(losses), sorted(reference))
        for step, loss in losses.items():
            self.assertAlmostEqual(loss, reference[step]["loss"], delta=1e-10 * abs(loss), msg=f"step {step}")

    def test_killed_devices(self):
        """One after the other, until one is left."""
        reference = self.reference()
        seed = drawn_seed()
        draws = random.Random(seed)
        launcher = self.start("killed")
        for lines in (6, 16, 26):
            self.wait_for_lines(launcher, lines + draws.randrange(4))
            ranks = processes_of(launcher)
            del ranks[0]
            os.kill(draws.choice(list(ranks.values())), signal.SIGKILL)
        result = Result(launcher)
        self.assert_like("killed", reference, result)
        for left in ("3 devices go on", "2 devices go on", "1 device goes on"):
            self.assertIn(left, result.err)

    def test_a_spare_takes_the_place(self):
        self.reference()
        launcher = self.start("spare", launch=["--spares", 1])
        self.wait_for_lines(launcher, 12)
        os.kill(processes_of(launcher)[2], signal.SIGKILL)
        result = Result(launcher)
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("4 devices go on", result.err)
        last = f"checkpoint-{STEPS}"
        self.assertEqual(read_state(self.folder / "spare" / last), read_state(self.folder / "reference" / last))

    def test_others_join(self):
        """Two devices of four go, and two come from elsewhere."""
        constant = ["--set", "decay=constant"]  # so that a shorter run has the same steps
        self.train("reference", STEPS, *LAYOUT, *constant)
        reference = read_metrics(self.folder / "reference")
        port, log = free_port(), self.folder / "log"
        launcher = self.start("joined", *constant, steps=3000, launch=["--port", port, "--log-file", log], PENSTOCK_SECRET="a-secret")
        for lines in 6, 16:
            self.wait_for_lines(launcher, lines)
            os.kill(max(processes_of(launcher).values()), signal.SIGKILL)
        joining = self.start("joined", *constant, steps=3000, launch=["-n", 2, "--join", f"127.0.0.1:{port}"], PENSTOCK_SECRET="a-secret")
        while launcher.poll() is None and "came; 4 devices go on" not in (self.folder / "log.0").read_text():
            time.sleep(0.05)
        launcher.send_signal(signal.SIGTERM)
        self.assertEqual(Result(launcher).code, 128 + signal.SIGTERM)
        joined = Result(joining)
        self.assertEqual(joined.code, 0, joined.err)
        self.assertIn("came; 4 devices go on", (self.folder / "log.0").read_text())
        losses = {step: line["loss"] for step, line in read_metrics(self.folder / "joined").items()}
        for step in reference.keys() & losses.keys():
            self.assertAlmostEqual(losses[step], reference[step]["loss"], delta=1e-10 * abs(losses[step]), msg=f"step {step}")

    def test_what_is_refused(self):
        for launch, backend, parts in [
            (["-n", "1"], "gloo", ["1 process was started for 4 devices", "penstock launch --elastic -n 4"]),
            ([], "nccl", ["pipeline.backend is nccl, and the run is elastic", "--backend gloo"]),
        ]:
            result = Result(self.start("refused", backend=backend, launch=launch))
            self.assertEqual(result.code, 1, result.err)
            for part in parts:
                self.assertIn(part, result.err)

    def test_random_faults(self):
        """Kills, stands and goes on again, of any device; what was killed is started again, and what went on is taken in again."""
        reference = self.reference(MANY)
        seed = drawn_seed()
        draws = random.Random(seed)
        launcher = self.start("random", steps=MANY, launch=["--restarts", 1000])
        stopped, faults = set(), 0
        for lines in range(5, MANY if SOAK else 35, 4 if SOAK else 10):
            self.wait_for_lines(launcher, lines + draws.randrange(4))
            if launcher.poll() is not None:
                break
            rank, pid = draws.choice([(rank, pid) for rank, pid in processes_of(launcher).items() if rank > 0])
            fault = signal.SIGCONT if pid in stopped else draws.choice([signal.SIGKILL, signal.SIGSTOP])
            if fault == signal.SIGSTOP and len(stopped) > 1:
                continue
            os.kill(pid, fault)
            stopped.discard(pid)
            if fault == signal.SIGSTOP:
                stopped.add(pid)
            faults += 1
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):  # the run has ended
                os.kill(pid, signal.SIGCONT)
        self.assertGreater(faults, 2)
        self.assert_like("random", reference, Result(launcher))

    def test_the_leader_is_lost(self):
        """Its devices end, and the run goes on from its last checkpoint when it is started again."""
        reference = self.reference()
        launcher = self.start("led")
        self.wait_for_lines(launcher, 12)
        os.kill(processes_of(launcher)[0], signal.SIGKILL)
        result = Result(launcher)
        self.assertEqual(result.code, 128 + signal.SIGKILL, result.err)
        self.assertIn("rank 0 was lost", result.err)
        again = Result(self.start("led", "--resume-or-start"))
        self.assert_like("led", reference, again)

    def checkpoints(self, out):
        return {path.name for path in (self.folder / out).glob("checkpoint-*")}

    def test_checkpoints_that_are_written_while_steps_go_on(self):
        """Each is that of a plain run of that step, in the same pieces, and is gone on from as that is."""
        many = ["--set", "checkpoint_every=1", "--set", f"keep={STEPS}"]
        self.train("plain", STEPS, *LAYOUT, *many)
        result = Result(self.start("elastic", *many))
        self.assertEqual(result.code, 0, result.err)
        written = self.checkpoints("elastic")
        self.assertGreater(len(written), 1)
        for name in written:
            self.assertEqual(read_pieces(self.folder / "elastic" / name), read_pieces(self.folder / "plain" / name), name)
        first = min(written, key=lambda name: int(name.split("-")[1]))
        self.train("resumed", STEPS, *LAYOUT, "--backend", "threads", "--resume", self.folder / "elastic" / first)
        last = f"checkpoint-{STEPS}"
        self.assertEqual(read_pieces(self.folder / "resumed" / last), read_pieces(self.folder / "plain" / last))

    def test_killed_while_a_checkpoint_is_written(self):
        reference = self.reference()
        launcher = self.start("writing", "--set", "checkpoint_every=1")
        while launcher.poll() is None and not list((self.folder / "writing").glob("checkpoint-*.part")):
            pass
        os.kill(processes_of(launcher)[3], signal.SIGKILL)
        result = Result(launcher)
        self.assert_like("writing", reference, result)
        self.assertIn("3 devices go on", result.err)
        self.assertFalse([name for name in self.checkpoints("writing") if name.endswith(".part")])

    def test_a_checkpoint_that_cannot_be_written(self):
        """The run says so and goes on, and writes the next ones when they can be."""
        reference = self.reference()
        launcher = self.start("full")
        self.wait_for_lines(launcher, 2)
        devices = [pid for rank, pid in processes_of(launcher).items() if rank > 0]
        for device in devices:
            resource.prlimit(device, resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))  # as on a full disk
        self.wait_for_lines(launcher, 20)
        self.assertFalse([name for name in self.checkpoints("full") if ".part" not in name])
        for device in devices:
            resource.prlimit(device, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        result = Result(launcher)
        self.assert_like("full", reference, result)
        self.assertRegex(result.err, r"the checkpoint of step 5 could not be written: .*device-\d\.safetensors: File too large; no checkpoint was written yet")
        last = f"checkpoint-{STEPS}"
        self.assertEqual(read_pieces(self.folder / "full" / last), read_pieces(self.folder / "reference" / last))


if __name__ == "__main__":
    unittest.main()
