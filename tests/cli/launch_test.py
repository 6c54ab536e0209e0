# SPDX-License-Identifier: Apache-2.0
"""One process per device over Gloo: the same result as threads, and an end with an error for every way to lose a process."""

import os
import pathlib
import signal
import socket
import time
import unittest

from support import SMALL, ProgramTest, Result, read_state, run, start

LONG = 100000  # steps


def by_rank(launcher, processes):
    """The launcher's processes once all have started."""
    children = pathlib.Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    while True:
        ranks = {}
        for child in children.read_text().split():
            variables = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            ranks.update({int(v[5:]): int(child) for v in variables if v.startswith(b"RANK=")})
        if len(ranks) == processes:
            return [ranks[rank] for rank in range(processes)]
        time.sleep(0.05)


class Launch(ProgramTest):
    def start(self, out, steps, *more, processes=2):
        gloo = ["--backend", "gloo", "--actors", processes, *more]
        return start("launch", "-n", processes, "--", *self.train_arguments(out, steps, *gloo))

    def started(self, out):
        """A run that has trained for a few steps. They are so long that hardly any moment is between a device's last message to another and its report to
        the controller: who is killed there is missed by nobody until the deadline, but by the launcher."""
        launcher = self.start(out, LONG, "--set", "width=128", "--set", "context=256", "--batch", 32, "--microbatches", 16)
        metrics = self.folder / out / "metrics.jsonl"
        while not metrics.exists() or metrics.read_text().count("\n") < 3:
            self.assertIsNone(launcher.poll())
            time.sleep(0.05)
        return launcher

    def assert_all_ended(self, processes):
        deadline = time.monotonic() + 120  # a step on a busy machine, and its checkpoint, take seconds
        while any(pathlib.Path(f"/proc/{process}").exists() for process in processes):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def test_same_result_as_threads(self):
        self.train("threads", 5)
        result = Result(self.start("gloo", 5, "--json"))
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(result.json()["step"], 5)  # nothing else on stdout
        self.assertEqual(read_state(self.folder / "gloo/checkpoint-5"), read_state(self.folder / "threads/checkpoint-5"))

    def test_gradients(self):
        for processes in (2, 4):
            arguments = ["check", *SMALL, "--text", self.text, "--backend", "gloo", "--actors", processes, "--dtype", "f64", "--json"]
            result = run("launch", "-n", processes, "--", *arguments)
            self.assertEqual(result.code, 0, result.err)
            self.assertLess(result.json()["gradient_difference"], 1e-10)

    def test_killed_device(self):
        launcher = self.started("killed")
        processes = by_rank(launcher, 2)
        os.kill(processes[1], signal.SIGKILL)
        result = Result(launcher)
        self.assertEqual(result.code, 128 + signal.SIGKILL)
        self.assertIn("rank 1 was ended by signal 9", result.err)
        self.assertIn("error: device 1 was lost while device 0 waited in ", result.err)
        self.assert_all_ended(processes)

    def test_killed_controller(self):
        launcher = self.started("killed")
        processes = by_rank(launcher, 2)
        os.kill(processes[0], signal.SIGKILL)
        self.assertEqual(Result(launcher).code, 128 + signal.SIGKILL)
        self.assert_all_ended(processes)

    def test_killed_launcher(self):
        launcher = self.started("killed")
        processes = by_rank(launcher, 2)
        launcher.kill()
        launcher.communicate()
        self.assert_all_ended(processes)

    def test_stopped(self):
        launcher = self.started("stopped")
        processes = by_rank(launcher, 2)
        launcher.terminate()
        result = Result(launcher)
        self.assertEqual(result.code, 128 + signal.SIGTERM, result.err)
        self.assertNotIn("error: ", result.err)
        self.assertEqual(len(list((self.folder / "stopped").glob("checkpoint-*/manifest.json"))), 1)
        self.assert_all_ended(processes)

    def test_another_program(self):
        result = run("launch", "-n", 2, "--", "sh", "-c", "echo $RANK of $WORLD_SIZE at $MASTER_ADDR; exit $RANK")
        self.assertEqual(sorted(result.out.splitlines()), ["0 of 2 at 127.0.0.1", "1 of 2 at 127.0.0.1"])
        self.assertEqual(result.code, 1)
        result = run("launch", "-n", 1, "--", "trian")
        self.assertEqual(result.code, 127)
        self.assertIn("penstock launch: cannot run trian: No such file or directory", result.err)

    def test_mistakes(self):
        nothing = run("launch", "-n", 2)
        self.assertEqual(nothing.code, 2)
        self.assertIn("penstock launch needs ARGS", nothing.err)
        arguments = self.train_arguments("out", 1, "--backend", "gloo", "--actors", 2)
        self.assert_fails(run("launch", "-n", 3, "--", *arguments), "3 processes were started for 2 actors")
        with socket.socket() as taken:
            taken.bind(("", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.assert_fails(run("launch", "-n", 2, "--port", port, "--", *arguments), f"port {port} is in use")
        self.assertFalse((self.folder / "out").exists())
        self.assertEqual(run("launch", "-n", 0, "--", "train").code, 1)


if __name__ == "__main__":
    unittest.main()
