# SPDX-License-Identifier: Apache-2.0
"""Actors as processes over Gloo, by the variables that launchers set."""

import json
import signal
import socket
import time
import unittest

from support import SMALL, ProgramTest, Result, free_port, read_state, run, run_all, sampled, start, start_all


class Gloo(ProgramTest):
    def test_check(self):
        two_branch = ["--set", "model.name=two-branch", "--set", "model.layers=3"]
        cases = [(actors, "--schedule", schedule) for actors in (2, 4) for schedule in ("sequential", "gpipe", "1f1b", "eager-1f1b", "zb-h1")]
        cases += [(actors, "--schedule", "interleaved-1f1b", "--chunks", 2, "--set", "model.layers=8") for actors in (2, 4)]
        cases += [(4, "--schedule", schedule, *two_branch) for schedule in ("1f1b", "zb-h1")]
        exchange = ["--schedule", "slimpipe-exchange", "--set", "model.layers=4"]
        cases += [(2, *exchange, "--chunks", 2, "--slices", 4), (4, *exchange, "--slices", 8)]
        cases += [(2, "--slices", 2, "--set", "model.name=t5")]
        helix = ["--schedule", "helixpipe", "--set", "qkv_in_attention=1"]
        cases += [(2, *helix, "--chunks", 2, "--window", 3), (2, *helix, "--chunks", 3, "--set", "model.name=t5", "layers=2", "--window", 2)]
        cases += [(4, "--schedule", "gpipe", "--recompute", "inputs", "--set", "model.dropout=0.1")]
        cases += [(2, "--schedule", "zb-h1", "--recompute", "selective", "--set", "model.dropout=0.1")]
        for actors, *more in sampled(cases, 4):
            results = run_all(actors, "check", *SMALL, "--dtype", "f64", "--backend", "gloo", "--actors", actors, "--json", *more)
            for rank, result in enumerate(results):
                self.assertEqual(result.code, 0, f"rank {rank}: {result.err}")
            report = results[0].json()
            self.assertTrue(report["equal"], report)
            self.assertEqual(results[1].out, "")

    def test_stages_take_micro_batches_of_their_own_sizes(self):
        """At once, or, where a batch norm needs all samples of a micro-batch, one after the other and with a note."""
        table = self.folder / "table.csv"
        table.write_text("0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1x2F0,1x2B0,1x2F2,1x2B2\n")
        resnet = ["--set", "model.name=resnet", "--set", "width=4", "--set", "image=16"]
        for model, is_noted in ([], False), (resnet, True):
            arguments = [*(SMALL if model == [] else []), *model, "--dtype", "f64", "--schedule", table, "--actors", 2, "--microbatches", 4, "--batch", 8]
            results = run_all(2, "check", *arguments, "--backend", "gloo", "--json")
            self.assertEqual([result.code for result in results], [0, 0], results[0].err)
            self.assertTrue(results[0].json()["equal"])
            trained = run("train", *arguments, "--steps", 1, "--out", self.folder / f"run-{is_noted}")
            self.assertEqual(trained.code, 0, trained.err)
            note = "note: stages that take several micro-batches together run them one after the other: stage"
            self.assertEqual(note in trained.err, is_noted, trained.err)

    def test_launchers(self):
        arguments = ["check", *SMALL, "--backend", "gloo", "--json"]
        launched = run("launch", "-n", 2, "--", *arguments)
        self.assertEqual(launched.code, 0, launched.err)
        self.assertTrue(json.loads(launched.out)["equal"])
        for rank, size in [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")]:
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            for result in [Result(p) for p in [start(*arguments, environment={**place, rank: str(i), size: "2"}) for i in range(2)]]:
                self.assertEqual(result.code, 0, result.err)

    def test_train_and_resume_like_threads(self):
        self.train("threads", 20)
        arguments = self.train_arguments("gloo", 20, "--backend", "gloo", "--set", "checkpoint_every=10")
        for result in run_all(2, *arguments):
            self.assertEqual(result.code, 0, result.err)
        expected = read_state(self.folder / "threads" / "checkpoint-20")
        self.assertEqual(read_state(self.folder / "gloo" / "checkpoint-20"), expected)
        # What processes wrote, threads go on with, and the other way round.
        resumed = run("train", "--resume", self.folder / "gloo" / "checkpoint-10", "--out", self.folder / "again", "--backend", "threads")
        self.assertEqual(resumed.code, 0, resumed.err)
        self.assertEqual(read_state(self.folder / "again" / "checkpoint-20"), expected)

    def test_a_killed_process_ends_the_others(self):
        arguments = self.train_arguments("killed", 5000, "--backend", "gloo", "--set", "checkpoint_every=0", "--set", "deadline=10")
        processes = start_all(2, *arguments)
        metrics = self.folder / "killed" / "metrics.jsonl"
        while processes[0].poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 3):
            time.sleep(0.01)
        processes[1].send_signal(signal.SIGKILL)
        begin = time.monotonic()
        first = Result(processes[0])
        processes[1].communicate()
        self.assertLess(time.monotonic() - begin, 90)  # the deadline and an end take far less
        self.assert_fails(first, "device 1")

    def test_bad_launches(self):
        check = ["check", *SMALL, "--backend", "gloo"]
        self.assert_fails(run(*check), "backend gloo needs one process per actor", "penstock launch -n 2")
        for result in run_all(3, *check, "--actors", 2):
            self.assert_fails(result, "3 processes were started for 2 actors")
        for result in run_all(2, "check", *SMALL):
            self.assert_fails(result, "2 processes were started, but pipeline.backend is threads", "--backend gloo")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            processes = start_all(2, *check, "--set", "deadline=5", port=port)
            self.assert_fails(Result(processes[0]), f"port {port} is in use", "MASTER_PORT")
            processes[1].kill()
            processes[1].communicate()


if __name__ == "__main__":
    unittest.main()
