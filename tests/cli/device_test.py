# SPDX-License-Identifier: Apache-2.0
"""run.device: the program on the stand-in for a GPU, which computes what the CPU does."""

import json
import os
import unittest
import unittest.mock

from offload_test import TABLE
from support import SMALL, ProgramTest, Result, read_state, run, run_all, sampled, start, start_all

SCHEDULES = [
    ["--schedule", "1f1b"],
    ["--schedule", "zb-v", "--chunks", "2"],
    ["--schedule", "zeropp", "--mesh", "pipe=2,data=2", "--set", "zero=3"],
    ["--schedule", "slimpipe", "--slices", "2"],
    ["--schedule", "1f1b", "--mesh", "pipe=2,tensor=2"],
    ["--schedule", "pipedream", "--window", "2", "--set", "tied=0", "clip=0"],
]

# With the number of processes.
NCCL_SCHEDULES = [
    (["--schedule", "zb-h1", "--mesh", "pipe=2,data=2", "--set", "zero=1"], 4),
    (["--schedule", "interleaved-1f1b", "--chunks", "2", "--mesh", "pipe=2,data=2", "--set", "zero=3", "--dtype", "bf16"], 4),
    (["--schedule", "1f1b", "--mesh", "pipe=2,tensor=2"], 4),
    (["--schedule", "slimpipe", "--slices", "2"], 2),
    (["--schedule", "pipedream", "--window", "2", "--set", "tied=0", "clip=0"], 2),
]


