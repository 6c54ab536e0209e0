"""run.device: the program on the stand-in for a GPU, which computes what the CPU does."""

import json
import unittest

from support import SMALL, ProgramTest, run, run_all

SCHEDULES = [
    ["--schedule", "1f1b"],
    ["--schedule", "zb-v", "--chunks", "2"],
    ["--schedule", "zeropp", "--mesh", "pipe=2,data=2", "--set", "zero=3"],
    ["--schedule", "slimpipe", "--slices", "2"],
    ["--schedule", "1f1b", "--mesh", "pipe=2,tensor=2"],
    ["--schedule", "pipedream", "--window", "2", "--set", "tied=0", "clip=0"],
]


class Device(ProgramTest):
    def losses(self, name):
        return [json.loads(line)["loss"] for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]

    def test_check(self):
        for flags in SCHEDULES:
            with self.subTest(flags):
                result = run("check", *SMALL, "--text", self.text, "--device", "standin", *flags, "--json")
                self.assertEqual(result.code, 0, result.err)
                self.assertTrue(result.json()["equal"])

    def test_training_and_its_checkpoints_are_those_of_the_cpu(self):
        self.train("cpu", 8)
        self.train("standin", 4, "--device", "standin")
        # On the CPU from there, and back: what a device wrote the other reads.
        for steps, device in (("6", "cpu"), ("8", "standin")):
            result = run("train", "--resume", self.folder / "standin", "--steps", steps, "--device", device, "--text", self.text)
            self.assertEqual(result.code, 0, result.err)
        for ours, theirs in zip(self.losses("standin"), self.losses("cpu"), strict=True):
            self.assertLess(abs(ours - theirs), 1e-4)

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

    def test_processes_send_through_the_host(self):
        self.train("threads", 4)
        results = run_all(2, *self.train_arguments("gloo", 4, "--backend", "gloo", "--device", "standin"))
        self.assertEqual([result.code for result in results], [0, 0], results[0].err + results[1].err)
        for ours, theirs in zip(self.losses("gloo"), self.losses("threads"), strict=True):
            self.assertLess(abs(ours - theirs), 1e-4)
        flags = ["--backend", "gloo", "--device", "standin", "--schedule", "zeropp", "--mesh", "pipe=2,data=2", "--set", "zero=3"]
        results = run_all(4, "check", *SMALL, "--text", self.text, *flags)
        self.assertEqual([result.code for result in results], [0] * 4, results[0].err)

    def test_refusals(self):
        self.assert_fails(run(*self.train_arguments("none", 1, "--device", "standin", "--straggler", "1=2")), "run.straggler is 1=2, and run.device standin")
        self.assert_fails(run("profile", *SMALL, "--text", self.text, "--device", "standin", "--out", self.folder / "costs.json"), "run.device is standin, and what is measured is the host")
        self.assert_fails(run(*self.train_arguments("none", 1, "--device", "cuda")), '--device: unknown device "cuda"', "known: cpu, standin")


if __name__ == "__main__":
    unittest.main()
