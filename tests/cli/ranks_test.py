# SPDX-License-Identifier: Apache-2.0
"""Processes that do not fit together, that hang, or that others disturb."""

import contextlib
import os
import pathlib
import random
import re
import resource
import signal
import socket
import time
import unittest

from support import SMALL, SOAK, ProgramTest, Result, drawn_seed, free_port, run_all, start, start_all


class Ranks(ProgramTest):
    def start_pair(self, first, second, port=None, **more):
        port = port or free_port()
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **more}
        return [start(*arguments, environment={"RANK": str(rank), **place}) for rank, arguments in enumerate([first, second])]

    def train_gloo(self, out, *more):
        return self.train_arguments(out, 3, "--backend", "gloo", *more)

    def assert_refused(self, first, second, *parts):
        for result in map(Result, self.start_pair(first, second)):
            self.assert_fails(result, "rank 1 has another command, data or configuration than rank 0", *parts)
        self.assertFalse((self.folder / "out").exists())

    def test_another_text(self):
        """The other text has the same length and name: only its contents tell."""
        other = self.folder / "other"
        other.mkdir()
        (other / "text.txt").write_text(self.text.read_text().replace("fox", "cat"))
        first = self.train_gloo("out")
        relative = [word if word != self.text else "text.txt" for word in first]
        place = {"WORLD_SIZE": "2", "MASTER_PORT": str(free_port())}
        folders = [self.folder, other]
        processes = [start(*relative, environment={"RANK": str(rank), **place}, cwd=folder) for rank, folder in enumerate(folders)]
        for result in map(Result, processes):
            self.assert_fails(result, "rank 1 has another command, data or configuration than rank 0", "rank 1: data: ")

    def test_another_length(self):
        short = self.folder / "short.txt"
        short.write_text(self.text.read_text()[:2000])
        self.assert_refused(self.train_gloo("out"), self.train_gloo("out", "--text", short), "rank 1: data: ")

    def test_another_configuration(self):
        self.assert_refused(self.train_gloo("out"), self.train_gloo("out", "--set", "width=64"), "rank 0: [model] width = 32", "rank 1: [model] width = 64")

    def test_another_command(self):
        check = ["check", *SMALL, "--text", self.text, "--out", self.folder / "out", "--steps", 3, "--backend", "gloo"]
        self.assert_refused(self.train_gloo("out"), check, "rank 0: command: train", "rank 1: command: check")

    def test_a_silent_listener(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with socket.socket() as silent:
                silent.bind(("127.0.0.1", 0))
                silent.listen()
                waiting = start(*self.train_gloo("out"), environment={"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                                                      "MASTER_PORT": str(silent.getsockname()[1])})  # fmt: skip
                connections = [silent.accept()[0] for _ in range(2)]  # it asks whether somebody listens, and connects
                waiting.send_signal(number)
                self.assertEqual(Result(waiting).code, 128 + number)
                for connection in connections:  # until here nobody closed one: that would not be silent
                    connection.close()

    def wait_for_steps(self, processes, out):
        metrics = self.folder / out / "metrics.jsonl"
        while not metrics.exists() or metrics.read_text().count("\n") < 3:
            self.assertIsNone(processes[0].poll())
            time.sleep(0.05)

    def wait_until_taken(self, process, number):
        """A process gets one of two signals of one number that wait at once."""
        waiting = re.compile(r"^ShdPnd:\s*(\w+)", re.MULTILINE)
        while process.poll() is None and int(waiting.search(pathlib.Path(f"/proc/{process.pid}/status").read_text())[1], 16) >> (number - 1) & 1:
            time.sleep(0.01)

    def test_rank_0_is_held_up(self):
        """Rank 1 waits for it no longer than the deadline, and ends at a second signal."""
        arguments = self.train_arguments("held", 100000, "--backend", "gloo", "--set", "deadline=8")
        for signals in (0, 2):
            processes = self.start_pair(arguments, arguments)
            self.wait_for_steps(processes, "held")
            processes[0].send_signal(signal.SIGSTOP)
            for _ in range(signals):
                self.wait_until_taken(processes[1], signal.SIGTERM)
                processes[1].send_signal(signal.SIGTERM)
            result = Result(processes[1])
            self.assertEqual(result.code, 128 + signal.SIGTERM if signals else 1, result.err)
            processes[0].kill()
            processes[0].communicate()
            for path in sorted((self.folder / "held").rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()

    def test_any_rank_stops_the_run(self):
        arguments = self.train_arguments("stopped", 100000, "--backend", "gloo", "--set", "checkpoint_every=0")
        processes = self.start_pair(arguments, arguments)
        self.wait_for_steps(processes, "stopped")
        processes[1].send_signal(signal.SIGTERM)
        for result in map(Result, processes):
            self.assertEqual(result.code, 128 + signal.SIGTERM, result.err)
        self.assertEqual(len(list((self.folder / "stopped").glob("checkpoint-*/manifest.json"))), 1)

    def test_every_rank_of_a_failed_run_fails(self):
        """Whoever fails, and whatever the others were at. With PENSTOCK_SOAK 100 processes are killed instead of a few."""
        wild = ["--lr", 1e30, "--set", "clip=0", "--set", "warmup=0"]
        unwritable = ["--set", "checkpoint_every=2", "--set", "keep=1"]
        limits = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))}
        for name, more, options in (("wild", wild, {}), ("unwritable", unwritable, limits)):
            arguments = self.train_arguments(name, 40, "--backend", "gloo", "--actors", 3, *more)
            for rank, result in enumerate(run_all(3, *arguments, **options)):
                self.assert_fails(result, "the loss is" if rank == 0 and name == "wild" else "could not be written" if rank == 0 else "the run has failed")
        seed = drawn_seed()
        draws = random.Random(seed)
        for round in range(100 if SOAK else 2):
            out = f"killed-{round}"
            processes = start_all(3, *self.train_arguments(out, 100000, "--backend", "gloo", "--actors", 3, "--set", "deadline=10",
                                                           "--set", f"checkpoint_every={draws.choice([0, 1])}"))  # fmt: skip
            self.wait_for_steps(processes, out)
            time.sleep(draws.random() * 0.05)
            killed = draws.randrange(3)
            processes[killed].kill()
            with self.subTest(seed=seed, round=round, killed=killed):
                codes = [Result(process).code for process in processes]
                self.assertEqual(codes, [-signal.SIGKILL if rank == killed else 1 for rank in range(3)])

    def test_listens_on_the_loopback_only(self):
        """Every port that the two processes listen on."""
        arguments = self.train_arguments("listening", 100000, "--backend", "gloo")
        processes = self.start_pair(arguments, arguments)
        self.wait_for_steps(processes, "listening")
        own = set()
        for process in processes:
            for fd in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                    own.add(os.readlink(fd))
        listening = []
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in pathlib.Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and f"socket:[{words[9]}]" in own:
                    listening.append(words[1].split(":")[0])
        for process in processes:
            process.send_signal(signal.SIGINT)
        for process in processes:
            process.communicate()
        self.assertTrue(listening)
        self.assertEqual(set(listening), {"0100007F"})


if __name__ == "__main__":
    unittest.main()