class Device(ProgramTest):
    def train_arguments(self, out, steps, *more):
        """As JSON, without a sample of text: to generate it takes the stand-in longer than the steps."""
        return [*super().train_arguments(out, steps, "--json"), *more]

    def config(self):
        out = self.folder / "small.toml"
        out.write_text(
            "[model]\nlayers = 4\nwidth = 32\nheads = 2\ncontext = 16\n"
            "[train]\nbatch = 8\nvalidation_every = 0\n[pipeline]\nmicrobatches = 4\n"
        )
        return out

    def losses(self, name):
        return [json.loads(line)["loss"] for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]

    def test_check(self):
        for flags in sampled(SCHEDULES, 2):
            with self.subTest(flags):
                result = run("check", *SMALL, "--text", self.text, "--device", "standin", *flags, "--json")
                self.assertEqual(result.code, 0, result.err)
                self.assertTrue(result.json()["equal"])

    def test_training_and_its_checkpoints_are_those_of_the_cpu(self):
        self.train("cpu", 8)
        self.train("standin", 4, "--device", "standin")
        # On the CPU from there, and back: what a device wrote the other reads.
        for steps, device in (("6", "cpu"), ("8", "standin")):
            result = run("train", "--resume", self.folder / "standin", "--steps", steps, "--device", device, "--text", self.text, "--json")
            self.assertEqual(result.code, 0, result.err)
        for ours, theirs in zip(self.losses("standin"), self.losses("cpu"), strict=True):
            self.assertLess(abs(ours - theirs), 1e-4)

    def test_fused_chains_train_as_single_ops_do(self):
        """Issued and replayed steps have the same bits, and kernels are kept."""
        cache = {"PENSTOCK_CACHE": str(self.folder / "kernels")}
        for dtype, most in (("f32", 1e-5), ("bf16", 2e-2)):
            flags = ["--device", "standin", "--set", f"dtype={dtype}", "microbatches=4"]
            self.train(f"single-{dtype}", 6, *flags)
            for name, way in (("replayed", "true"), ("issued", "false")):
                result = run(*self.train_arguments(f"{name}-{dtype}", 6, *flags, "run.fuse=true", f"run.replay={way}"), environment=cache)
                self.assertEqual(result.code, 0, result.err)
                self.assertNotIn("run.fuse", result.err)
            self.assertEqual(self.losses(f"issued-{dtype}"), self.losses(f"replayed-{dtype}"))
            for ours, theirs in zip(self.losses(f"replayed-{dtype}"), self.losses(f"single-{dtype}"), strict=True):
                self.assertLess(abs(ours - theirs), most)
        kernels = list((self.folder / "kernels").iterdir())
        self.assertGreater(len(kernels), 5)
        self.assertTrue(all(kernel.stat().st_mode & 0o777 == 0o600 for kernel in kernels))
        result = run("check", *SMALL, "--text", self.text, "--device", "standin", "--schedule", "zb-h1", "--set", "run.fuse=true", "--json", environment=cache)
        self.assertTrue(result.json()["equal"], result.err)

    def test_measured_memory_has_what_kernels_took(self):
        """Issued and replayed; of processes too, whose allocators are their own."""
        results = [run(*self.train_arguments("threads", 4, "--device", "standin"))]
        results += run_all(2, *self.train_arguments("gloo", 4, "--backend", "gloo", "--device", "standin"))[:1]
        for result in results:
            self.assertEqual(result.code, 0, result.err)
            for actor in result.json()["actors"]:
                self.assertGreater(actor["measured_bytes"], actor["planned_bytes"])
                self.assertLess(actor["measured_bytes"], 3 * actor["planned_bytes"])

    def test_a_plan_without_room_is_refused_before_it_begins(self):
        flags = ["check", *SMALL, "--text", self.text, "--device", "standin"]
        with unittest.mock.patch.dict(os.environ, PENSTOCK_STANDIN_MEMORY="65536"):
            refused = run(*flags)
            of_processes = run_all(2, *flags, "--backend", "gloo")  # each looks at its own
        self.assert_fails(refused, "program gradient_step needs ", "what is free of standin:0's 64.0 KiB is ", "device 0 plans ")
        self.assert_fails(of_processes[0], "the program plans ", " on standin:0, of whose 64.0 KiB ", " are free")
        self.assertEqual(run(*flags).code, 0)

    def test_the_timeline_is_of_the_device(self):
        """What a lane computes follows one after the other, on its own clock and not when the host issued it."""
        self.train("timed", 12, "--device", "standin")
        events = json.loads((self.folder / "timed/timeline.json").read_text())["traceEvents"]
        computing = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name" and e["args"]["name"] == "compute"}
        self.assertEqual(len(computing), 2)
        lanes = {}
        for event in events:
            if event["ph"] == "X":
                lanes.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        for lane in computing:
            spans = sorted(lanes[lane])
            self.assertGreater(sum(end - begin for begin, end in spans), 0)
            self.assertTrue(all(end <= begin + 1 for (_, end), (begin, _) in zip(spans, spans[1:], strict=False)), spans)

    def test_what_is_measured_is_the_device(self):
        """Its spans, of whole steps; transfers and copies to the host go beside what it computes."""
        table = self.folder / "offload.csv"
        table.write_text(TABLE)
        small = [self.config(), "--schedule", table]
        for backend in ("threads", "nccl"):
            costs = self.folder / f"{backend}.json"
            flags = ["--device", "standin", "--backend", backend, "--rounds", "2", "--out", costs]
            result = run("profile", *small, *flags) if backend == "threads" else run_all(2, "profile", *small, *flags)[0]
            self.assertEqual(result.code, 0, result.err)
            found = json.loads(costs.read_text())
            self.assertEqual(found["machine"]["processor"], "stand-in")
            self.assertTrue(all(set(task["beside"]) == {backend} and task["beside"][backend]["median"] > 0 for task in found["tasks"]))
            link, host = found["links"][backend], found["links"]["host"]
            self.assertEqual((link["start_seconds"], link["second_end_copies"]), (0, False))
            self.assertGreater(host["latency"], 0)  # all copies are of one size
            predicted = run("simulate", *small, "--costs", costs, "--backend", backend, "--json")
            self.assertGreater(predicted.json()["makespan"], 0, predicted.err)
        refused = run("profile", *small, "--rounds", 1, "--out", self.folder / "threads.json")
        self.assert_fails(refused, "threads.json", "processor", "stand-in")

    def test_a_plan_of_what_is_measured_there_trains_there(self):
        plan = self.folder / "plan.json"
        small = ["--set", "model.layers=2", "train.dtype=f64"]
        flags = [*small, "--cluster", "local", "--device", "standin", "--rounds", "1", "--candidates", "1", "--seconds", "0.5"]
        result = run("plan", self.config(), *flags, "--microbatch-sizes", "2", "--out", plan, "--json")
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(result.json()["cluster"], "2 devices of this machine")
        trained = run("train", self.config(), *small, "--device", "standin", "--plan", plan, "--steps", 2, "--out", self.folder / "planned", "--json")
        self.assertEqual(trained.code, 0, trained.err)
        self.assert_fails(run("plan", "gpt", "--cluster", "local", "--figures", "v100"), "--cluster local measures, and --figures v100", "--device cuda")
        self.assert_fails(run("plan", "gpt", "--cluster", "local", "--device", "v100"), 'unknown device "v100"')
        varied = run("plan", self.config(), *flags, "--vary", "schedule=1f1b,zb-h1", "--json")
        self.assertEqual(varied.code, 0, varied.err)

    def test_processes_send_through_the_host(self):
        self.train("threads", 4)
        results = run_all(2, *self.train_arguments("gloo", 4, "--backend", "gloo", "--device", "standin"))
        self.assertEqual([result.code for result in results], [0, 0], results[0].err + results[1].err)
        for ours, theirs in zip(self.losses("gloo"), self.losses("threads"), strict=True):
            self.assertLess(abs(ours - theirs), 1e-4)
        flags = ["--backend", "gloo", "--device", "standin", "--schedule", "zeropp", "--mesh", "pipe=2,data=2", "--set", "zero=3"]
        results = run_all(4, "check", *SMALL, "--text", self.text, *flags)
        self.assertEqual([result.code for result in results], [0] * 4, results[0].err)

    def over_nccl(self, processes, *arguments):
        return run_all(processes, *arguments, "--backend", "nccl", "--device", "standin")

    def test_processes_send_from_device_to_device(self):
        """Over NCCL, here the tests' own; its sums have the bits of those between threads."""
        self.train("threads", 4, "--device", "standin", "--mesh", "pipe=2,data=2")
        launched = start("launch", "-n", 4, "--", *self.train_arguments("nccl", 4, "--backend", "nccl", "--device", "standin", "--mesh", "pipe=2,data=2"))
        result = Result(launched)
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(self.losses("nccl"), self.losses("threads"))
        self.assertEqual(read_state(self.folder / "nccl/checkpoint-4"), read_state(self.folder / "threads/checkpoint-4"))
        for flags, processes in sampled(NCCL_SCHEDULES, 1):
            with self.subTest(flags):
                results = self.over_nccl(processes, "check", *SMALL, "--text", self.text, *flags)
                self.assertEqual([result.code for result in results], [0] * processes, results[0].err)

    def test_nccl_refusals(self):
        arguments = self.train_arguments("none", 1, "--actors", 2)
        hint = "--backend gloo, or another --device"
        self.assert_fails(run("launch", "-n", 2, "--", *arguments, "--backend", "nccl"), "pipeline.backend is nccl, and run.device cpu", hint)
        nccl = [*arguments, "--backend", "nccl", "--device", "standin"]
        self.assert_fails(run(*nccl), "backend nccl needs one process per actor", "penstock launch -n 2 -- train --backend nccl")
        self.assert_fails(run("launch", "-n", 3, "--", *nccl), "3 processes were started for 2 actors")
        for library, said in (("no.so", "cannot load NCCL"), ("libc.so.6", "libc.so.6 has no function ncclGetVersion")):
            self.assert_fails(run("launch", "-n", 2, "--", *nccl, environment={"PENSTOCK_NCCL": library}), said)
        old = {"PENSTOCK_FAKE_NCCL": "version:20900"}
        self.assert_fails(run("launch", "-n", 2, "--", *nccl, environment=old), "is NCCL 2.9.0, which is too old")
        self.assertFalse((self.folder / "none").exists())

    def test_a_run_whose_process_ends_goes_on_from_its_checkpoint(self):
        """One of the two ends in the middle of a step, and the other says so; the run has a checkpoint of before."""
        flags = ["--actors", 2, "--set", "checkpoint_every=2"]
        self.train("whole", 8, "--device", "standin", *flags)
        nccl = [*self.train_arguments("lost", 8, *flags), "--backend", "nccl", "--device", "standin"]
        processes = start_all(2, *nccl, environments=[{}, {"PENSTOCK_FAKE_NCCL": "exit:100"}])
        results = [Result(process) for process in processes]
        self.assertEqual((results[0].code, results[1].code), (1, 9), results[0].err)
        self.assertIn("device 1 was lost", results[0].err)
        resumed = self.over_nccl(2, "train", "--resume", self.folder / "lost", "--steps", 8, "--text", self.text, "--json")
        self.assertEqual([result.code for result in resumed], [0, 0], resumed[0].err)
        self.assertEqual(read_state(self.folder / "lost/checkpoint-8"), read_state(self.folder / "whole/checkpoint-8"))

    def test_an_error_of_the_device_ends_the_run(self):
        """In a step that is issued, in one that is replayed, and in one of two processes."""
        for work, more in (("3000", ["--set", "run.replay=false"]), ("3000", []), ("1500", ["--backend", "nccl"])):
            with self.subTest(work, more=more), unittest.mock.patch.dict(os.environ, PENSTOCK_STANDIN_FAIL=work):
                arguments = [*self.train_arguments(f"failed {more}", 1000), "--device", "standin", "--set", "deadline=20", *more]
                result = run_all(2, *arguments)[0] if "nccl" in more else run(*arguments)
                self.assert_fails(result, "a kernel failed on the device: ", "uncorrectable ECC error encountered")

    def test_refusals(self):
        for command in (self.train_arguments("none", 1), ["check", *SMALL, "--text", self.text]):
            self.assert_fails(run(*command, "--set", "run.fuse=true"), "run.fuse is for devices that have a compiler of kernels, and run.device is cpu")
        self.assert_fails(run(*self.train_arguments("none", 1, "--device", "standin", "--straggler", "1=2")), "run.straggler is 1=2, and run.device standin")
        self.assert_fails(run(*self.train_arguments("none", 1, "--device", "cuba")), '--device: unknown device "cuba"', 'did you mean "cuda"?')
        self.assert_fails(run(*self.train_arguments("none", 1, "--device", "cuda:one")), '--device: unknown device "cuda:one"')
        self.assert_fails(run(*self.train_arguments("none", 1, "--device", "standin:1")), '--device: unknown device "standin:1"')


if __name__ == "__main__":
    unittest.main()
